"""Tests of three APIs with llm-comply, which checks scenarios against the published specifications of the APIs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import llm_comply
import pytest
from helpers.servers import LONG, Server
from llm_comply import result, runner, test_case  # imported as modules: pytest would collect classes named Test…
from llm_comply.config import ComplianceConfig
from llm_comply.schema import SpecLoader
from llm_comply.tests import get_tests

SPECS = {"openai-chat": "openai_chat.json", "anthropic": "anthropic.json", "open-responses": "openresponses.json"}
MODEL = "gpt-5-claude-opus"  # llm-comply runs scenarios with thinking only for certain model names

# Scenarios need answers that end within their tokens, and some need a thinking. The shipped model thinks about few
# questions, and need not end the answers to those that it does not know: grammars help it.
ENDS = {"guided_regex": "[a-zA-Z ]{1,40}", "enable_thinking": False}
THINKS = {"grammar": r'root ::= [a-z ]{1,20} "\n</think>\n\n" [a-zA-Z ]{1,40}'}
ONE_CALL = {"parallel_tool_calls": False}
ONE_CALLS = {
    "chat-tool-calling": ONE_CALL,
    "anth-tool-calling": {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    "tool-calling": ONE_CALL,
}
THINKING = ("chat-reasoning-summary", "anth-thinking-display", "reasoning-summary")
# Scenarios that cannot pass, each with the reason.
MODEL_IS_OPTIONAL = "the request lacks only its model, which is optional here"
CANNOT = dict.fromkeys(("chat-error-handling", "error-handling"), MODEL_IS_OPTIONAL)


def scenarios() -> list[Any]:
    return [
        pytest.param(
            form,
            case,
            id=case.id,
            marks=[pytest.mark.xfail(reason=CANNOT[case.id])] if case.id in CANNOT else [],
        )
        for form in SPECS
        for case in get_tests(form)
    ]


def helped(case: test_case.TestCase) -> test_case.TestCase:
    def request(config: ComplianceConfig) -> dict[str, Any]:
        body = case.build_request(config)
        for tool in body.get("tools", ()):
            function = tool.get("function", tool)
            schema = function.get("input_schema") or function["parameters"]
            schema["properties"]["location"]["maxLength"] = 20
        if "tools" in body:
            return body | ONE_CALLS[case.id]
        return body | (THINKS if case.id in THINKING else ENDS)

    return dataclasses.replace(case, build_request=request)


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("form", "case"), scenarios())
def test_api_passes_the_llm_comply_scenario(seeing_server: Server, form: str, case: test_case.TestCase) -> None:
    url, key = f"{seeing_server.url}/v1", seeing_server.key
    config = ComplianceConfig(base_url=url, api_key=key, model=MODEL, timeout=LONG, verbose=True)
    spec = SpecLoader(str(Path(llm_comply.__file__).parent / "specs" / SPECS[form]))
    found = runner.TestRunner(config, [], spec).run_one(helped(case))
    assert found.status is result.TestStatus.PASSED, (found.errors, found.response)
