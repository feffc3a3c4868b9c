"""Chat messages to one prompt string, by the model's own Jinja template.

Templates come with model folders, so they are foreign code: they run in Jinja's immutable sandbox
and see plain strings only. Knows nothing about token ids.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2 import meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.core.errors import ModelError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ChatToolCall:
    """A call of a function in an earlier answer. arguments: JSON text, or what was meant to be."""

    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    role: `system`, `developer` (shown to the template as `system`), `user`, `assistant` or `tool`.
    content: its text, shown to the model as text whatever characters it holds.
    tool_call_id, name: for `tool` messages, as far as the template knows them.
    tool_calls: of an `assistant` message, behind its content.
    """

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ChatToolCall, ...] = ()


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
    """A compiled chat template. Thread-safe; rendering is CPU work: keep it off an event loop.

    knows_tools: it has a form of its own for tools and their calls; for one that has not they are
    written out as text.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """source: the template. variables: what it may name beside the messages (`bos_token` ...).

        Raises ModelError for a template that is not valid Jinja.
        """
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the chat template is not valid Jinja: {error}") from error
        self.knows_tools = "tools" in names
        # Mistral's templates take only ids of nine letters and digits.
        self._has_short_ids = "length" in source and "!= 9" in source
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[ChatMessage],
        shield: Callable[[str], str],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt; every string of a message or a tool goes through `shield` first.

        tools: functions that may be called, as `{"type": "function", "function": {...}}`.

        Raises RequestError when the template refuses the messages (an order or a role that the
        model was not trained on), with the template's own words.
        """
        if not self.knows_tools:
            messages = tools_as_text(messages, tools)
        plain: list[dict[str, Any]] = []
        for message in messages:
            role = "system" if message.role == "developer" else message.role
            fields: dict[str, Any] = {"role": shield(role), "content": shield(message.content)}
            if message.name is not None:
                fields["name"] = shield(message.name)
            if message.tool_call_id is not None:
                fields["tool_call_id"] = shield(self._call_id(message.tool_call_id))
            if message.tool_calls:
                fields["tool_calls"] = [self._call(each, shield) for each in message.tool_calls]
            plain.append(fields)
        try:
            return self._template.render(
                **self._variables,
                messages=plain,
                tools=_shielded(list(tools), shield) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", field="input"
            ) from error

    def _call(self, call: ChatToolCall, shield: Callable[[str], str]) -> dict[str, Any]:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = call.arguments
        function = {"name": shield(call.name), "arguments": _shielded(arguments, shield)}
        return {"type": "function", "id": shield(self._call_id(call.call_id)), "function": function}

    def _call_id(self, call_id: str) -> str:
        if not self._has_short_ids or (len(call_id) == 9 and call_id.isalnum()):
            return call_id
        return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:9]


def tools_as_text(
    messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]
) -> list[ChatMessage]:
    """The same conversation for a template without tools: the functions stand in the system
    message, and calls are text in the form that it asks for."""
    plain = [
        replace(message, content=_with_calls(message), tool_calls=())
        if message.tool_calls
        else message
        for message in messages
    ]
    if not tools:
        return plain
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    told = _TOOLS_TEXT.format(functions="\n".join(lines))
    if plain and plain[0].role in ("system", "developer"):
        return [replace(plain[0], content=f"{plain[0].content}\n\n{told}"), *plain[1:]]
    return [ChatMessage("system", told), *plain]


_TOOLS_TEXT = """You can call these functions, one JSON description a line:
{functions}
To call one, write its name and its arguments like this, and wait for the result:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


def _with_calls(message: ChatMessage) -> str:
    parts = [message.content, *map(_call_text, message.tool_calls)]
    return "\n".join(part for part in parts if part)


def _call_text(call: ChatToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>'


def _shielded(value: Any, shield: Callable[[str], str]) -> Any:
    """The same value with every string in it, keys too, shielded."""
    if isinstance(value, str):
        return shield(value)
    if isinstance(value, dict):
        return {shield(str(key)): _shielded(each, shield) for key, each in value.items()}
    if isinstance(value, list):
        return [_shielded(each, shield) for each in value]
    return value


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
