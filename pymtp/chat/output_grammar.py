"""The grammar of an answer: thinking, then text or calls of tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from itertools import combinations
from typing import Literal

from pymtp.chat import written
from pymtp.chat.free_text import FreeText
from pymtp.chat.tags import Mark
from pymtp.chat.tool_parameters import Parameters
from pymtp.chat.tools import Tool
from pymtp.chat.value_grammar import TextRules, ValueRules, followed
from pymtp.grammar.json_schema import Converter
from pymtp.grammar.keywords import SchemaError, check_keywords
from pymtp.grammar.regex import quoted
from pymtp.grammar.rules import Rules

Thinking = Literal["begun", "may", "no"]  # whether the prompt has begun it, the model may, or may not

# Where one of these stands, a reader looks for a call.
_CALL, _FUNCTION = Mark(written.CALL), Mark("\n<function=")
_THOUGHT = Mark(written.THOUGHT)
_BEHIND = "behind-thinking"  # the rule of an answer without its thinking, where the root has both
ANY_ORDER = 6  # parameters, at most: more come in the schema's order
_IN_TAG = re.compile(r"[^<>\n]+")


def behind_thinking(gbnf: str) -> str | None:
    """The grammar of what stands behind the thinking of an answer; None where GBNF is of no answers that may think."""
    if f"\n{_BEHIND} ::= " not in gbnf:
        return None
    return f"root ::= {_BEHIND}\n{gbnf.partition(chr(10))[2]}"


def answer_gbnf(
    tools: Sequence[Tool], schema: object, *, required: bool, parallel: bool, is_json: bool, thinking: Thinking
) -> str:
    """GBNF of answers. schema: of the content, None for any text. required: whether there must be a call. parallel:
    whether there may be several. is_json: whether calls are JSON. Raises SchemaError."""
    rules = Rules()
    rules.says["root"] = ""  # the first
    ways = []
    if schema is not None and not required:
        converter = Converter(schema, rules, None)
        ways.append(converter.part(schema, "#"))
        converter.finish()
    calls = _Calls(tools, rules, parallel=parallel, is_json=is_json) if tools else None
    free = calls is not None and schema is None and not required
    if calls is not None:
        ways.append(calls.text() if free else calls.calls)
    answer = rules.rule(" | ".join(ways), "answer")
    rules.says["root"] = answer
    if thinking == "begun" or (thinking == "may" and not free):
        behind = answer if free else rules.rule(f'"\\n\\n" {answer}', "answer")
        follows = {_THOUGHT: behind} | (calls.within_thought if calls else {})
        thought = FreeText(calls.never if calls else [], rules, "thought", follows)
        begun = thought.rule(thought.automaton.begin("\n"), may_end=False)
        rules.says["root"] = begun if thinking == "begun" else f'{answer} | "{written.THINK}" {begun}'
        rules.says[_BEHIND] = answer
    return rules.gbnf()


class _Calls:
    """The rules of calls. calls: the name of that of one or several, to the end of the answer. within_thought: what
    begins them within thinking, where `<tool_call>` alone may be spoken of, and the rules of what follows."""

    def __init__(self, tools: Sequence[Tool], rules: Rules, *, parallel: bool, is_json: bool) -> None:
        self._rules, self._is_json = rules, is_json
        function = _json_function(tools, rules) if is_json else _function(tools, rules)
        begins, rest = ("{", f'"\\"name\\": \\"" {function}') if is_json else ("<function=", function)
        more = (
            rules.rule(f'( "\\n{written.CALL}\\n{begins}" {rest} "\\n{written.CALLED}" )*', "more") if parallel else ""
        )
        self._rest = rules.rule(f'{rest} "\\n{written.CALLED}" {more}', "function")
        self._called = rules.rule(f'"\\n{begins}" {self._rest}', "called")
        self.calls = rules.rule(f'"{written.CALL}" {self._called}', "calls")
        self.within_thought = {Mark(f"{written.CALL} {begins}"): self._rest}
        # in the other form, for a reader takes either
        self.never = [Mark(f"{written.CALL} {'<function=' if is_json else '{'}"), _FUNCTION]

    def text(self) -> str:
        """The name of the rule of text with calls at its end, or without. A function whose <tool_call> was left out is
        a call, where calls are in XML."""
        follows = {_CALL: self._called} | ({} if self._is_json else {_FUNCTION: self._rest})
        text = FreeText([_FUNCTION], self._rules, "text", follows)
        return text.rule(text.automaton.begin("\n"))


def _function(tools: Sequence[Tool], rules: Rules) -> str:
    """The name of the rule of a function in XML, behind `<function=`."""
    texts = TextRules(rules)
    return rules.rule(" | ".join(_named_function(tool, texts) for tool in tools), "function")


def _named_function(tool: Tool, texts: TextRules) -> str:
    values = ValueRules(tool.parameters, texts, strict=tool.strict)
    parameters = _parameters(tool)
    parts = {}
    for name in parameters.names:
        if _IN_TAG.fullmatch(name):
            value = values.value(parameters[name], f"{tool.name}/{name}")
            parts[name] = texts.rules.rule(rf'{quoted(f"<parameter={name}>")} "\n" {value} "\n</parameter>\n"', name)
        elif name in parameters.required:
            raise SchemaError(f"{tool.name} requires a parameter {name!r:.80}, which cannot stand in a tag")
    required = frozenset(parameters.required)
    rest = _any_order(parts, required, texts.rules) if len(parts) <= ANY_ORDER else _in_order(parts, required)
    return texts.rules.rule(rf'{quoted(f"{tool.name}>")} "\n" {rest} "</function>"', tool.name)


def _in_order(parts: Mapping[str, str], required: Set[str]) -> str:
    return " ".join(part if name in required else f"{part}?" for name, part in parts.items())


def _any_order(parts: Mapping[str, str], required: Set[str], rules: Rules) -> str:
    """The name of the rule of each part once at most, in any order: a rule for each set of those that are left."""
    known: dict[frozenset[str], str] = {}
    for n in range(len(parts) + 1):
        for left in map(frozenset, combinations(parts, n)):
            ways = [f"{part} {known[left - {name}]}" for name, part in parts.items() if name in left]
            known[left] = rules.rule(" | ".join([*ways, *([] if required & left else ['""'])]), "parameters")
    return known[frozenset(parts)]


def _json_function(tools: Sequence[Tool], rules: Rules) -> str:
    """The name of the rule of a function in Hermes' form, behind the quote that its name begins with."""
    ways = []
    for tool in tools:
        values = ValueRules(tool.parameters, TextRules(rules), strict=tool.strict)
        arguments = values.json({**_parameters(tool).schema, "type": "object"}, tool.name)
        name = quoted(f'{tool.name}", "arguments": ')
        ways.append(rules.rule(f'{name} {arguments} "}}"', tool.name))
    return rules.rule(" | ".join(ways), "function")


def _parameters(tool: Tool) -> Parameters:
    """Those of a tool. Raises SchemaError for what cannot be, where the tool is strict."""
    parameters = Parameters(tool)
    if not tool.strict:
        return parameters
    schema = followed(tool.parameters, tool.parameters, tool.name)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise SchemaError(f"{tool.name}: the parameters must be an object")
    check_keywords(schema, ["object"], tool.name)
    if missing := [name for name in sorted(parameters.required) if name not in parameters]:
        raise SchemaError(f"{tool.name} requires {missing}, which 'properties' does not have")
    return parameters
