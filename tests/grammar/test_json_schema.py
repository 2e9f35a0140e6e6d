"""Tests of JSON schemas: outputs are valid JSON of the schema, and schemas that no grammar can express are refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import reduce
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.grammar.numbers import integer_pattern

PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "a person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 1, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "minItems": 1, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
}

scalars = st.sampled_from(
    [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "string", "maxLength": 3},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": ["integer", "null"]},
        {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]+$"},
        {"type": "string", "pattern": '^(.["\\\\\\\\]|[^a-z]{2}|\\S\\n?)$'},
        {"type": "string", "format": "date-time"},
        {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}]},
        {"type": "integer", "exclusiveMinimum": 7.5, "minimum": 3, "maximum": 12},
        {"const": {"a": [1, 'é\n"']}},
        {"enum": ["x", 1.5, None, [True]]},
        {"$ref": "#/$defs/leaf"},
    ]
) | st.tuples(st.integers(-200, 200), st.integers(0, 300)).map(
    lambda bounds: {"type": "integer", "minimum": bounds[0], "maximum": bounds[0] + bounds[1]}
)
names = st.sampled_from(["a", "ab", "b b", "é", "è", '"', "a-b", "root", "string"])


def objects(parts: Any) -> Any:
    def build(properties: dict[str, Any], required: set[str], more: Any) -> dict[str, Any]:
        schema = {"type": "object", "properties": properties, "required": sorted(required & properties.keys())}
        return schema if more is None else schema | {"additionalProperties": more}

    return st.builds(
        build, st.dictionaries(names, parts, max_size=3), st.sets(names), st.none() | st.just(False) | parts
    )


def arrays(parts: Any) -> Any:
    def build(items: Any, minimum: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "minItems": minimum, "maxItems": minimum + more}

    return st.builds(build, parts, st.integers(0, 2), st.integers(0, 2))


schemas = st.recursive(
    scalars,
    lambda parts: objects(parts) | arrays(parts) | st.lists(parts, min_size=1, max_size=3).map(lambda p: {"anyOf": p}),
    max_leaves=5,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    schemas,
    st.sampled_from([{}, {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}]),
    st.integers(0, 99),
)
def test_output_is_valid_json_of_the_schema(llm: LLM, schema: dict[str, Any], way: dict[str, Any], seed: int) -> None:
    schema = {**schema, "$defs": {"leaf": {"type": "string", "minLength": 1, "maxLength": 2}}}
    completion = llm.generate("x = ", SamplingParams(150, json_schema=schema, seed=seed, **way))
    if completion.finish_reason == "stop":
        jsonschema.validate(json.loads(completion.text), schema)


@pytest.mark.parametrize("way", [{}, {"temperature": 0.9, "seed": 3}], ids=["greedy", "T=0.9"])
def test_output_of_a_schema_is_the_same_with_and_without_drafts(llm: LLM, new_llm: Any, way: dict[str, Any]) -> None:
    params = SamplingParams(200, json_schema=PERSON, **way)
    with_drafts = llm.generate("person = ", params)
    assert with_drafts.finish_reason == "stop"
    jsonschema.validate(json.loads(with_drafts.text), PERSON)
    assert with_drafts.stats.accepted > 0
    assert with_drafts.token_ids == new_llm(draft_tokens=0).generate("person = ", params).token_ids


def test_schema_may_be_a_mapping_or_its_text() -> None:
    as_mapping, as_text = SamplingParams(json_schema=PERSON), SamplingParams(json_schema=json.dumps(PERSON))
    assert as_mapping == as_text
    assert as_mapping.gbnf == as_text.gbnf


ENDLESS_REST = {"additionalProperties": {"$ref": "#/$defs/b"}}
REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "not JSON"),
    "no value of JSON": ({"const": {1, 2}}, "not JSON"),
    "no number of JSON": ({"const": float("nan")}, "not JSON"),
    "no schema": ("[]", "must be an object"),
    "unknown type": ({"type": "file"}, "file"),
    "a set": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "'uniqueItems'"),
    "unsupported keyword within items": (
        {"anyOf": [{"items": {"type": "object", "minProperties": 2}}]},
        "#/anyOf/0/items.*minProperties",
    ),
    "unknown keyword": ({"type": "object", "minimun": 3}, "'minimun'"),
    "opposite of a list": ({"type": "array", "not": {"contains": {"const": 3}}}, "'not'"),
    "parts that exclude each other": ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "no value is valid"),
    "closed parts": (
        {"allOf": [{"properties": {n: {}}, "required": [n], "additionalProperties": False} for n in "ab"]},
        "'additionalProperties'.*forbids 'b'",
    ),
    "no integer": ({"type": "integer", "minimum": 5, "maximum": 3}, "no integer"),
    "required, not allowed": ({"required": ["a"], "additionalProperties": False}, "requires.*'a'"),
    "a reference to itself": ({"$ref": "#"}, "no value"),
    "a value within each value": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "#/properties/a: each value of '#' contains another one",
    ),
    "a value within each value of another reference": (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1},
                "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "object", "required": ["x"], **ENDLESS_REST}]},
            },
        },
        "each value of '#/\\$defs/a' contains another one",
    ),
    "nowhere": ({"$ref": "#/$defs/a"}, "cannot resolve"),
    "elsewhere": ({"$ref": "https://example.org/schema"}, "same document"),
    "no regular expression": ({"type": "string", "pattern": "^(a$"}, "pattern"),
    "const of another type": ({"type": "integer", "const": "a"}, "no value of its type"),
    "too long a string": ({"type": "string", "minLength": 3000}, "more than 2000"),
    "no grammar for it": ({"type": "string", "pattern": r"^(a)\1$"}, "pattern"),
    "no string": ({"type": "string", "pattern": "^(?=a)b$"}, "no string"),
    "deep": ('{"items":' * 5000 + "{}" + "}" * 5000, "nested|not JSON"),
    "long": ({"const": "x" * 2**20}, "longer than"),
    "neither mapping nor text": (7, "json_schema"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_schema_that_no_grammar_can_express_is_refused_with_the_reason(case: str) -> None:
    schema, reason = REFUSED[case]
    with pytest.raises(InvalidRequestError, match=f"(?s){reason}"):
        SamplingParams(json_schema=schema)


# Schemas for which a converter that writes out every reference would take very long, or recurse too deep.
LARGE: dict[str, Any] = {
    "references one after another": {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} if i < 20_000 else {"type": "null"} for i in range(20_001)},
    },
    "properties that may all be left out": {"properties": {f"p{i}": {"type": "null"} for i in range(5000)}},
    "types within types": reduce(
        lambda part, _: {"type": ["object", "null"] * 8, "properties": {"a": part}}, range(20), {}
    ),
    "names of no ASCII": {"properties": {chr(0x4E00 + i): {"type": "null"} for i in range(5000)}},
    "a pattern": {"type": "string", "pattern": f"^{'[a-z].' * 2000}$"},
}


@pytest.mark.parametrize("case", LARGE)
def test_grammar_of_a_large_schema_is_made_in_time(llm: LLM, case: str) -> None:
    params = SamplingParams(json_schema=LARGE[case])
    assert params.gbnf is not None
    with llm.model.grammar(params.gbnf):
        assert len(params.gbnf) < 100 * len(json.dumps(LARGE[case]))


def test_references_with_similar_names_get_different_rules(llm: LLM) -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/é"}, "b": {"$ref": "#/$defs/è"}, "defs-1": {"const": 3}},
        "required": ["a", "b", "defs-1"],
        "$defs": {"é": {"const": 1}, "è": {"const": 2}},
    }
    assert json.loads(llm.generate("x", SamplingParams(100, json_schema=schema)).text) == {"a": 1, "b": 2, "defs-1": 3}


def test_reference_is_read_as_a_json_pointer(llm: LLM) -> None:
    schema = {"$ref": "#/$defs/a~1b~0%20c/anyOf/1", "$defs": {"a/b~ c": {"anyOf": [{"const": 1}, {"const": 2}]}}}
    assert llm.generate("x", SamplingParams(20, json_schema=schema)).text == "2"


@pytest.mark.parametrize("top_k", [0, 3])
def test_output_follows_a_recursive_schema(llm: LLM, top_k: int) -> None:
    schema = {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}
    eager = dict.fromkeys([*llm.model.tokenize('{"next":'), *llm.model.tokenize("}")], 36.0)
    eager |= dict.fromkeys(llm.model.tokenize("null"), 40.0)
    params = SamplingParams(200, json_schema=schema, temperature=4.0, top_k=top_k, top_p=1.0, seed=1, logit_bias=eager)
    completion = llm.generate("x", params)
    assert completion.text.count("next") > 0
    assert completion.finish_reason == "stop"
    jsonschema.validate(json.loads(completion.text), schema)


def test_names_of_additional_properties_differ_from_those_of_known_properties(llm: LLM) -> None:
    """Check that an additional property cannot get the name of a known one, however tokens spell the name."""
    model = llm.model
    schema = {"properties": {"ab": {"const": 1}, "a": {"const": 1}}, "additionalProperties": {"const": 2}}
    eager = dict.fromkeys([*model.tokenize('{"'), *model.tokenize('ab\\":,2')], 8.0)
    for seed in range(20):
        params = SamplingParams(
            40, json_schema=schema, temperature=1.0, top_k=0, top_p=1.0, seed=seed, logit_bias=eager
        )
        pairs = re.findall(r'"((?:[^"\\]|\\.)*)"\s*:\s*(\d)', llm.generate("x", params).text)
        assert all((json.loads(f'"{name}"') in ("a", "ab")) == (value == "1") for name, value in pairs)


@settings(max_examples=60)
@given(st.integers(-(10**6), 10**6), st.integers(0, 2000) | st.none(), st.booleans())
def test_integer_pattern_matches_the_integers_between_its_bounds(bound: int, more: int | None, upper: bool) -> None:
    minimum, maximum = bound, None if more is None else bound + more
    if more is None and upper:
        minimum, maximum = None, bound
    matches = re.compile(integer_pattern(minimum, maximum)).fullmatch
    near = {edge + step for edge in (bound, bound + (more or 0), 0) for step in range(-30, 31)}
    for number in {*near, *(10**n + step for n in range(1, 16) for step in (-1, 0, 1))}:
        within = (minimum is None or number >= minimum) and (maximum is None or number <= maximum)
        assert bool(matches(str(number))) == within
        assert not matches(f"0{number}")
    assert not matches("-0") or bound > 0


def test_grammar_and_schema_together_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="json_schema"):
        SamplingParams(json_schema={}, grammar="root ::= [a]")


KEYWORDS = [
    *(
        "type",
        "properties",
        "required",
        "items",
        "prefixItems",
        "additionalProperties",
        "enum",
        "const",
        "anyOf",
        "oneOf",
    ),
    *(
        "$ref",
        "$defs",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "pattern",
        "format",
        "allOf",
    ),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS) | st.text(max_size=3), parts, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=80)
@given(
    st.dictionaries(st.sampled_from(KEYWORDS), json_values, max_size=5),
    st.sampled_from(["object", "array", "string", "integer"]),
)
def test_random_schemas_do_not_crash_the_process(llm: LLM, schema: dict[str, Any], kind: str) -> None:
    for guess in (schema, {"type": kind, **schema}):
        try:
            params = SamplingParams(json_schema=guess)
            assert params.gbnf is not None
            with llm.model.grammar(params.gbnf):
                pass
        except InvalidRequestError:
            pass


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": {}}},
        {"propertyNames": {"pattern": {"const": None}}},
        {"propertyNames": {"pattern": 1}},
        {"type": "string", "pattern": "a", "not": {"pattern": "("}},
        {"type": "string", "not": {"pattern": "("}},
        {"type": "integer", "const": 10**400},
        {"type": "array", "minItems": 10**400},
        {"type": "string", "maxLength": -(10**400)},
    ],
)
def test_malformed_conditions_are_refused_or_left_out_and_never_another_error(schema: dict[str, Any]) -> None:
    for strict in (False, True):
        with suppress(InvalidRequestError):
            SamplingParams(json_schema=schema, strict_schema=strict)
