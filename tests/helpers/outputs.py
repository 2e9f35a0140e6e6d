"""Outputs as models write them, parsed."""

from __future__ import annotations

import json
from typing import Any

from pymtp.chat import OutputParser, ParsedOutput, Tool

TOOLS = [Tool("f", "", {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}), Tool("g")]


def parse(text: str, tools: list[Tool] = TOOLS, **options: bool) -> ParsedOutput:
    parser = OutputParser(tools, **options)
    parser.push(text)
    parser.finish()
    return parser.output


def xml_call(values: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def parse_value(text: str, schema: Any, root: Any = None) -> Any:
    """Return the parsed value of a parameter with a schema."""
    tool = Tool("f", "", {"properties": {"a": schema}, **(root or {})})
    (parsed_call,) = parse(xml_call(f"<parameter=a>\n{text}\n</parameter>\n"), [tool]).tool_calls
    return json.loads(parsed_call.arguments).get("a", "left out")
