"""Tests of the tools that a request offers: malformed tools are refused, unsupported schemas are not."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from helpers.gbnf_texts import RandomTexts, grammar_allows, read_gbnf

from pymtp import LLM, InvalidRequestError
from pymtp.chat import NamedTool, OutputFormat, Tool, read_tools, text_grammar


def function(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def test_read_tools_takes_openais_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert read_tools([function(schema, description="d", strict=True)]) == (Tool("f", "d", schema, True),)
    assert read_tools([{"function": {"name": "f", "description": None, "strict": None}}]) == (Tool("f"),)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ("f", "must be a list"),
        (["f"], "tools\\[0\\] must be"),
        ([{"type": "web_search"}], "web_search"),
        ([{"type": "function"}], "tools\\[0\\].function"),
        ([{"type": "function", "function": {"name": 3}}], "name"),
        ([function({}, strict="yes")], "strict"),
        ([function({}, description=3)], "description"),
        ([function([])], "parameters must be a JSON schema"),
        ([function({"const": {1}})], "tools\\[0\\].*JSON"),
        ([function({}), function({})], "two tools have the name 'f'"),
        ([{"function": {"name": f"f{i}"}} for i in range(1025)], "at most 1024"),
        *(
            ([{"function": {"name": name}}], "not allowed as the name")
            for name in ("", "a b", "a>", "a\n", "<a", 'a"', "a" * 257)
        ),
    ],
)
def test_read_tools_refuses_malformed_tools(tools: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"(?s){reason}"):
        read_tools(tools)


@pytest.mark.parametrize(
    ("choice", "tools", "reason"),
    [
        (NamedTool("g"), [Tool("f")], "'g', which is none of the tools"),
        ("required", [], "there are no tools"),
        ("any", [Tool("f")], "tool_choice must be"),
        ("auto", [Tool("f"), Tool("f")], "two tools"),
        ("auto", [Tool("a b")], "not allowed as the name"),
        ("auto", [function({})], "must be a Tool, as read_tools returns it"),
    ],
)
def test_impossible_tools_and_tool_choices_are_refused(choice: Any, tools: list[Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        OutputFormat(None, "", tools=tools, tool_choice=choice)


# Schemas of published tools, each with a value that the grammar must allow, and a value that it must not allow: None if
# it allows every value.
UNUSUAL_SCHEMAS: dict[str, tuple[Any, str, str | None]] = {
    "a format": ({"type": "string", "format": "uri", "maxLength": 3}, "a:b", "a:bc"),
    "a pattern within": ({"type": "string", "pattern": "a", "minLength": 2}, "xa", "xx"),
    "looking ahead": ({"type": "string", "pattern": "^(?=a).b$"}, "ab", "bb"),
    "looking back": ({"type": "string", "pattern": "(?<=a)b$"}, "x", None),
    "bounds of a number": ({"type": "number", "minimum": 0, "multipleOf": 0.5}, "7.5", "7.25"),
    "integers that cannot be": ({"type": "integer", "minimum": 5, "maximum": 3}, "7", "x"),
    "not": ({"type": "integer", "not": {"const": 3}, "if": {}, "then": {}}, "7", "3"),
    "not a list": ({"type": "array", "not": {"contains": {}}}, "[7]", "x"),
    "items of each kind": (
        {"type": "array", "uniqueItems": True, "contains": {}, "items": {"type": "null"}},
        "[null]",
        "[1]",
    ),
    "so many items": ({"type": "array", "minItems": 5000, "items": {"type": "null"}}, "[]", "x"),
    "names by pattern": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "patternProperties": {}},
        '{"a": null}',
        "[]",
    ),
    "required, not there": ({"type": "object", "required": ["a"]}, '{"a": 1}', "{}"),
    "any of several beside properties": (
        {"properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        '{"a": null}',
        "[]",
    ),
    "all of one": ({"allOf": [{"$ref": "#/$defs/n"}], "description": "n"}, "7", "x"),
    "all of several": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "7", "2"),
    "an unknown type": ({"type": "any"}, "x", None),
    "a type that no schema has": ({"type": "float", "description": "d"}, "7.5", None),
    "a reference elsewhere": ({"$ref": "https://example.org/schema"}, "x", None),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "x", None),
    "a reference to itself": ({"$ref": "#/$defs/loop"}, "x", None),
    "true": (True, "x", None),
    "no schema": (["string"], "x", None),
    "an empty enum": ({"type": "integer", "enum": []}, "7", "x"),
    "an enum of another type": ({"type": "integer", "enum": ["a"]}, "7", "x"),
    "an enum of what no tag holds": ({"enum": ["\n<parameter=a>", "b"]}, "b", "c"),
    "a nullable": ({"type": "string", "nullable": True, "default": None, "examples": ["a"], "maxLength": 1}, "a", "ab"),
    "a very long string": ({"type": "string", "maxLength": 10**9}, "\n<" + "a" * 3000, None),
    "types, one unknown": ({"type": ["integer", "file"]}, "7", "x"),
    "a list of items": ({"type": "array", "items": [{"type": "null"}]}, "[null]", "[1]"),
    "bad bounds of a string": ({"type": "string", "minLength": "3"}, "a", None),
}


@pytest.mark.parametrize("case", UNUSUAL_SCHEMAS)
def test_tool_schema_is_followed_as_far_as_a_grammar_can(case: str) -> None:
    schema, right, wrong = UNUSUAL_SCHEMAS[case]
    defs = {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    tool = Tool("f", "", {"properties": {"a": schema}, "$defs": defs, "required": ["a"]})
    output_format = OutputFormat(None, "", tools=[tool], tool_choice="required")
    assert output_format.gbnf is not None
    rules = read_gbnf(output_format.gbnf)
    text = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert grammar_allows(rules, text.format(right))
    assert wrong is None or not grammar_allows(rules, text.format(wrong))


@pytest.mark.parametrize(
    "case", ["looking back", "not a list", "items of each kind", "an unknown type", "a reference to nothing"]
)
def test_strict_tool_is_refused_if_no_grammar_can_express_its_schema(case: str) -> None:
    tool = Tool("f", "", {"properties": {"a": UNUSUAL_SCHEMAS[case][0]}}, strict=True)
    with pytest.raises(InvalidRequestError, match="f/a"):
        OutputFormat(None, "", tools=[tool])


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "string"},
        {"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"a": {"type": "null"}}, "required": ["a"]}}},
        {"properties": "none", "required": "all"},
        {"properties": {"a<b": {}, "a\nb": {}}},
    ],
)
@pytest.mark.parametrize("template", [None, "<tool_call>"])
def test_tool_with_any_form_of_parameters_can_be_called(llm: LLM, parameters: Any, template: str | None) -> None:
    output_format = OutputFormat(template, "", tools=[Tool("f", "", parameters)], tool_choice="required")
    assert output_format.gbnf is not None
    with llm.model.grammar(output_format.gbnf):
        pass
    for seed in range(3):
        parser = output_format.parser()
        parser.push(RandomTexts(read_gbnf(output_format.gbnf)).sample(Random(seed)))
        parser.finish()
        for call in parser.output.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)


def test_required_parameter_whose_name_does_not_fit_into_a_tag_is_refused() -> None:
    tool = Tool("f", "", {"properties": {"a>": {}}, "required": ["a>"]})
    with pytest.raises(InvalidRequestError, match=r"'a>'.*tag"):
        OutputFormat(None, "", tools=[tool])


def test_tools_whose_schemas_make_too_large_a_grammar_are_refused() -> None:
    tools = [Tool(f"f{i}", "", {"properties": {f"p{i}": {"const": f"{i}" * 2000}}}) for i in range(600)]
    with pytest.raises(InvalidRequestError, match="more than"):
        OutputFormat(None, "", tools=tools)


def test_schemas_that_are_too_long_together_are_refused_before_they_are_converted() -> None:
    long = {"type": "object", "description": "a" * 2**17, "properties": {}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": long}} for i in range(8)]
    assert len(read_tools(tools[:7])) == 7
    with pytest.raises(InvalidRequestError, match="longer than 1048576 bytes together"):
        read_tools(tools)


def test_grammar_of_many_tools_is_made_in_time(llm: LLM) -> None:
    def schema(i: int) -> dict[str, Any]:
        strings = {f"p{i}_{j}": {"type": "string", "minLength": 1, "maxLength": 100 + j} for j in range(20)}
        return {"properties": strings, "required": [f"p{i}_1"]}

    output_format = OutputFormat(None, "<think>\n", tools=[Tool(f"f{i}", "", schema(i)) for i in range(100)])
    assert output_format.gbnf is not None
    with llm.model.grammar(output_format.gbnf):
        pass


def test_ends_of_values_are_read_once_for_all_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar of 20 tools took five times as long when the tags were read again for each tool and each value."""
    calls: list[object] = []
    for name in ("_characters", "tag_regex"):
        read = getattr(text_grammar, name)
        monkeypatch.setattr(text_grammar, name, lambda tags, read=read: calls.append(tags) or read(tags))

    def count(n: int) -> int:
        schema = {"properties": {"a": {"type": "string"}, "b": {"enum": ["x"]}, "c": {"type": ["string", "null"]}}}
        calls.clear()
        OutputFormat(None, "", tools=[Tool(f"f{i}", "", schema) for i in range(n)], cache_key=None)
        return len(calls)

    count(1)  # reads the tags, which are the same in all grammars
    assert count(20) == count(1)


def test_parser_returns_parameter_names_with_unusual_characters() -> None:
    names = ["a b", "é", "type", "function", "parameter", "x.y-z", "$ref"]
    tool = Tool("f", "", {"properties": {name: {"type": "integer"} for name in names}, "required": names})
    output_format = OutputFormat(None, "", tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert output_format.gbnf is not None
    parser = output_format.parser()
    parser.push(RandomTexts(read_gbnf(output_format.gbnf)).sample(Random(0)))
    parser.finish()
    (call,) = parser.output.tool_calls
    jsonschema.validate(json.loads(call.arguments), tool.parameters)
    assert json.loads(call.arguments).keys() == set(names)
