"""Tests of grammar and parser together: every text that the output's grammar allows is parsed as valid calls."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from helpers.gbnf_texts import RandomTexts, grammar_allows, read_gbnf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymtp.chat import OutputEvent, OutputFormat, Tool
from pymtp.chat.output_parser import OutputParser

HERMES = 'A template that has <tool_call>{"name": …, "arguments": …}</tool_call> and <think>.'

string_schemas = st.one_of(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]+$"},
            {"type": "string", "pattern": r"^[^a]*\n?$"},
            {"type": "string", "pattern": r"^a\nb+$"},
            {"type": "string", "pattern": "^(<parameter=a>|<a|</function>|</parameter>)*$"},
            {"type": "string", "pattern": "^<?.{1,90}$"},
            {"type": "string", "format": "date"},
            {"enum": ["a", "", "<parameter>", "two words"]},
            {"const": "a <parameter=a>"},
            {"anyOf": [{"type": "string", "maxLength": 3}, {"enum": ["longer"]}]},
            {"$ref": "#/$defs/name"},
        ]
    ),
    st.tuples(st.integers(0, 30), st.integers(0, 30) | st.none()).map(
        lambda bounds: (
            {"type": "string", "minLength": bounds[0]}
            | ({} if bounds[1] is None else {"maxLength": bounds[0] + bounds[1]})
        )
    ),
)
other_schemas = st.sampled_from(
    [
        {"type": "integer", "minimum": -3, "maximum": 1000},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": [1, None, "1", "None", 2.5, [True]]},
        {"const": {"a": ["</parameter>\n"]}},
        {"type": ["integer", "null"]},
    ]
)
mixed_schemas = st.one_of(
    st.just({}),
    string_schemas.map(lambda schema: {"anyOf": [schema, {"type": "null"}]}),
    string_schemas.map(lambda schema: {"anyOf": [schema, {"type": "integer"}, {"type": "boolean"}]}),
    st.tuples(string_schemas, other_schemas).map(lambda parts: {"anyOf": [*parts]}),
    st.sampled_from(
        [
            {"type": ["string", "null"], "maxLength": 4},
            {"type": ["string", "number", "array", "object"]},
            {"type": ["string", "integer"], "minLength": 3, "minimum": 1000},
        ]
    ),
)


def nested(parts: Any) -> Any:
    return st.builds(
        lambda properties, required: {"type": "object", "properties": properties, "required": sorted(required)},
        st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=2),
        st.just(set()),
    ) | parts.map(lambda schema: {"type": "array", "items": schema, "maxItems": 2})


schemas = (
    string_schemas | other_schemas | mixed_schemas | st.recursive(string_schemas | other_schemas, nested, max_leaves=3)
)
names = st.sampled_from(["a", "b", "file path", "é", "x.y", "type", "function"])


@st.composite
def tools(draw: Any) -> Tool:
    properties = draw(st.dictionaries(names, schemas, max_size=4))
    required = sorted(draw(st.sets(st.sampled_from(sorted(properties))))) if properties else []
    schema = {"type": "object", "properties": properties, "required": required}
    schema["$defs"] = {"name": {"type": "string", "minLength": 1, "maxLength": 3}}
    return Tool(draw(st.sampled_from(["get", "set_it", "mcp.a/b"])), "", schema, strict=True)


randoms = st.integers(0, 2**32).map(Random)
several = st.lists(tools(), min_size=1, max_size=2, unique_by=lambda tool: tool.name)


def parse(output_format: OutputFormat, pieces: list[str]) -> tuple[OutputParser, list[OutputEvent]]:
    parser = output_format.parser()
    events = [event for piece in pieces for event in parser.push(piece)]
    return parser, events + parser.finish()


def split_randomly(text: str, random: Random) -> list[str]:
    """Split a text into pieces of one to nine characters."""
    pieces = []
    while text:
        n = random.randint(1, 9)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


def check_calls(output_format: OutputFormat, text: str, each: list[Tool], random: Random) -> int:
    """Check that all calls of a text are valid; return their number."""
    parser, _ = parse(output_format, split_randomly(text, random))
    by_name = {tool.name: tool.parameters for tool in each}
    assert parser.output.unfinished_call is None
    for call in parser.output.tool_calls:
        jsonschema.validate(json.loads(call.arguments), by_name[call.name])
    return len(parser.output.tool_calls)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(several, st.sampled_from([None, HERMES]), st.booleans(), st.booleans(), randoms)
def test_required_call_is_valid(
    each: list[Tool], template: str | None, thinks: bool, parallel: bool, random: Random
) -> None:
    end = "<think>\n" if thinks else ""
    output_format = OutputFormat(template, end, tools=each, tool_choice="required", parallel_tool_calls=parallel)
    assert output_format.gbnf is not None
    texts = RandomTexts(read_gbnf(output_format.gbnf))
    for _ in range(5):
        text = texts.sample(random)
        n = check_calls(output_format, text, each, random)
        assert n == 1 or (n > 1 and parallel), text


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(several, st.sampled_from([None, HERMES]), st.booleans(), randoms)
def test_text_is_either_content_or_valid_calls(
    each: list[Tool], template: str | None, thinks: bool, random: Random
) -> None:
    output_format = OutputFormat(template, "<think>\n" if thinks else "", tools=each)
    assert output_format.gbnf is not None
    texts = RandomTexts(read_gbnf(output_format.gbnf), size=60)
    for _ in range(8):
        text = texts.sample(random)
        n = check_calls(output_format, text, each, random)
        assert bool(n) == text.endswith("</tool_call>")
        if not n and not thinks and not text.lstrip().startswith("<think>"):
            assert parse(output_format, [text])[0].output.content == (text or None)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(several, schemas, st.sampled_from(["", "<think>\n"]), randoms)
def test_content_with_a_schema_is_valid_beside_calls(
    each: list[Tool], schema: dict[str, Any], end: str, random: Random
) -> None:
    schema = {**schema, "$defs": {"name": {"type": "string", "maxLength": 2}}}
    output_format = OutputFormat(None, end, tools=each, schema=schema)
    assert output_format.gbnf is not None
    texts = RandomTexts(read_gbnf(output_format.gbnf))
    for _ in range(8):
        text = texts.sample(random)
        n = check_calls(output_format, text, each, random)
        content = parse(output_format, [text])[0].output.content
        assert (content is None) == (n > 0)
        if content is not None:
            jsonschema.validate(json.loads(content), schema)


@pytest.mark.parametrize("text", ['{"a": "<tool_call><function=f></function></tool_call>"}', '  ["<tool_call>{}"]'])
def test_tags_in_strings_of_json_content_begin_no_calls(text: str) -> None:
    output_format = OutputFormat(None, "<think>\n", tools=[Tool("f")], schema={})
    for pieces in ([text], list(text)):
        answer = parse(output_format, ["</think>\n\n", *pieces])[0].output
        assert (answer.content, answer.tool_calls) == (text, ())


def test_values_may_contain_all_tags_except_the_end_of_a_value() -> None:
    """XML files, and texts about tool calls, contain such tags."""
    value = """
