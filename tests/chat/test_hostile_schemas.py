"""Claims about short schemas that ask for endless work: it ends soon, as an answer or an error."""

import pytest

from pymtp.chat import AnswerFormat, Tool
from pymtp.chat.tool_parameters import ALL, Parameter
from pymtp.errors import InvalidRequestError
from pymtp.grammar.relax import joined

XML = "<tool_call><function="
DEEP = 60  # each level doubles the work: nobody would wait for 2**60


def shared_alternatives() -> dict[str, object]:
    both = {f"a{i}": {"anyOf": 2 * [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(DEEP)}
    both[f"a{DEEP}"] = {"type": "string"}  # type: ignore[dict-item]
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": both}


def refused_behind_its_parts() -> dict[str, object]:
    part: dict[str, object] = {"type": "string"}
    for _ in range(DEEP):
        part = {"type": ["object", "array"], "properties": {"a": part}, "minItems": -1}
    return {"type": "object", "properties": {"x": part}}


def test_alternatives_that_share_parts_are_not_looked_at_one_by_one() -> None:
    schema = shared_alternatives()
    assert Parameter(schema["properties"]["x"], schema).types == ALL  # type: ignore[index]
    assert AnswerFormat(XML, "", tools=[Tool("f", parameters=schema)]).gbnf


def test_alternatives_of_a_few_levels_have_their_types() -> None:
    part: object = {"type": "string"}
    for _ in range(6):
        part = {"anyOf": [part, part]}
    assert Parameter(part, {}).types == {"string"}
    assert Parameter(part, {}).is_raw


def test_a_schema_that_is_tried_again_at_each_level_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="too large"):
        AnswerFormat(XML, "", tools=[Tool("f", parameters=refused_behind_its_parts())])


def test_what_is_referred_to_again_and_again_is_joined_once() -> None:
    names = [f"r{i}" for i in range(100)]
    root = {"part": {"required": names}, "allOf": 100 * [{"$ref": "#/part"}]}
    assert joined({"allOf": root["allOf"]}, root) == {"required": names}
