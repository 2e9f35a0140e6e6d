"""Claims about calls in both directions: every text that the grammar of an answer allows is read as calls that are
valid, in any pieces."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from helpers.gbnf_texts import Texts, allows, read_gbnf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymtp.chat import AnswerFormat, Event, Tool
from pymtp.chat.output_parser import AnswerReader

HERMES = 'A template that has <tool_call>{"name": …, "arguments": …}</tool_call> and <think>.'

strings = st.one_of(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]+$"},
            {"type": "string", "pattern": r"^[^a]*\n?$"},
            {"type": "string", "pattern": r"^a\nb+$"},
            {"type": "string", "format": "date"},
            {"enum": ["a", "", "</parameter>", "two words"]},
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
others = st.sampled_from(
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
mixed = st.one_of(
    st.just({}),
    strings.map(lambda schema: {"anyOf": [schema, {"type": "null"}]}),
    strings.map(lambda schema: {"anyOf": [schema, {"type": "integer"}, {"type": "boolean"}]}),
    st.tuples(strings, others).map(lambda parts: {"anyOf": [*parts]}),
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


values = strings | others | mixed | st.recursive(strings | others, nested, max_leaves=3)
names = st.sampled_from(["a", "b", "file path", "é", "x.y", "type", "function"])


@st.composite
def tools(draw: Any) -> Tool:
    properties = draw(st.dictionaries(names, values, max_size=4))
    required = sorted(draw(st.sets(st.sampled_from(sorted(properties))))) if properties else []
    schema = {"type": "object", "properties": properties, "required": required}
    schema["$defs"] = {"name": {"type": "string", "minLength": 1, "maxLength": 3}}
    return Tool(draw(st.sampled_from(["get", "set_it", "mcp.a/b"])), "", schema, strict=True)


randoms = st.integers(0, 2**32).map(Random)
several = st.lists(tools(), min_size=1, max_size=2, unique_by=lambda tool: tool.name)


def read(form: AnswerFormat, pieces: list[str]) -> tuple[AnswerReader, list[Event]]:
    reader = form.reader()
    events = [event for piece in pieces for event in reader.push(piece)]
    return reader, events + reader.finish()


def cut(text: str, random: Random) -> list[str]:
    """In pieces of one to nine characters."""
    pieces = []
    while text:
        n = random.randint(1, 9)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


def check_calls(form: AnswerFormat, text: str, each: list[Tool], random: Random) -> int:
    """How many calls a text has, all of which are valid."""
    reader, _ = read(form, cut(text, random))
    by_name = {tool.name: tool.parameters for tool in each}
    assert reader.answer.unfinished is None
    for call in reader.answer.calls:
        jsonschema.validate(json.loads(call.arguments), by_name[call.name])
    return len(reader.answer.calls)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(several, st.sampled_from([None, HERMES]), st.booleans(), st.booleans(), randoms)
def test_a_call_that_is_required_is_valid(
    each: list[Tool], template: str | None, thinks: bool, parallel: bool, random: Random
) -> None:
    end = "<think>\n" if thinks else ""
    form = AnswerFormat(template, end, tools=each, tool_choice="required", parallel=parallel)
    assert form.gbnf is not None
    texts = Texts(read_gbnf(form.gbnf))
    for _ in range(5):
        text = texts.draw(random)
        n = check_calls(form, text, each, random)
        assert n == 1 or (n > 1 and parallel), text


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(several, st.sampled_from([None, HERMES]), st.booleans(), randoms)
def test_text_is_either_content_or_a_valid_call(
    each: list[Tool], template: str | None, thinks: bool, random: Random
) -> None:
    form = AnswerFormat(template, "<think>\n" if thinks else "", tools=each)
    assert form.gbnf is not None
    texts = Texts(read_gbnf(form.gbnf), size=60)
    for _ in range(8):
        text = texts.draw(random)
        n = check_calls(form, text, each, random)
        assert bool(n) == text.endswith("</tool_call>")
        if not n and not thinks and not text.lstrip().startswith("<think>"):
            assert read(form, [text])[0].answer.content == (text or None)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(several, values, st.sampled_from(["", "<think>\n"]), randoms)
def test_content_of_a_schema_is_valid_beside_calls(
    each: list[Tool], schema: dict[str, Any], end: str, random: Random
) -> None:
    schema = {**schema, "$defs": {"name": {"type": "string", "maxLength": 2}}}
    form = AnswerFormat(None, end, tools=each, schema=schema)
    assert form.gbnf is not None
    texts = Texts(read_gbnf(form.gbnf))
    for _ in range(8):
        text = texts.draw(random)
        n = check_calls(form, text, each, random)
        content = read(form, [text])[0].answer.content
        assert (content is None) == (n > 0)
        if content is not None:
            jsonschema.validate(json.loads(content), schema)


@pytest.mark.parametrize("text", ['{"a": "<tool_call><function=f></function></tool_call>"}', '  ["<tool_call>{}"]'])
def test_strings_in_json_content_hold_no_call(text: str) -> None:
    form = AnswerFormat(None, "<think>\n", tools=[Tool("f")], schema={})
    for pieces in ([text], list(text)):
        answer = read(form, ["</think>\n\n", *pieces])[0].answer
        assert (answer.content, answer.calls) == (text, ())


def test_values_may_hold_all_tags_but_their_own_end() -> None:
    """As files do that speak of calls, or are XML."""
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
    form = AnswerFormat(
        None, "", tools=[Tool("f", "", {"properties": {"a": {"type": "string"}}})], tool_choice="required"
    )
    assert form.gbnf is not None
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert allows(read_gbnf(form.gbnf), text)
    (call,) = read(form, list(text))[0].answer.calls
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
def test_a_value_cannot_hold_what_a_reader_takes_for_its_end(end: str) -> None:
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
        form = AnswerFormat(None, "", tools=[tool], tool_choice="required", parallel=False)
        assert form.gbnf is not None
        rules = read_gbnf(form.gbnf)
        text = f"<tool_call>\n<function=f>\n<parameter={name}>\n{{}}\n</parameter>\n</function>\n</tool_call>"
        assert not allows(rules, text.format(f"x{end}"))
        if name in ("free", "listed", "mixed"):
            assert allows(rules, text.format(f"x{end[:-1]}"))
