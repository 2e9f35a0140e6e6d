"""Answers as models write them, and what is read of them."""

from __future__ import annotations

import json
from typing import Any

from pymtp.chat import Answer, AnswerReader, Tool

TOOLS = [Tool("f", "", {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}), Tool("g")]


def answer(text: str, tools: list[Tool] = TOOLS, **way: bool) -> Answer:
    reader = AnswerReader(tools, **way)
    reader.push(text)
    reader.finish()
    return reader.answer


def call(values: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def value(text: str, schema: Any, root: Any = None) -> Any:
    """That of a parameter with a schema."""
    tool = Tool("f", "", {"properties": {"a": schema}, **(root or {})})
    (one,) = answer(call(f"<parameter=a>\n{text}\n</parameter>\n"), [tool]).calls
    return json.loads(one.arguments).get("a", "left out")
