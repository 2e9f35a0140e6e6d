"""How one answer is written, as a grammar, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pymtp.chat import written
from pymtp.chat.output_grammar import Thinking, answer_gbnf
from pymtp.chat.output_parser import AnswerReader
from pymtp.chat.tools import NamedTool, Tool, ToolChoice, check_names
from pymtp.errors import InvalidRequestError
from pymtp.grammar.json_schema import MAX_TEXT, schema_text
from pymtp.grammar.keywords import SchemaError


class AnswerFormat:
    """How the answer to a prompt is written, and read back.

    gbnf: the grammar that holds a text to it, for SamplingParams; None where any text may come.
    """

    def __init__(
        self,
        template: str | None,
        prompt_end: str,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice = "auto",
        parallel: bool = True,
        schema: Mapping[str, Any] | None = None,
        splits_thinking: bool = True,
    ) -> None:
        """template: the Jinja source of the chat template, which says how calls are written: as JSON where it has
        `<tool_call>` and not `<function=`, otherwise in XML. prompt_end: the last characters of the prompt, which may
        have begun the thinking.
        tools: those that the prompt offers. tool_choice: "auto" for text or calls, "required" for calls, a NamedTool
            for calls of this one, "none" for text. parallel: whether there may be several calls.
        schema: of the content, as JSON, where there is any.
        splits_thinking: whether thinking is told apart from content.

        Raises InvalidRequestError for tools that cannot be called, and a schema that no text can be held to.
        """
        check_names(tools)
        if isinstance(tool_choice, NamedTool):
            named = tuple(tool for tool in tools if tool.name == tool_choice.name)
            if not named:
                raise InvalidRequestError(f"tool_choice names {tool_choice.name!r:.80}, which is none of the tools")
            tools, tool_choice = named, "required"
        if tool_choice not in ("auto", "none", "required"):
            raise InvalidRequestError(f"tool_choice must be auto, none, required or a tool, not {tool_choice!r:.80}")
        if tool_choice == "required" and not tools:
            raise InvalidRequestError("tool_choice is required, and there are no tools to call", "tool_choice")
        self._tools = () if tool_choice == "none" else tuple(tools)
        self._splits_thinking, self._json_content = splits_thinking, schema is not None
        ends = prompt_end.rstrip()
        self._thinking = ends.endswith(written.THINK)
        may_think = written.THINK in (template or "") and not ends.endswith(written.THOUGHT)
        self.gbnf: str | None = None
        if self._tools or schema is not None:
            self.gbnf = _gbnf(
                json.dumps([[tool.name, tool.parameters, tool.strict] for tool in self._tools]),
                None if schema is None else schema_text(schema),
                tool_choice == "required",
                parallel,
                is_json=written.CALL in (template or "") and "<function=" not in (template or ""),
                thinking="begun" if self._thinking else "may" if may_think else "no",
            )

    def reader(self) -> AnswerReader:
        """A reader of one such answer."""
        return AnswerReader(
            self._tools,
            thinking=self._thinking,
            splits_thinking=self._splits_thinking,
            json_content=self._json_content,
        )


@lru_cache(maxsize=32)  # an agent's requests have the same tools, one after the other
def _gbnf(tools: str, schema: str | None, required: bool, parallel: bool, *, is_json: bool, thinking: Thinking) -> str:
    try:
        grammar = answer_gbnf(
            [Tool(name, parameters=parameters, strict=strict) for name, parameters, strict in json.loads(tools)],
            None if schema is None else json.loads(schema),
            required=required,
            parallel=parallel,
            is_json=is_json,
            thinking=thinking,
        )
    except (SchemaError, RecursionError) as error:
        raise InvalidRequestError(str(error)) from error
    if len(grammar) > MAX_TEXT:
        raise InvalidRequestError(f"the schemas come to a grammar of more than {MAX_TEXT} characters")
    return grammar
