"""Tests of the schemas that Pydantic and zod write: each is taken, and the texts of its grammar are valid."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
from helpers.gbnf_texts import RandomTexts, grammar_allows, read_gbnf
from pydantic import AnyUrl, BaseModel, Field, TypeAdapter

from pymtp import InvalidRequestError
from pymtp.grammar.json_schema import schema_grammar

# What zod 4.6.7's z.toJSONSchema and zod-to-json-schema 3.25.2 write for each kind of schema.
ZOD: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("zod_schemas.json").read_text())


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Node(BaseModel):
    value: int
    below: Node | None = None


KINDS: dict[str, Any] = {
    "integer with bounds": Annotated[int, Field(ge=-3, lt=10)],
    "float with bounds": Annotated[float, Field(gt=0, le=1.5)],
    "decimal": Annotated[Decimal, Field(ge=0, max_digits=6, decimal_places=2)],
    "string with a pattern": Annotated[str, Field(pattern="[0-9]{2}", max_length=12)],
    "string with lengths": Annotated[str, Field(min_length=1, max_length=5)],
    "literal": Literal["a", 1, None],
    "enum": Colour,
    "optional": int | None,
    "union": int | bool | list[str],
    "discriminated union": Annotated[Cat | Dog, Field(discriminator="kind")],
    "list with lengths": Annotated[list[int], Field(min_length=1, max_length=3)],
    "set": set[str],
    "set of an enum": set[Colour],
    "tuple": tuple[int, str],
    "dictionary": dict[str, int],
    "dictionary by an enum": dict[Colour, int],
    "dictionary by a pattern": dict[Annotated[str, Field(pattern="^a")], int],
    "datetime": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "UUID": UUID,
    "URL": AnyUrl,
    "nested model": Cat,
    "recursive model": Node,
    "default value": Annotated[int, Field(default=3, description="d", examples=[1])],
    "multiple of an integer": Annotated[int, Field(multiple_of=5)],
    "multiple of a fraction": Annotated[float, Field(multiple_of=0.5, ge=-2)],
}
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
SETS = ("set", "zod-to-json-schema: set")  # no grammar can compare the items of a set


def texts(schema: dict[str, Any], *, strict: bool = True, n: int = 25) -> list[Any]:
    """Return the values of some random texts of a schema's grammar."""
    sampler = RandomTexts(read_gbnf(schema_grammar(json.dumps(schema), strict=strict).gbnf), size=60)
    return [json.loads(sampler.sample(Random(seed))) for seed in range(n)]


def validate(value: Any, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(value)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SETS])
def test_schema_of_a_pydantic_type_is_taken_and_held(kind: str, strict: bool) -> None:
    adapter = TypeAdapter(KINDS[kind])
    schema = adapter.json_schema()
    assert not schema_grammar(json.dumps(schema), strict=strict).left_out
    for value in texts(schema, strict=strict):
        validate(value, schema)
        if kind != "decimal":  # the schema does not say how many digits are allowed
            adapter.validate_json(json.dumps(value))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in ZOD if kind not in SETS])
def test_schema_of_a_zod_type_is_taken_and_held(kind: str, strict: bool) -> None:
    schema = ZOD[kind]
    assert {*schema_grammar(json.dumps(schema), strict=strict).left_out} <= {"#/format"}
    older = ("items" in schema and isinstance(schema["items"], list)) or "OpenAPI" in kind or kind.endswith("map")
    validator = jsonschema.Draft4Validator if older else jsonschema.Draft202012Validator
    for value in texts(schema, strict=strict):
        if not ("OpenAPI" in kind and kind.endswith("optional")):  # jsonschema does not know `nullable`
            validator(schema, format_checker=FORMATS).validate(value)


@pytest.mark.parametrize("schema", [TypeAdapter(KINDS["set"]).json_schema(), ZOD["zod-to-json-schema: set"]])
def test_set_is_refused_where_the_schema_is_strict_and_named_otherwise(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="#/properties/v has the keyword 'uniqueItems'"):
        schema_grammar(json.dumps({"properties": {"v": schema}}))
    weakened = schema_grammar(json.dumps({"properties": {"v": schema}}), strict=False)
    assert weakened.left_out == ("#/properties/v/uniqueItems",)


