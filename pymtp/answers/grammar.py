"""The grammar of an answer: thinking, then text or calls of tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pymtp.answers import written
from pymtp.answers.free_text import FreeText
from pymtp.answers.marks import Mark, Marks
from pymtp.answers.parameters import Parameters
from pymtp.answers.tools import Tool
from pymtp.answers.value_rules import TextRules, ValueRules
from pymtp.pattern import quoted
from pymtp.rules import Rules
from pymtp.schema import Converter
from pymtp.schema_keywords import SchemaError, check_keywords

Thinking = Literal["begun", "may", "no"]  # whether the prompt has begun it, the model may, or may not

# Where one of these stands, a reader looks for a call.
_CALL, _FUNCTION = Mark(written.CALL), Mark("\n<function=")
_THOUGHT = Mark(written.THOUGHT)
_IN_TAG = re.compile(r"[^<>\n]+")


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
    if tools:
        function = _json_function(tools, rules) if is_json else _function(tools, rules)
        begins = '"\\n{\\"name\\": \\""' if is_json else '"\\n<function="'
        call = rules.rule(f'{begins} {function} "\\n{written.CALLED}"', "call")
        more = f'( "\\n{written.CALL}" {call} )*' if parallel else ""
        called = rules.rule(f"{call} {more}", "called")
        if schema is None and not required:
            bare = None if is_json else rules.rule(f'{function} "\\n{written.CALLED}" {more}', "bare")
            follows = {_CALL: called} | ({_FUNCTION: bare} if bare else {})
            text = FreeText(Marks([_CALL, _FUNCTION]), rules, "text", follows)
            ways.append(text.rule(text.begin("\n")))
        else:
            ways.append(f'"{written.CALL}" {called}')
    free = bool(tools) and schema is None and not required
    answer = rules.rule(" | ".join(ways), "answer")
    rules.says["root"] = answer
    if thinking == "begun" or (thinking == "may" and not free):
        behind = answer if free else rules.rule(f'"\\n\\n" {answer}', "answer")
        marks = Marks([_THOUGHT, _CALL, _FUNCTION] if tools else [_THOUGHT])
        thought = FreeText(marks, rules, "thought", {_THOUGHT: behind})
        begun = thought.rule(thought.begin("\n"), may_end=False)
        rules.says["root"] = begun if thinking == "begun" else f'{answer} | "{written.THINK}" {begun}'
    return rules.gbnf()


def _function(tools: Sequence[Tool], rules: Rules) -> str:
    """The name of the rule of a function in XML, behind `<function=`."""
    texts = TextRules(rules)
    return rules.rule(" | ".join(_named_function(tool, texts) for tool in tools), "function")


def _named_function(tool: Tool, texts: TextRules) -> str:
    values = ValueRules(tool.parameters, texts, strict=tool.strict)
    parameters = _parameters(tool)
    parts = []
    for name in parameters.names:
        required = name in parameters.required
        if not _IN_TAG.fullmatch(name):
            if required:
                raise SchemaError(f"{tool.name} requires a parameter {name!r:.80}, which cannot stand in a tag")
            continue
        value = values.value(parameters[name], f"{tool.name}/{name}")
        part = texts.rules.rule(rf'{quoted(f"<parameter={name}>")} "\n" {value} "\n</parameter>\n"', name)
        parts.append(part if required else f"{part}?")
    return texts.rules.rule(rf'{quoted(f"{tool.name}>")} "\n" {" ".join(parts)} "</function>"', tool.name)


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
    if parameters.schema.get("type", "object") != "object":
        raise SchemaError(f"{tool.name}: the parameters must be an object")
    check_keywords(dict[str, Any](parameters.schema), ["object"], tool.name)
    if missing := [name for name in parameters.required if name not in parameters]:
        raise SchemaError(f"{tool.name} requires {missing}, which 'properties' does not have")
    return parameters
