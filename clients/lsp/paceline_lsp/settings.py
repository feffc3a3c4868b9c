"""Settings, as an editor sends them: `initializationOptions`, or the section `paceline` of the
workspace configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paceline_client import DEFAULT_URL
from paceline_protocol.messages import DrafterChoice, SpeculationChoice


class SettingsError(ValueError):
    """Settings that are wrong; one line that names the field and says what would be right."""


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """On the wire in camel case: `debounceMs`.

    debounce_ms: pause in typing before a request is made; asking by a key press never waits.
    max_lines: longest completion. multiline: `never` offers the rest of the line only.
    prefix_characters, suffix_characters: of the document sent at most; the server cuts further, by
    tokens, to what its model holds. completion_items: whether completions also come as entries of
    the ordinary completion list; `auto` does so for editors without inline completion.
    """

    url: str = DEFAULT_URL
    api_key: str | None = None
    enabled: bool = True
    disabled_languages: list[str] = []
    debounce_ms: Annotated[int, Meta(ge=0, le=10_000)] = 75
    max_output_tokens: Annotated[int, Meta(ge=1, le=4096)] = 96
    max_lines: Annotated[int, Meta(ge=1, le=200)] = 12
    multiline: Literal["auto", "never"] = "auto"
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    speculation: SpeculationChoice = "auto"
    drafter: DrafterChoice = "auto"
    prefix_characters: Annotated[int, Meta(ge=100, le=400_000)] = 24_000
    suffix_characters: Annotated[int, Meta(ge=0, le=100_000)] = 4_000
    completion_items: Literal["auto", "always", "never"] = "auto"

    def serves(self, language_id: str) -> bool:
        """Whether documents of this language get completions."""
        return self.enabled and language_id not in self.disabled_languages

    def changed(self, given: Any) -> Settings:
        """These settings with the given fields in place. Raises SettingsError.

        given: an object; null fields and null itself change nothing.
        """
        if given is None:
            return self
        if not isinstance(given, dict):
            raise SettingsError("the settings must be an object")
        values = msgspec.to_builtins(self)
        values.update({name: value for name, value in given.items() if value is not None})
        try:
            return msgspec.convert(values, Settings)
        except msgspec.ValidationError as error:
            raise SettingsError(_in_words(error)) from None


def _in_words(error: msgspec.ValidationError) -> str:
    what, _, path = str(error).partition(" - at `$.")
    if path:
        return f"{path.rstrip('`')}: {what[:1].lower()}{what[1:]}"
    known = ", ".join(field.encode_name for field in msgspec.structs.fields(Settings))
    return f"{what}; known are {known}"
