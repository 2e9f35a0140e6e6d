"""The format of one output: the grammar that constrains the output, and the parser for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pymtp.chat.output_events import ParsedOutput
from pymtp.chat.output_grammar import ThinkingState, output_grammar
from pymtp.chat.output_parser import OutputParser
from pymtp.chat.prompt import CacheKey
from pymtp.chat.qwen_tags import THINK_END, THINK_START, TOOL_CALL_START
from pymtp.chat.tools import NamedTool, Tool, ToolChoice, check_names
from pymtp.errors import InvalidRequestError
from pymtp.grammar.json_schema import MAX_TEXT, SchemaGrammar, schema_text
from pymtp.grammar.keywords import SchemaError


class OutputFormat:
    """The format of the output that follows a prompt.

    gbnf: the grammar for SamplingParams; None where any text is allowed.
    needs_distinct_calls: whether the output must end before a call that it already has (SamplingParams.distinct_calls).
        Otherwise a small model that may only write calls repeats one call until its limit of tokens.
    left_out: the places of the keywords in schemas that the grammar does not hold to: "#/properties/a/uniqueItems" in
        the schema of the content, "tools/NAME/PARAMETER/uniqueItems" in those of tools.
    """

    def __init__(
        self,
        template: str | None,
        prompt_end: str,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        schema: Mapping[str, Any] | None = None,
        strict_schema: bool = True,
        separate_reasoning: bool = True,
        cache_key: CacheKey | None = ("", ""),
    ) -> None:
        """Build the format.

        template: the Jinja source of the chat template, which decides the form of calls: JSON where it holds
            `<tool_call>` and not `<function=`, otherwise XML.
        prompt_end: the last characters of the prompt, which show whether the prompt opens the thinking.
        tools: the tools that the prompt offers.
        tool_choice: "auto" allows text and calls, "required" only calls, a NamedTool only one call of that tool, "none"
            only text.
        parallel_tool_calls: whether the output may have several calls.
        schema: the JSON schema of the content, if there is one.
        strict_schema: whether a keyword of the schema that no grammar can express is refused; otherwise it is left out.
        separate_reasoning: whether the parser separates reasoning from content.
        cache_key: only grammars under the same key are reused, so that times tell nothing about the tools of others;
            None: none is reused, and none is kept.

        Raises InvalidRequestError for tools that cannot be called, and for a schema that no grammar can express.
        """
        check_names(tools)
        if isinstance(tool_choice, NamedTool):
            named = tuple(tool for tool in tools if tool.name == tool_choice.name)
            if not named:
                raise InvalidRequestError(f"tool_choice names {tool_choice.name!r:.80}, which is none of the tools")
            tools, tool_choice, parallel_tool_calls = named, "required", False
        if tool_choice not in ("auto", "none", "required"):
            raise InvalidRequestError(f"tool_choice must be auto, none, required or NamedTool, not {tool_choice!r:.80}")
        if tool_choice == "required" and not tools:
            raise InvalidRequestError("tool_choice is required, and there are no tools to call", "tool_choice")
        self._tools = () if tool_choice == "none" else tuple(tools)
        self._separate_reasoning, self._json_content = separate_reasoning, schema is not None
        end = prompt_end.rstrip()
        self._thinking = end.endswith(THINK_START)
        may_think = THINK_START in (template or "") and not end.endswith(THINK_END)
        self.needs_distinct_calls = tool_choice == "required" and parallel_tool_calls
        self.gbnf: str | None = None
        self.left_out: tuple[str, ...] = ()
        if self._tools or schema is not None:
            make_grammar = _grammar.__wrapped__ if cache_key is None else _grammar
            self.gbnf, self.left_out = make_grammar(
                cache_key,
                json.dumps([[tool.name, tool.parameters, tool.strict] for tool in self._tools]),
                None if schema is None else schema_text(schema),
                tool_choice == "required",
                parallel_tool_calls,
                strict=strict_schema,
                is_json=TOOL_CALL_START in (template or "") and "<function=" not in (template or ""),
                thinking="begun" if self._thinking else "may" if may_think else "no",
            )

    def parse(self, text: str) -> ParsedOutput:
        """Parse a whole output."""
        parser = self.parser()
        parser.push(text)
        parser.finish()
        return parser.output

    def parser(self) -> OutputParser:
        """Return a new parser for one output in this format."""
        return OutputParser(
            self._tools,
            thinking=self._thinking,
            separate_reasoning=self._separate_reasoning,
            json_content=self._json_content,
        )


@lru_cache(maxsize=32)  # an agent sends the same tools with each of its requests
def _grammar(
    cache_key: CacheKey | None,
    tools: str,
    schema: str | None,
    required: bool,
    parallel: bool,
    *,
    strict: bool,
    is_json: bool,
    thinking: ThinkingState,
) -> SchemaGrammar:
    try:
        grammar = output_grammar(
            [Tool(name, parameters=parameters, strict=strict) for name, parameters, strict in json.loads(tools)],
            None if schema is None else json.loads(schema),
            strict=strict,
            required=required,
            parallel=parallel,
            is_json=is_json,
            thinking=thinking,
        )
    except (SchemaError, RecursionError) as error:
        raise InvalidRequestError(str(error)) from error
    if len(grammar.gbnf) > MAX_TEXT:
        raise InvalidRequestError(f"the grammar for the schemas has more than {MAX_TEXT} characters")
    return grammar
