"""Tests of short schemas that ask for endless work: they are converted or refused soon."""

from pymtp.chat import OutputFormat, Tool
from pymtp.chat.tool_parameters import ALL_TYPES, ToolParameter, ToolParameters

XML = "<tool_call><function="
DEEP = 60  # each level doubles the work: nobody would wait for 2**60


def shared_alternatives() -> dict[str, object]:
    both = {f"a{i}": {"anyOf": 2 * [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(DEEP)}
    both[f"a{DEEP}"] = {"type": "string"}  # type: ignore[dict-item]
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": both}


def schema_refused_after_its_parts() -> dict[str, object]:
    part: dict[str, object] = {"type": "string"}
    for _ in range(DEEP):
        part = {"type": ["object", "array"], "properties": {"a": part}, "minItems": -1}
    return {"type": "object", "properties": {"x": part}}


def test_shared_alternatives_are_not_visited_one_by_one() -> None:
    schema = shared_alternatives()
    assert ToolParameter(schema["properties"]["x"], schema).types == ALL_TYPES  # type: ignore[index]
    assert OutputFormat(XML, "", tools=[Tool("f", parameters=schema)]).gbnf


def test_parameter_types_include_those_of_nested_alternatives() -> None:
    part: object = {"type": "string"}
    for _ in range(6):
        part = {"anyOf": [part, part]}
    assert ToolParameter(part, {}).types == {"string"}
    assert ToolParameter(part, {}).is_raw


def test_schema_with_a_malformed_keyword_at_each_level_is_converted_once() -> None:
    grammar = OutputFormat(XML, "", tools=[Tool("f", parameters=schema_refused_after_its_parts())]).gbnf
    assert grammar is not None
    assert len(grammar) < 100_000


def test_repeated_references_are_merged_once() -> None:
    names = [f"r{i}" for i in range(100)]
    parameters = {"part": {"required": names}, "allOf": 100 * [{"$ref": "#/part"}]}
    assert ToolParameters(Tool("f", parameters=parameters)).required == set(names)


def test_parameters_are_merged_as_schemas_of_answers_are() -> None:
    part = {"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    both = {"$defs": {"p": part}, "allOf": [{"$ref": "#/$defs/p"}, {"properties": {"a": {"enum": ["y", "z"]}}}]}
    parameters = ToolParameters(Tool("f", parameters=both))
    assert (parameters.names, parameters["a"].choices, parameters.combining) == (["a"], ("y",), frozenset())
    one = {"properties": {"a": {"const": 1}, "b": {"type": "null"}}, "required": ["a", "b"]}
    other = {"properties": {"a": {"const": 2}, "b": {"type": "null"}}, "required": ["a"]}
    either = ToolParameters(Tool("f", parameters={"type": "object", "oneOf": [one, other]}))
    assert (either.names, either.required, either.combining) == (["a", "b"], {"a"}, frozenset({"oneOf"}))
    assert "integer" in either["a"].types
    assert "string" not in either["a"].types
