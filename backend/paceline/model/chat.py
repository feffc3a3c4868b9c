"""Chat messages to one prompt string, by the model's own Jinja template.

Templates come with model folders, so they are foreign code: they run in Jinja's immutable sandbox
and see plain strings only. Knows nothing about token ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.core.errors import ModelError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    role: `system`, `developer` (shown to the template as `system`), `user`, `assistant` or `tool`.
    content: its text, shown to the model as text whatever characters it holds.
    tool_call_id, name: for `tool` messages, as far as the template knows them.
    """

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A conversation as the model sees it.

    ids: what was, or will be, fed to the model.
    text: the rendering that belongs to them, in a form for comparing only: control tokens are
    aliased. It is neither for display nor for keeping beyond the process.
    """

    ids: tuple[int, ...]
    text: str

    def with_answer(self, answer_ids: Sequence[int], answer_text: str) -> EncodedChat:
        """The conversation after its answer: committed ids (a stop token among them or not) and the
        text that the client was sent."""
        return EncodedChat(self.ids + tuple(answer_ids), self.text + answer_text)


class ChatTemplate:
    """A compiled chat template. Thread-safe; rendering is CPU work: keep it off an event loop."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """source: the template. variables: what it may name beside the messages (`bos_token` ...).

        Raises ModelError for a template that is not valid Jinja.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is not valid Jinja: {error}") from error
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[ChatMessage],
        shield: Callable[[str], str],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt; every string of a message goes through `shield` first.

        Raises RequestError when the template refuses the messages (an order or a role that the
        model was not trained on), with the template's own words.
        """
        plain: list[dict[str, str]] = []
        for message in messages:
            role = "system" if message.role == "developer" else message.role
            fields = {"role": shield(role), "content": shield(message.content)}
            if message.name is not None:
                fields["name"] = shield(message.name)
            if message.tool_call_id is not None:
                fields["tool_call_id"] = shield(message.tool_call_id)
            plain.append(fields)
        try:
            return self._template.render(
                **self._variables,
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", field="input"
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for: the settings, names and filters that
    transformers gives them."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    return environment


class _Namespace(jinja2.utils.Namespace):
    """A template's variables; names that reach into Python's internals are refused."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a chat template may not set {name!r}")
        super().__setitem__(name, value)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it only shows its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
