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
from pymtp.chat.value_grammar import ParameterRules, StringRules
from pymtp.grammar.characters import quoted
from pymtp.grammar.json_schema import SchemaConverter, SchemaGrammar
from pymtp.grammar.keywords import ANNOTATIONS, KeywordReport, SchemaError
from pymtp.grammar.rules import Rules

# "begun": the prompt has opened the thinking. "may": the model may open the thinking. "no": the output has none.
ThinkingState = Literal["begun", "may", "no"]

# The tags at which the parser looks for a call.
_CALL, _FUNCTION = Tag(TOOL_CALL_START), Tag("\n<function=")
_AFTER_THINKING = "after-thinking"  # the rule for the output after the thinking, if the root rule has thinking
MAX_ANY_ORDER = 6  # parameters that a call may have in any order; more must be in the schema's order
# Keywords of a tool's parameters that a call holds to: it has no other parameters than those in `properties`.
_PARAMETER_KEYWORDS = {"type", "properties", "required", "additionalProperties", "unevaluatedProperties"}
_PARAMETER_KEYWORDS |= {"patternProperties", "propertyNames"}
_IN_TAG = re.compile(r"[^<>\n]+")  # a name that fits into a tag


def grammar_after_thinking(gbnf: str) -> str | None:
    """Return the grammar for the output after the thinking; None if the output of `gbnf` has no thinking."""
    if f"\n{_AFTER_THINKING} ::= " not in gbnf:
        return None
    return f"root ::= {_AFTER_THINKING}\n{gbnf.partition(chr(10))[2]}"


def output_grammar(
    tools: Sequence[Tool],
    schema: object,
    *,
    strict: bool,
    required: bool,
    parallel: bool,
    is_json: bool,
    thinking: ThinkingState,
) -> SchemaGrammar:
    """Build the grammar of an output.

    schema: the JSON schema of the content; None for any text.
    strict: whether a keyword of the schema that no grammar can express is refused; otherwise it is left out.
    required: whether the output must have a call.
    parallel: whether the output may have several calls.
    is_json: whether calls are in Hermes' JSON form; otherwise they are in XML.

    Raises SchemaError for a schema that no grammar can express.
    """
    rules, left_out = Rules(), list[str]()
    rules.bodies["root"] = ""  # takes the first place: the root rule must be the first line, see grammar_after_thinking
    alternatives = []
    if schema is not None and not required:
        converter = SchemaConverter(schema, rules, "strict" if strict else "weaken")
        alternatives.append(converter.rule_for(schema, "#"))
        converter.finish()
        left_out += converter.report.names
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
    return SchemaGrammar(rules.gbnf(), (*left_out, *(calls.left_out if calls else ())))


class _CallRules:
    """The grammar rules for tool calls.

    calls: name of the rule for one or several calls, up to the end of the output.
    left_out: the places of the keywords in the tools' schemas that the rules do not hold to.
    tags_within_thinking: for each tag that begins a call within the thinking, the rule for the rest of the call; None
        for tags of the form that is not used, which the thinking must not contain, because the parser parses calls in
        both forms. The tag `<tool_call>` alone is no beginning there, because a model may think about calls.
    """

    def __init__(self, tools: Sequence[Tool], rules: Rules, *, parallel: bool, is_json: bool) -> None:
        self._rules, self._is_json = rules, is_json
        self.left_out: list[str] = []
        function = self._json_function(tools) if is_json else self._xml_function(tools)
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

    def _xml_function(self, tools: Sequence[Tool]) -> str:
        """Return the name of the rule for an XML call of one of the tools, without the leading `<function=`."""
        strings = StringRules(self._rules)
        return self._rules.rule(" | ".join(self._xml_tool(tool, strings) for tool in tools), "function")

    def _xml_tool(self, tool: Tool, strings: StringRules) -> str:
        values = ParameterRules(tool.parameters, strings, strict=tool.strict)
        parameters = _tool_parameters(tool, values.report)
        parts = {}
        for name in parameters.names:
            if _IN_TAG.fullmatch(name):
                value = values.value(parameters[name], f"{tool.name}/{name}")
                parts[name] = strings.rules.rule(
                    rf'{quoted(f"<parameter={name}>")} "\n" {value} "\n</parameter>\n"', name
                )
            elif name in parameters.required:
                raise SchemaError(f"{tool.name} requires a parameter {name!r:.80}, a name that does not fit into a tag")
        self.left_out += [f"tools/{place}" for place in values.report.names]
        required = frozenset(parameters.required)
        rest = _any_order(parts, required, strings.rules) if len(parts) <= MAX_ANY_ORDER else _in_order(parts, required)
        return strings.rules.rule(rf'{quoted(f"{tool.name}>")} "\n" {rest} "</function>"', tool.name)

    def _json_function(self, tools: Sequence[Tool]) -> str:
        """Return the name of the rule for a call of one of the tools in Hermes' form, from the tool's name on."""
        alternatives = []
        for tool in tools:
            values = ParameterRules(tool.parameters, StringRules(self._rules), strict=tool.strict)
            _tool_parameters(tool, KeywordReport("lenient"))  # refuses a strict tool that no call can fulfil
            arguments = values.json({**tool.parameters, "type": "object"}, tool.name)
            name = quoted(f'{tool.name}", "arguments": ')
            alternatives.append(self._rules.rule(f'{name} {arguments} "}}"', tool.name))
            self.left_out += [f"tools/{place}" for place in values.report.names]
        return self._rules.rule(" | ".join(alternatives), "function")


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


def _tool_parameters(tool: Tool, report: KeywordReport) -> ToolParameters:
    """Return the parameters of a tool, and report the keywords of its arguments that a call in XML does not hold to.

    Raises SchemaError for a strict tool whose schema no grammar can express.
    """
    parameters = ToolParameters(tool)
    for keyword in sorted((parameters.schema.keys() - ANNOTATIONS - _PARAMETER_KEYWORDS) | parameters.combining):
        report.leave_out(tool.name, keyword, "it is about several parameters")
    if not tool.strict:
        return parameters
    if parameters.schema.get("type", "object") != "object":
        raise SchemaError(f"{tool.name}: the parameters must be an object")
    if missing := [name for name in sorted(parameters.required) if name not in parameters]:
        raise SchemaError(f"{tool.name} requires {missing}, which 'properties' does not have")
    return parameters
