"""Tests of `oneOf`: a value is valid for one of its options and for no other."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from helpers.gbnf_texts import RandomTexts, grammar_allows, read_gbnf

from pymtp import InvalidRequestError
from pymtp.grammar.json_schema import schema_grammar


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


TEXT, NULL = {"type": "string", "maxLength": 3}, {"type": "null"}
A_OR_B = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
OPTIONAL = [{"type": "object", "properties": {"kind": {"const": kind}}} for kind in "ab"]
KIND = {"discriminator": {"propertyName": "kind"}}
TREE = {
    "leaf": record(kind={"const": "leaf"}),
    "node": record(kind={"const": "node"}, below={"type": "array", "items": {"$ref": "#/$defs/any"}, "maxItems": 2}),
    "any": {"oneOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}]},
}

# each with a value of one option, and one that is wrong
HELD: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "constants": ({"oneOf": [{"const": 1, "title": "one"}, {"const": 2}]}, 2, 3),
    "a value in two lists": ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, 3, 2),
    "types": ({"oneOf": [TEXT, {"type": "integer"}, NULL]}, None, 1.5),
    "a constant and its type": ({"oneOf": [{"const": "a"}, TEXT]}, "b", "a"),
    "ranges": ({"oneOf": [{"type": "integer", "minimum": 10}, {"type": "integer", "maximum": 15}]}, 9, 12),
    "objects by a constant": (
        {"oneOf": [record(k={"const": 1}, v=TEXT), record(k={"const": 2}, v=NULL)]},
        {"k": 2, "v": None},
        {"k": 1, "v": None},
    ),
    "closed objects": (
        {"oneOf": [{**record(**{name: TEXT}), "additionalProperties": False} for name in "ab"]},
        {"b": ""},
        {"a": "", "b": ""},
    ),
    "either property": ({**A_OR_B, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": ""}, {"a": "", "b": ""}),
    "an optional constant": ({"oneOf": OPTIONAL}, {"kind": "b"}, {}),
    "a discriminator": ({"oneOf": OPTIONAL} | KIND, {"kind": "b"}, {}),
    "references that recur": (
        {"$defs": TREE, "$ref": "#/$defs/any"},
        {"kind": "node", "below": [{"kind": "leaf"}]},
        {"kind": "node"},
    ),
}


@pytest.mark.parametrize("case", HELD)
def test_one_option_holds_and_no_other(case: str) -> None:
    schema, right, wrong = HELD[case]
    grammar = schema_grammar(json.dumps(schema))
    assert grammar.left_out == ()
    rules = read_gbnf(grammar.gbnf)
    texts = (json.dumps(value, separators=(",", ":")) for value in (right, wrong))
    assert [grammar_allows(rules, text) for text in texts] == [True, False]
    for seed in range(10):
        value = json.loads(RandomTexts(rules, size=60).sample(Random(seed)))
        jsonschema.validate(value, schema)


@pytest.mark.parametrize(
    "options",
    [
        [{"type": "string", "format": "date"}, {"type": "string", "format": "time"}],
        [{"type": "array", "items": TEXT}, {"type": "array", "items": NULL}],
        [{"type": "integer"}, {"type": "number"}],
        [record(**{f"k{i}": TEXT}) for i in range(300)],
        [record(**{f"k{i}": TEXT}) for i in range(100)],  # each pair must be merged
    ],
    ids=["formats", "items", "integers and numbers", "too many", "too many to merge"],
)
def test_options_that_overlap_are_refused_where_the_schema_is_strict_and_named_otherwise(options: list[Any]) -> None:
    schema = {"type": "object", "properties": {"p": {"oneOf": options}}, "required": ["p"]}
    with pytest.raises(InvalidRequestError, match=r"#/properties/p has the keyword 'oneOf'"):
        schema_grammar(json.dumps(schema))
    assert schema_grammar(json.dumps(schema), strict=False).left_out == ("#/properties/p/oneOf",)


def test_many_options_are_told_apart_in_time() -> None:
    options = [record(kind={"const": i}, v=TEXT) for i in range(150)]
    assert schema_grammar(json.dumps({"oneOf": options})).left_out == ()
    assert schema_grammar(json.dumps({"oneOf": [{"const": i} for i in range(1500)]})).left_out == ()


LIST = {"anyOf": [NULL, record(next={"allOf": [{"$ref": "#/$defs/list"}, {"type": "object"}]})]}
ENDLESS = {"allOf": [{"$ref": "#/$defs/list"}, {"type": "object"}]}  # each object has another one in it


def test_combination_of_which_no_value_ends_is_refused_or_never_begun() -> None:
    with pytest.raises(InvalidRequestError, match="each of its values contains another one, without an end"):
        schema_grammar(json.dumps({"$defs": {"list": LIST}, **ENDLESS}))
    rules = read_gbnf(schema_grammar(json.dumps({"$defs": {"list": LIST}, "$ref": "#/$defs/list"})).gbnf)
    assert [grammar_allows(rules, text) for text in ("null", '{"next":null}')] == [True, False]
    optional = {"$defs": {"list": LIST}, "type": "object", "properties": {"p": ENDLESS, "q": NULL}}
    written = schema_grammar(json.dumps(optional)).gbnf
    assert '"p' not in written