</parameter>
text
</parameter>
</function>
</parameter>
<function><parameter>x</parameter>
</function> and <tool_call><function=f><parameter=a>x</parameter></function></tool_call>
</tool_call>
</param"""
    output_format = OutputFormat(
        None, "", tools=[Tool("f", "", {"properties": {"a": {"type": "string"}}})], tool_choice="required"
    )
    assert output_format.gbnf is not None
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert grammar_allows(read_gbnf(output_format.gbnf), text)
    (call,) = parse(output_format, list(text))[0].output.tool_calls
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize(
    "end",
    [
        "\n</parameter>\n</function>\n</tool_call>",
        "\n</parameter>\n<parameter=",
        "</parameter>\n</tool_call>",
        "</parameter>\n \t</tool_call>",
        "\n<parameter=",
        "\n</function>\n<tool_call>",
    ],
)
def test_grammar_excludes_ends_of_values_that_the_parser_finds(end: str) -> None:
    each = {
        "free": {"type": "string"},
        "listed": {"enum": [f"x{end}", f"x{end[:-1]}"]},
        "pattern": {"type": "string", "pattern": r"^x[^é]*$"},
        "counted": {"type": "string", "minLength": 12},
        "few": {"type": "string", "maxLength": 50},
        "some": {"type": "string", "maxLength": 300},
        "many": {"type": "string", "maxLength": 1500},
        "mixed": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    for name, schema in each.items():
        tool = Tool("f", "", {"properties": {name: schema, "b": {}}}, strict=name != "listed")
        output_format = OutputFormat(None, "", tools=[tool], tool_choice="required", parallel_tool_calls=False)
        assert output_format.gbnf is not None
        rules = read_gbnf(output_format.gbnf)
        text = f"<tool_call>\n<function=f>\n<parameter={name}>\n{{}}\n</parameter>\n</function>\n</tool_call>"
        assert not grammar_allows(rules, text.format(f"x{end}"))
        assert not grammar_allows(rules, text.format("x\n</parameter>"))
        assert not grammar_allows(rules, text.format("x</parameter>"))
        if name in ("free", "listed", "mixed"):
            assert grammar_allows(rules, text.format(f"x{end[:-1]}"))
