"""Tests of thinking in requests: thinking budgets, limits of the server, stop strings and usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp import InvalidRequestError
from pymtp.cli.serve import parse_effort_budgets

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
SUM = "What is 457 + 86?"  # the shipped model thinks about it for more than 10 tokens
CHAT_OF_SUM = [{"role": "user", "content": SUM}]
PROMPT = f"<|im_start|>user\n{SUM}<|im_end|>\n<|im_start|>assistant\n<think>\n"
REQUEST: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": CHAT_OF_SUM, "max_tokens": 30, "temperature": 0},
    TEXT: {"model": "m", "prompt": PROMPT, "max_tokens": 30, "temperature": 0},
    RESPONSES: {"model": "m", "input": SUM, "max_output_tokens": 30, "temperature": 0},
    MESSAGES: {"model": "m", "messages": CHAT_OF_SUM, "max_tokens": 30, "temperature": 0},
}
NAMES = ("thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens")
SCHEMA = {"type": "object", "properties": {"v": {"const": 7}}, "required": ["v"], "additionalProperties": False}


def endless(server: Server) -> dict[str, Any]:
    """Return the fields of a request whose thinking does not end by itself."""
    (end,) = server.llm.model.tokenize("</think>")
    return {"logit_bias": {str(end): -100}}


def post(server: Server, url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{url}", json=REQUEST[url] | body, timeout=LONG)


def chat(server: Server, **body: Any) -> tuple[dict[str, Any], int]:
    """Send a chat request, and return the message and the number of thinking tokens."""
    answer = post(server, CHAT, **body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    n: int = found["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return found["choices"][0]["message"], n


@pytest.mark.parametrize("name", NAMES)
def test_thinking_budget_has_several_field_names(server: Server, name: str) -> None:
    message, thought = chat(server, **{name: 4})
    assert thought == 4
    assert message["reasoning_content"]
    assert message["content"]
    responded = post(server, RESPONSES, **{name: 4}).json()
    assert responded["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    assert [item["type"] for item in responded["output"]] == ["reasoning", "message"]
    usage = post(server, TEXT, **{name: 4}).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_thinking_budget_works_in_the_form_of_anthropics_api(server: Server) -> None:
    thinking = {"type": "enabled", "budget_tokens": 4}
    message = post(server, MESSAGES, thinking=thinking).json()
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 4}
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert chat(server, thinking=thinking)[1] == 4
    assert chat(server, thinking=thinking, thinking_budget=2)[1] == 2


def test_stream_usage_has_the_reasoning_tokens(server: Server) -> None:
    def events(url: str, **body: Any) -> list[dict[str, Any]]:
        lines = post(server, url, stream=True, **body).text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    budget = {"thinking_budget": 3}
    *_, last = events(CHAT, **budget, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    *_, last = events(RESPONSES, **budget)
    assert last["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    *_, last, _ = events(MESSAGES, thinking={"type": "enabled", "budget_tokens": 3})
    assert last["usage"]["output_tokens_details"] == {"thinking_tokens": 3}


@pytest.mark.parametrize("body", [{"thinking_budget": 0}, {"thinking": {"type": "disabled"}}])
def test_thinking_can_be_disabled(server: Server, body: dict[str, Any]) -> None:
    message, thought = chat(server, **body)
    assert thought == 0
    assert "reasoning_content" not in message
    assert message["content"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"thinking_budget": -1},
        {"thinking": {"type": "enabled"}},
        {"thinking_budget": 4097},  # beyond the context
        {"thinking": {"type": "enabled", "budget_tokens": 31999}},
    ],
)
def test_thinking_is_unlimited_by_default(server: Server, body: dict[str, Any]) -> None:
    message, thought = chat(server, **body, **endless(server))
    assert thought == 30
    assert message["content"] == ""


@pytest.mark.parametrize("url", [CHAT, TEXT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("budget", [-2, 2.5, "many", True, 2**31])
def test_invalid_thinking_budget_gets_a_clear_error(server: Server, url: str, budget: Any) -> None:
    answer = post(server, url, thinking_budget=budget)
    assert answer.status_code == 400
    assert "thinking_budget" in answer.json()["error"]["message"]
    if url == MESSAGES:
        answer = post(server, url, thinking={"type": "enabled", "budget_tokens": budget})
        assert answer.status_code == 400
        assert "budget" in answer.json()["error"]["message"]


def test_stop_strings_do_not_match_in_thinking(server: Server) -> None:
    held = {
        "grammar": 'root ::= "I STOP think</think>\\n\\nanswer STOP now"',
        "max_tokens": 99,
        "stop": ["STOP"],
    }
    message, thought = chat(server, **held)
    assert (message["reasoning_content"], message["content"]) == ("I STOP think", "answer ")
    assert 0 < thought <= len("I STOP think")
    message, _ = chat(server, **held, reasoning_format="none")
    assert message["content"] == "I "
    both = {name: held[name] for name in ("grammar", "max_tokens")}
    reported = post(server, MESSAGES, **both, stop_sequences=["STOP"], thinking={"type": "enabled"}).json()
    assert (reported["stop_reason"], reported["stop_sequence"]) == ("stop_sequence", "STOP")
    assert [block.get("thinking", block.get("text")) for block in reported["content"]] == ["I STOP think", "answer "]


@pytest.mark.parametrize("budget", [0, 1, 5, 9])
def test_schemas_and_tools_work_with_a_thinking_budget(server: Server, budget: int) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    more = {"temperature": 1, "seed": budget, "thinking_budget": budget, "max_tokens": 200}
    message, thought = chat(server, **more, response_format=form)
    assert json.loads(message["content"]) == {"v": 7}
    assert thought <= budget
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    one = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    message, thought = chat(server, **more, **one)
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"v": 7}
    assert thought <= budget
    assert "</think>" not in (message["content"] or "")


def test_server_budget_limits_requests_and_efforts(new_server: Callable[..., Server]) -> None:
    server = new_server(
        reasoning_budget=8,
        reasoning_budget_message="\nEnough.",
        effort_budgets={"low": 2, "medium": 5, "high": 99},
        llm={"n_ctx": 1024},
    ).ready()
    for body, n in (
        ({}, 8),
        ({"thinking_budget": 3}, 3),
        ({"thinking_budget": 100}, 8),
        ({"thinking_budget": -1}, 8),
        ({"reasoning_effort": "low"}, 2),
        ({"reasoning_effort": "medium", "thinking_budget": 6}, 6),
        ({"reasoning_effort": "high"}, 8),
        ({"reasoning_effort": "none"}, 0),
        ({"reasoning_effort": "xhigh"}, 8),
    ):
        message, thought = chat(server, **body)
        assert thought == n, body
        assert message.get("reasoning_content", "").endswith("\nEnough.") == (n > 0)
    responded = post(server, RESPONSES, reasoning={"effort": "medium"}).json()
    assert responded["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}
    request_body = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    assert post(server, MESSAGES, **request_body).json()["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    usage = post(server, TEXT, **endless(server)).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 30}


def test_server_budget_of_0_disables_thinking(new_server: Callable[..., Server]) -> None:
    server = new_server(reasoning_budget=0, llm={"n_ctx": 1024}).ready()
    for body in ({}, {"thinking_budget": 9}, {"chat_template_kwargs": {"enable_thinking": True}}):
        message, thought = chat(server, **body)
        assert thought == 0
        assert "reasoning_content" not in message


def test_server_budget_beyond_the_context_is_ignored(new_server: Callable[..., Server]) -> None:
    limits: dict[str, Any] = {"reasoning_budget": 2**20, "effort_budgets": {"low": 2**20}}
    server = new_server(**limits, llm={"n_ctx": 1024}).ready()
    assert chat(server, reasoning_effort="low", **endless(server))[1] == 30
    assert chat(server, thinking_budget=2)[1] == 2


def test_effort_budgets_are_parsed() -> None:
    assert parse_effort_budgets("--effort-budgets", "low=1024, high=0") == {"low": 1024, "high": 0}
    assert parse_effort_budgets("--effort-budgets", "") == {}


@pytest.mark.parametrize("text", ["low", "low=", "=5", "low=-1", "low=x", "low=1,low=2", "low=1,", "low=99999999999"])
def test_invalid_effort_budgets_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"--effort-budgets .* such as low=1024,high=8192"):
        parse_effort_budgets("--effort-budgets", text)