# Schemas that a grammar can hold to, with a value that is valid, and one that is not.
HELD: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "parts of an object": (
        {"allOf": [{"properties": {"a": {"minimum": 2}}, "required": ["a"]}, {"properties": {"a": {"maximum": 3}}}]},
        {"a": 2},
        {"a": 4},
    ),
    "closed by all parts": (
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
        {"a": 1, "b": 1},
        {"c": 1},
    ),
    "closed by one part": (
        {"allOf": [{"properties": {"a": {}}, "unevaluatedProperties": False}], "properties": {"b": {}}},
        {"a": 1},
        {"b": 1},
    ),
    "other properties of one part, by the pattern of another": (
        {
            "additionalProperties": {"type": "integer"},
            "allOf": [{"patternProperties": {"^a": {"enum": [1, "x"]}}}],
        },
        {"ab": 1},
        {"ab": "x"},
    ),
    "a tuple closed by one part": (
        {
            "type": "array",
            "allOf": [{"prefixItems": [{"type": "null"}], "unevaluatedItems": False}],
            "prefixItems": [{}, {"type": "boolean"}],
        },
        [None],
        [None, True],
    ),
    "an alternative whose values never end": (
        {
            "anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}],
            "$defs": {"x": {"type": "array", "contains": {"$ref": "#/$defs/x"}}},
        },
        None,
        [],
    ),
    "a property whose values never end": (
        {
            "properties": {"a": {}, "b": {"allOf": [{"$ref": "#/$defs/x"}, {"maxItems": 3}]}},
            "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}},
        },
        {"a": 1},
        {"b": [[]]},
    ),
    "values that may end after some levels": (
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{
                    str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}, "required": ["a"]}
                    for i in range(3)
                },
                "3": {"anyOf": [{"$ref": "#/$defs/0"}, {"type": "null"}]},
            },
        },
        {"a": {"a": {"a": None}}},
        {"a": {"a": None}},
    ),
    "reference beside bounds": ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": {"type": "integer"}}}, 3, 2),
    "nullable": ({"type": "string", "maxLength": 1, "nullable": True}, None, 1),
    "several patterns": ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}]}, "abz", "ab"),
    "a pattern and a length": ({"type": "string", "pattern": "b", "minLength": 3}, "abc", "ab"),
    "a lookahead": ({"type": "string", "pattern": "^(?!.*xx)x?[a-x]{2}$"}, "xax", "xxa"),
    "an anchor in a group": ({"type": "string", "pattern": "(^|,)a(,|$)"}, "b,a", "ba"),
    "a format and a length": ({"type": "string", "format": "uri", "maxLength": 12}, "http://a.de", "http://ab.com"),
    "a tuple and its rest": (
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "minItems": 2},
        [None, True],
        [None, None],
    ),
    "a set of listed values": (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
        ["a", "c"],
        ["a", "a"],
    ),
    "an item that must be there": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxItems": 2},
        [1, 7],
        [1, 2],
    ),
    "number of properties": (
        {"properties": {name: {} for name in "abc"}, "minProperties": 2, "maxProperties": 2},
        {"a": 1, "c": 1},
        {"b": 1},
    ),
    "number of properties, one required": (
        {"properties": {name: {} for name in "abc"}, "required": ["b"], "maxProperties": 2},
        {"b": 1},
        {"a": 1, "c": 1},
    ),
    "properties by pattern": (
        {"patternProperties": {"^i": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
        {"i1": 3, "x": None},
        {"i1": None},
    ),
    "names": (
        {"propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "null"}},
        {"ab": None},
        {"abc": None},
    ),
    "one property demands another": (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        {"b": 1},
        {"a": 1},
    ),
    "a condition": (
        {
            "properties": {"k": {"enum": ["x", "y"]}, "v": {"type": ["integer", "null"]}},
            "required": ["k", "v"],
            "if": {"properties": {"k": {"const": "x"}}},
            "then": {"properties": {"v": {"type": "integer"}}},
            "else": {"properties": {"v": {"type": "null"}}},
        },
        {"k": "y", "v": None},
        {"k": "x", "v": None},
    ),
    "not a value": ({"type": "string", "not": {"const": "a"}}, "ab", "a"),
    "not a number": ({"type": "number", "not": {"enum": [3]}, "maximum": 4}, 3.5, 3),
    "a multiple within bounds": ({"type": "integer", "multipleOf": 7, "minimum": -8, "maximum": 20}, -7, 8),
    "alternatives beside a type": (
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"b": 1},
        {},
    ),
    "an alternative that is itself": ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, None, 1),
    "no property": ({"properties": {"a": True, "b": False}}, {"a": 1}, {"b": 1}),
    "required without a schema": ({"type": "object", "required": ["a"]}, {"a": 1}, {"b": 1}),
}


