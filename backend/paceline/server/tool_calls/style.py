"""How one model writes: its calls, its thoughts, and the markers that have no text of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from paceline.core.request import GrammarKind
from paceline.server.formats import Format, check_schema_size
from paceline.server.tool_calls.calls import CallParser
from paceline.server.tool_calls.dialects import DIALECTS, GENERIC, MARKERS, Dialect, dialect_of
from paceline.server.tool_calls.grammars import tools_grammar
from paceline.server.tool_calls.pieces import PlainText
from paceline.server.tool_calls.reasoning import OPENING, ReasoningParser
from paceline_protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.core.events import CommittedToken
    from paceline.server.prompts import TargetCodec
    from paceline.server.tool_calls.pieces import OutputParser
    from paceline.server.tool_calls.tools import Tools


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """has_thoughts: answers may begin with `<think>`; opens_thoughts: they begin inside it.
    marker_ids: markers that are special tokens."""

    dialect: Dialect = GENERIC
    has_thoughts: bool = False
    opens_thoughts: bool = False
    marker_ids: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, codec: TargetCodec) -> Self:
        """The style that a model's chat template shows."""
        template = codec.chat_template
        return cls(
            dialect_of(template),
            has_thoughts=template is not None and OPENING in template,
            opens_thoughts=codec.opens_thoughts,
            marker_ids=codec.special_ids(sorted(MARKERS)),
        )

    def chosen_by(self, dialect: str | None) -> AnswerStyle:
        """The same with another dialect, if a request names one."""
        return self if dialect is None else replace(self, dialect=DIALECTS[dialect])

    def text_of(self, tokens: Sequence[CommittedToken]) -> str:
        """The text of committed tokens, with that of markers put back."""
        if not self.marker_ids:
            return "".join(token.text for token in tokens)
        by_id = {token_id: text for text, token_id in self.marker_ids.items()}
        return "".join(by_id.get(token.token_id, "") + token.text for token in tokens)

    def parser(self, tools: Tools | None, *, has_form: bool) -> OutputParser:
        """has_form: a grammar leaves no room for thoughts."""
        calls: OutputParser = PlainText()
        if tools is not None:
            calls = CallParser(self.dialect, tools.callable_names)
        is_bound = has_form or (tools is not None and tools.is_required)
        if not self.has_thoughts or is_bound:
            return calls
        return ReasoningParser(calls, is_open=self.opens_thoughts)

    def form(self, tools: Tools | None, form: Format | None) -> Format | None:
        """The grammar of answers and calls together. Raises ProtocolError where they cannot be."""
        if tools is None:
            return form
        if form is not None and form.grammar.kind is not GrammarKind.JSON_SCHEMA:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE,
                f"{form.param} cannot stand beside tools; only JSON formats can",
                param=form.param,
            )
        otherwise = None if form is None or tools.is_required else form.grammar.text
        grammar = tools_grammar(tools, self.dialect, self.marker_ids, otherwise)
        if grammar is None:
            return None
        schemas = [dict(each.parameters) for each in tools.callable_functions]
        check_schema_size(len(grammar.text), schemas, "tools")
        return Format(grammar, "tools")
