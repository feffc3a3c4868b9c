"""Text to token ids and back, for one target model.

Imports tokenizers and jinja2, no torch. Folders without a `tokenizer.json` and GGUF files are read
through transformers, which is imported only then.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from paceline.core.errors import ModelError, RequestError
from paceline.model.chat import ChatMessage, ChatTemplate, EncodedChat
from paceline.model.control_tokens import ControlTokens, token_ids
from paceline.model.detokenizer import Detokenizer
from paceline.model.fill_in_middle import EncodedInfill, FillInMiddle, fill_prompt
from paceline.model.vocabulary import Vocabulary
from paceline.sampling.grammar import GrammarCompiler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["ChatMessage", "Detokenizer", "EncodedChat", "TextCodec"]

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class TextCodec:
    """Everything that turns text into a target's token ids and ids into text.

    Immutable and thread-safe. Encoding long prompts is CPU work: keep it off an event loop.

    name: the model's name for people.
    eos_token_ids: ids that end an answer.
    vocabulary_size: one more than the highest id with a meaning; the model may have more rows.
    grammars: makes constraints over this vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        name: str,
        eos_token_ids: frozenset[int],
        chat_template: str | None = None,
        template_variables: dict[str, str] | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.name = name
        self.eos_token_ids = eos_token_ids
        self._tokenizer = tokenizer
        self._control = ControlTokens(tokenizer)
        self._special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._prefix_ids = _prefix_ids(tokenizer)
        self._chat_template = chat_template
        self.grammars = GrammarCompiler(
            lambda: (tokenizer.to_str(), self.vocabulary_size), eos_token_ids
        )
        self._fill_in_middle = FillInMiddle.of(tokenizer.token_to_id)
        self._template = (
            ChatTemplate(chat_template, template_variables or {}) if chat_template else None
        )

    @classmethod
    def load(cls, folder: Path) -> TextCodec:
        """Reads the tokenizer, the chat template and the end tokens of a model folder or GGUF file.

        Raises ModelError when there is no tokenizer or a file is broken.
        """
        if folder.is_file():
            return _load_through_transformers(folder.parent, folder.name, folder.stem)
        if not folder.is_dir():
            raise ModelError(f"{folder} is not a model folder")
        path = folder / "tokenizer.json"
        if not path.exists():
            return _load_through_transformers(folder, None, folder.name)
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more precise
            raise ModelError(f"{path} cannot be read: {error}") from error
        config = _read_json(folder / "tokenizer_config.json")
        _complete(tokenizer, config)
        variables = _template_variables(config, _read_json(folder / "special_tokens_map.json"))
        return cls(
            tokenizer,
            name=folder.name,
            eos_token_ids=_eos_token_ids(folder, tokenizer, variables.get("eos_token")),
            chat_template=_chat_template(folder, config),
            template_variables=variables,
        )

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def fill_in_middle(self) -> str | None:
        """The family whose tokens for filling in this tokenizer has; None if it has none."""
        return None if self._fill_in_middle is None else self._fill_in_middle.family

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What every token id means, for comparing two models."""
        return Vocabulary.of(self._tokenizer, self._control.ids)

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that `decode` and `Detokenizer` leave out."""
        return self._special_ids

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of a text alone, nothing added.

        allow_special: take control tokens in the text for what they look like; never for text from
        users. Raises RequestError for a lone surrogate, which no encoding of text can hold.
        """
        _require_unicode(text)
        if allow_special:
            return token_ids(self._tokenizer, text)
        return self._control.encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt (no chat template): what the model expects before any text, such as a
        begin token, then the text."""
        return [*self._prefix_ids, *self.encode(text)]

    def encode_infill(self, prefix: str, suffix: str, *, max_tokens: int) -> EncodedInfill:
        """A prompt for the text between the two, of at most `max_tokens` tokens. See
        `fill_in_middle`. Raises RequestError."""
        _require_unicode(suffix, "suffix")
        return fill_prompt(
            self._fill_in_middle,
            self._prefix_ids,
            self.encode(prefix),
            self._control.encode(suffix, continues=True) if self._fill_in_middle else (),
            suffix,
            max_tokens=max_tokens,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def token_text(self, token_id: int) -> str:
        """One token for people, special tokens by name; U+FFFD stands for part of a character."""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; b"" for an id without a meaning."""
        return self.vocabulary.token_bytes(token_id)

    def detokenizer(self, prompt_ids: Sequence[int]) -> Detokenizer:
        """A detokenizer for what follows the prompt."""
        return Detokenizer(self._tokenizer, prompt_ids, self._special_ids)

    @property
    def chat_template(self) -> str | None:
        """The template's text, which shows how the model writes calls and thoughts."""
        return self._chat_template

    @cached_property
    def opens_thoughts(self) -> bool:
        """Whether the template begins the answer inside `<think>`."""
        if self._template is None:
            return False
        try:
            prompt = self._template.render([ChatMessage("user", "x")], lambda text: text)
        except RequestError:
            return False
        return prompt.rstrip().endswith("<think>")

    def special_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """Those of these texts that are special tokens, which have no text in an answer."""
        found = {text: self._tokenizer.token_to_id(text) for text in texts}
        return {text: each for text, each in found.items() if each in self._special_ids}

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        previous: EncodedChat | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> EncodedChat:
        """Renders and encodes a conversation up to where the model answers.

        tools: see `ChatTemplate.render`.

        previous: the conversation so far with its answer (`EncodedChat.with_answer`). When the new
        rendering continues it, its ids are kept and only what is new is encoded, because encoding
        an answer's text need not give the ids that the model produced. Else, for example when the
        template drops earlier reasoning, everything is encoded anew.

        Raises RequestError when there is no template, no message, or the template refuses.
        """
        if self._template is None:
            raise RequestError(
                "this model has no chat template, so it takes no conversations, only raw prompts "
                "(completion.create on the socket, /v1/completions over HTTP)",
                field="input",
            )
        if not messages:
            raise RequestError("input is empty; it must hold at least one message", field="input")
        for message in messages:
            _require_unicode(message.content)
        rendered = self._template.render(messages, self._control.shield, tools=tools)
        text = self._control.alias(rendered)
        if previous is not None and previous.ids and text.startswith(previous.text):
            delta = self._control.encode(text[len(previous.text) :], continues=True)
            return EncodedChat((*self._without_end(previous.ids), *delta), text)
        return EncodedChat(tuple(self._control.encode(text)), text)

    def _without_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """An answer's end tokens are not in its text: the template writes its own."""
        end = len(ids)
        while end and ids[end - 1] in self.eos_token_ids:
            end -= 1
        return ids[:end]


def _prefix_ids(tokenizer: Tokenizer) -> list[int]:
    with_special: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    plain: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    for at in range(len(with_special) - len(plain) + 1):
        if with_special[at : at + len(plain)] == plain:
            return with_special[:at]
    return []


def _require_unicode(text: str, field: str = "input") -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds a lone surrogate at character {error.start}; it must be valid Unicode",
            field=field,
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def _content(token: object) -> str | None:
    """A special token is written as its text or as an object around it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _template_variables(*sources: dict[str, Any]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for source in sources:
        for name in _SPECIAL_NAMES:
            content = _content(source.get(name))
            if content is not None:
                variables.setdefault(name, content)
    return variables


def _complete(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Marks as special what only `tokenizer_config.json` calls so, without giving out new ids."""
    known = tokenizer.get_added_tokens_decoder()
    specs = [config.get(name) for name in _SPECIAL_NAMES]
    specs += [
        spec
        for spec in config.get("added_tokens_decoder", {}).values()
        if isinstance(spec, dict) and spec.get("special")
    ]
    names = {name for name in map(_content, specs) if name}
    ids = {name: tokenizer.token_to_id(name) for name in names}
    tokenizer.add_special_tokens(
        sorted(
            name for name, token_id in ids.items() if token_id is not None and token_id not in known
        )
    )


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or _read_json(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):  # several by name
        by_name = {entry.get("name"): entry.get("template") for entry in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _eos_token_ids(folder: Path, tokenizer: Tokenizer, eos_token: str | None) -> frozenset[int]:
    generation = _read_json(folder / "generation_config.json")
    declared = generation.get("eos_token_id")
    if declared is None:
        declared = _read_json(folder / "config.json").get("eos_token_id")
    ids = set(declared if isinstance(declared, list) else [declared])
    if eos_token is not None:
        ids.add(tokenizer.token_to_id(eos_token))
    return frozenset(token_id for token_id in ids if isinstance(token_id, int))


def _load_through_transformers(folder: Path, gguf_file: str | None, name: str) -> TextCodec:
    from paceline.model.foreign_tokenizer import load_foreign_tokenizer

    foreign = load_foreign_tokenizer(folder, gguf_file)
    return TextCodec(
        foreign.tokenizer,
        name=name,
        eos_token_ids=foreign.eos_token_ids
        or _eos_token_ids(folder, foreign.tokenizer, foreign.variables.get("eos_token")),
        chat_template=foreign.chat_template,
        template_variables=foreign.variables,
    )
