"""Tests of the values of tool parameters: the schema decides the type of the text between the tags."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.outputs import parse, parse_value, xml_call

from pymtp.chat import Tool

STRING, NULL = {"type": "string"}, {"type": "null"}
POINT = {"type": "object", "properties": {"x": {"type": "number"}}}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (STRING, "02139", "02139"),
        (STRING, "null", "null"),
        (STRING, '"a"', '"a"'),
        (STRING, " a\n", " a\n"),
        (STRING, "", ""),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "integer"}, '"7"', 7),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "integer"}, "7.5", 7.5),
        ({"type": "integer"}, "", "left out"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "9" * 5000, "9" * 5000),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, '"true"', True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "integer"}, "None", None),
        ({"type": "array"}, "[1, 'a', None, (True,)]", [1, "a", None, [True]]),
        ({"type": "array"}, '"[1]"', [1]),
        ({"type": "array"}, "[1,\n 2]", [1, 2]),
        (POINT, "{'x': 'it\\'s \"so\"'}", {"x": 'it\'s "so"'}),
        (POINT, '{"x": 1, "x": 2}', {"x": 2}),
        (POINT, "{", "{"),
        (POINT, "[" * 100_000, "[" * 100_000),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"type": ["string", "null"]}, "", ""),
        ({"type": ["string", "integer"]}, "7", 7),
        ({"type": ["string", "integer"]}, "7.5", "7.5"),
        ({"anyOf": [STRING, NULL]}, "text", "text"),
        ({"anyOf": [POINT, NULL]}, "null", None),
        ({"anyOf": [POINT, STRING]}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [POINT, STRING]}, '"a"', "a"),
        ({"anyOf": [POINT, STRING]}, "a", "a"),
        ({"enum": ["a", "7"]}, "7", "7"),
        ({"enum": ["7", 8, True]}, "7", "7"),
        ({"enum": ["7", 8, True]}, "8", 8),
        ({"enum": ["7", 8, True]}, "True", True),
        ({"const": 1.5}, "1.5", 1.5),
        ({"$ref": "#/$defs/p"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/loop"}, "7", 7),
        ({"$ref": "#/$defs/none"}, "7", 7),
        ({"allOf": [{"$ref": "#/$defs/s"}], "description": "one"}, "7", "7"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "7", 7),
        ({"pattern": "^.$"}, "7", "7"),
        ({"type": "str"}, "7", 7),
        ({}, "7", 7),
        ({}, "seven", "seven"),
        ({}, '"seven"', '"seven"'),
        (True, "7", 7),
        (3, "7", 7),
    ],
)
def test_value_gets_the_type_of_its_schema(schema: Any, text: str, expected: Any) -> None:
    defs = {"p": POINT, "s": STRING, "loop": {"$ref": "#/$defs/loop"}}
    found = parse_value(text, schema, {"$defs": defs})
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", ["123456789012345678901.50", "1E+2", "-0"])
def test_number_keeps_the_digits_that_the_model_wrote(text: str) -> None:
    """Check numbers with more digits than a float can represent."""
    tool = Tool("f", "", {"properties": {"a": {"type": "number"}}})
    (one,) = parse(xml_call(f"<parameter=a>\n{text}\n</parameter>\n"), [tool]).tool_calls
    assert one.arguments == f'{{"a": {text}}}'