def allows(schema: dict[str, Any], value: Any) -> bool:
    return grammar_allows(read_gbnf(schema_grammar(json.dumps(schema)).gbnf), json.dumps(value, separators=(",", ":")))


@pytest.mark.parametrize("case", HELD)
def test_keywords_are_held_as_far_as_a_grammar_can(case: str) -> None:
    schema, right, wrong = HELD[case]
    assert allows(schema, right)
    assert not allows(schema, wrong)
    if "$ref" not in json.dumps(schema.get("anyOf")):  # jsonschema recurses without end
        for value in texts(schema):
            jsonschema.validate(value, {**schema, "type": [schema["type"], "null"]} if "nullable" in schema else schema)


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 0, "maximum": 1},
        {"exclusiveMinimum": -1.5, "exclusiveMaximum": 1000},
        {"minimum": 0.05, "exclusiveMaximum": 0.0625},
        {"maximum": -3.25},
        {"exclusiveMinimum": 0},
        {"exclusiveMaximum": 0},
        {"maximum": 0},
        {"minimum": 1e10, "maximum": 1e300},
        {"minimum": 0.3, "maximum": 0.3},
        {"multipleOf": 0.25, "minimum": -1, "exclusiveMaximum": 2},
    ],
    ids=str,
)
def test_numbers_stay_within_their_bounds(bounds: dict[str, float]) -> None:
    schema = {"type": "number", **bounds}
    for value in texts(schema, n=200):
        jsonschema.validate(value, schema)
    edges = [edge + step for edge in bounds.values() for step in (-1, -0.25, -0.01, 0, 0.01, 0.25, 1)]
    for number in [edge for edge in edges if abs(edge) < 1e16]:
        text = round(number, 4)
        valid = jsonschema.Draft202012Validator(schema).is_valid(text)
        assert allows(schema, text) == valid, text


def test_a_valid_schema_is_weakened_by_no_annotation() -> None:
    notes = {"title": "t", "description": "d", "default": 1, "examples": [2], "deprecated": True, "readOnly": True}
    notes |= {"$schema": "s", "$id": "i", "$comment": "c", "discriminator": {"propertyName": "x"}, "x-order": 3}
    assert schema_grammar(json.dumps({"type": "integer", "format": "int32", **notes})).left_out == ()
    assert schema_grammar(json.dumps({"type": "string", "format": "cron"})).left_out == ("#/format",)


# Short schemas that ask for endless work or huge grammars.
ENDLESS: dict[str, dict[str, Any]] = {
    "a pattern with many states": {"type": "string", "pattern": "a.{900}$", "minLength": 3},
    "a pattern in a long string": {"type": "string", "pattern": "^[^b]*(b[^b]*){20}$", "maxLength": 10**6},
    "doubling references": {
        "$defs": {
            f"{n}{i}": {"anyOf": [{"$ref": f"#/$defs/{m}{i + 1}"} for m in "ab"]} for i in range(25) for n in "ab"
        }
        | {"a25": {}, "b25": {"type": "null"}},
        "allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}],
    },
    "a value for doubling references": {
        "$defs": {f"a{i}": {"anyOf": 4 * [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(14)} | {"a14": {"const": 1}},
        "const": {"x": 2},  # is no value of the alternatives
        "properties": {"x": {"$ref": "#/$defs/a0"}},
    },
    "many characters": {"type": "string", "pattern": "".join(map(chr, range(0x4E00, 0x5E00))), "maxLength": 9000},
    "many patterns": {"patternProperties": {f"^{i}|{i}$": {} for i in range(500)}, "required": [*"abcdef"]},
    "many items": {"type": "array", "items": {"enum": [*range(900)]}, "uniqueItems": True, "maxItems": 10_000},
    "recursive parts": {
        "$defs": {
            n: {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, n: {"type": "null"}}}
            for n in "ab"
        },
        "$ref": "#/$defs/a",
    },
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", ENDLESS)
def test_schema_that_asks_for_endless_work_is_weakened_or_refused_in_time(case: str) -> None:
    with suppress(InvalidRequestError):
        assert len(schema_grammar(json.dumps(ENDLESS[case]), strict=False).gbnf) < 2**20


def test_length_that_is_too_much_beside_a_pattern_is_refused_where_the_schema_is_strict() -> None:
    schema = {"type": "string", "pattern": "^(a|b)*a(a|b){12}$", "minLength": 1500}
    with pytest.raises(InvalidRequestError, match="'minLength'"):
        schema_grammar(json.dumps(schema))
    assert schema_grammar(json.dumps(schema), strict=False).left_out == ("#/minLength",)
