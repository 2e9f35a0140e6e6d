"""Tests of the check of tool calls: a short run of tools/checks/tool_calls.py, and wrong calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tool_calls

from pymtp import LLM
from pymtp.chat import NamedTool


@pytest.mark.parametrize("seeds", [range(0, 4), range(4, 7)])
def test_shipped_model_calls_tools_of_any_schema(llm: LLM, seeds: range) -> None:
    n, problems = tool_calls.check(llm, seeds)
    assert n == 8 * len(seeds)
    assert problems == []


def test_check_reports_wrong_tool_calls(llm: LLM) -> None:
    named = next(one for one in tool_calls.requests_for(llm, 0) if one.choice == NamedTool("third"))
    (tool,) = (tool for tool in named.tools if tool.name == "third")
    strict = {**tool.parameters, "properties": {}, "required": ["never"]}
    asked = replace(named, tools=(*named.tools[:2], replace(tool, parameters=strict)))
    call = "<tool_call>\n<function={}>\n</function>\n</tool_call>"
    assert "is a required property" in (tool_calls.wrong(asked, call.format("third")) or "")
    assert "it calls first" in (tool_calls.wrong(asked, call.format("first")) or "")
    assert "not one call" in (tool_calls.wrong(asked, call.format("third")[:-30]) or "")
    assert "not one call" in (tool_calls.wrong(asked, call.format("third") + "text") or "")
    assert "not one call" in (tool_calls.wrong(asked, "text") or "")
