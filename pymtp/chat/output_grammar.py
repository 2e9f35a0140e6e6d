"""The grammar of an output: thinking, then content or tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from itertools import combinations
from typing import Literal

from pymtp.chat.qwen_tags import THINK_END_TAG, THINK_START, TOOL_CALL_END, TOOL_CALL_START
from pymtp.chat.tags import Tag
from pymtp.chat.text_grammar import TagFreeText
from pymtp.chat.tool_parameters import ToolParameters
from pymtp.chat.tools import Tool
from pymtp.chat.value_grammar import ParameterRules, StringRules, follow_refs
from pymtp.grammar.json_schema import SchemaConverter
from pymtp.grammar.keywords import SchemaError, check_keywords
from pymtp.grammar.regex import quoted
from pymtp.grammar.rules import Rules

# "begun": the prompt has opened the thinking. "may": the model may open the thinking. "no": the output has none.
ThinkingState = Literal["begun", "may", "no"]

# The tags at which the parser looks for a call.
_CALL, _FUNCTION = Tag(TOOL_CALL_START), Tag("\n<function=")
_AFTER_THINKING = "after-thinking"  # the rule for the output after the thinking, if the root rule has thinking
MAX_ANY_ORDER = 6  # parameters that a call may have in any order; more must be in the schema's order
_IN_TAG = re.compile(r"[^<>\n]+")  # a name that fits into a tag


def grammar_after_thinking(gbnf: str) -> str | None:
    """Return the grammar for the output after the thinking; None if the output of `gbnf` has no thinking."""
    if f"\n{_AFTER_THINKING} ::= " not in gbnf:
        return None
    return f"root ::= {_AFTER_THINKING}\n{gbnf.partition(chr(10))[2]}"


def output_gbnf(
    tools: Sequence[Tool], schema: object, *, required: bool, parallel: bool, is_json: bool, thinking: ThinkingState
) -> str:
    """Build the GBNF of an output.

    schema: the JSON schema of the content; None for any text.
    required: whether the output must have a call.
    parallel: whether the output may have several calls.
    is_json: whether calls are in Hermes' JSON form; otherwise they are in XML.

    Raises SchemaError for a schema that no grammar can express.
    """
    rules = Rules()
    rules.bodies["root"] = ""  # takes the first place: the root rule must be the first line, see grammar_after_thinking
    alternatives = []
    if schema is not None and not required:
        converter = SchemaConverter(schema, rules, None)
        alternatives.append(converter.rule_for(schema, "#"))
        converter.finish()
    calls = _CallRules(tools, rules, parallel=parallel, is_json=is_json) if tools else None
    free = calls is not None and schema is None and not required
    if calls is not None:
        alternatives.append(calls.text() if free else calls.calls)
    answer = rules.rule(" | ".join(alternatives), "answer")
    rules.bodies["root"] = answer
    if thinking == "begun" or (thinking == "may" and not free):
        after_thinking = answer if free else rules.rule(f'"\\n\\n" {answer}', "answer")
        ends = {THINK_END_TAG: after_thinking} | (calls.tags_within_thinking if calls else {})
        begun = TagFreeText(ends, rules, "thought", may_end=False).rule()
        rules.bodies["root"] = begun if thinking == "begun" else f'{answer} | "{THINK_START}" {begun}'
        rules.bodies[_AFTER_THINKING] = answer
    return rules.gbnf()


class _CallRules:
    """The grammar rules for tool calls.

    calls: name of the rule for one or several calls, up to the end of the output.
    tags_within_thinking: for each tag that begins a call within the thinking, the rule for the rest of the call; None
        for tags of the form that is not used, which the thinking must not contain, because the parser parses calls in
        both forms. The tag `<tool_call>` alone is no beginning there, because a model may think about calls.
    """

    def __init__(self, tools: Sequence[Tool], rules: Rules, *, parallel: bool, is_json: bool) -> None:
        self._rules, self._is_json = rules, is_json
        function = _json_function(tools, rules) if is_json else _xml_function(tools, rules)
        begins, rest = ("{", f'"\\"name\\": \\"" {function}') if is_json else ("<function=", function)
        more = (
            rules.rule(f'( "\\n{TOOL_CALL_START}\\n{begins}" {rest} "\\n{TOOL_CALL_END}" )*', "more")
            if parallel
            else ""
        )
        self._rest = rules.rule(f'{rest} "\\n{TOOL_CALL_END}" {more}', "function")
        self._after_call_start = rules.rule(f'"\\n{begins}" {self._rest}', "called")
        self.calls = rules.rule(f'"{TOOL_CALL_START}" {self._after_call_start}', "calls")
        self.tags_within_thinking: dict[Tag, str | None] = {
            Tag(f"{TOOL_CALL_START} {begins}"): self._rest,
            Tag(f"{TOOL_CALL_START} {'<function=' if is_json else '{'}"): None,
            _FUNCTION: None,
        }

    def text(self) -> str:
        """Return the name of the rule for text that may end with calls.

        If calls are in XML, `<function=` without `<tool_call>` also begins a call.
        """
        tags = {_CALL: self._after_call_start, _FUNCTION: None if self._is_json else self._rest}
        return TagFreeText(tags, self._rules, "text").rule()


def _xml_function(tools: Sequence[Tool], rules: Rules) -> str:
    """Return the name of the rule for an XML call of one of the tools, without the leading `<function=`."""
    strings = StringRules(rules)
    return rules.rule(" | ".join(_xml_tool(tool, strings) for tool in tools), "function")


def _xml_tool(tool: Tool, strings: StringRules) -> str:
    values = ParameterRules(tool.parameters, strings, strict=tool.strict)
    parameters = _tool_parameters(tool)
    parts = {}
    for name in parameters.names:
        if _IN_TAG.fullmatch(name):
            value = values.value(parameters[name], f"{tool.name}/{name}")
            parts[name] = strings.rules.rule(rf'{quoted(f"<parameter={name}>")} "\n" {value} "\n</parameter>\n"', name)
        elif name in parameters.required:
            raise SchemaError(f"{tool.name} requires a parameter {name!r:.80}, a name that does not fit into a tag")
    required = frozenset(parameters.required)
    rest = _any_order(parts, required, strings.rules) if len(parts) <= MAX_ANY_ORDER else _in_order(parts, required)
    return strings.rules.rule(rf'{quoted(f"{tool.name}>")} "\n" {rest} "</function>"', tool.name)


def _in_order(parts: Mapping[str, str], required: Set[str]) -> str:
    return " ".join(part if name in required else f"{part}?" for name, part in parts.items())


def _any_order(parts: Mapping[str, str], required: Set[str], rules: Rules) -> str:
    """Return the name of the rule for the parts in any order, each at most once.

    Adds a rule for each set of parts that may still follow.
    """
    known: dict[frozenset[str], str] = {}
    for n in range(len(parts) + 1):
        for left in map(frozenset, combinations(parts, n)):
            alternatives = [f"{part} {known[left - {name}]}" for name, part in parts.items() if name in left]
            known[left] = rules.rule(" | ".join([*alternatives, *([] if required & left else ['""'])]), "parameters")
    return known[frozenset(parts)]


def _json_function(tools: Sequence[Tool], rules: Rules) -> str:
    """Return the name of the rule for a call of one of the tools in Hermes' form, from the tool's name on."""
    alternatives = []
    for tool in tools:
        values = ParameterRules(tool.parameters, StringRules(rules), strict=tool.strict)
        arguments = values.json({**_tool_parameters(tool).schema, "type": "object"}, tool.name)
        name = quoted(f'{tool.name}", "arguments": ')
        alternatives.append(rules.rule(f'{name} {arguments} "}}"', tool.name))
    return rules.rule(" | ".join(alternatives), "function")


def _tool_parameters(tool: Tool) -> ToolParameters:
    """Return the parameters of a tool. Raises SchemaError for a strict tool whose schema no grammar can express."""
    parameters = ToolParameters(tool)
    if not tool.strict:
        return parameters
    schema = follow_refs(tool.parameters, tool.parameters, tool.name)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise SchemaError(f"{tool.name}: the parameters must be an object")
    check_keywords(schema, ["object"], tool.name)
    if missing := [name for name in sorted(parameters.required) if name not in parameters]:
        raise SchemaError(f"{tool.name} requires {missing}, which 'properties' does not have")
    return parameters
