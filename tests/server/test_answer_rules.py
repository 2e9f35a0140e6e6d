"""Tests of answers beside thinking, in all APIs: rules for the answer, stops, and fields that switch thinking off."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp import SamplingParams

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
APIS = (CHAT, MESSAGES, RESPONSES)
SUM = "What is 457 + 86?"  # the shipped model thinks about it for more than 10 tokens
CHAT_OF_SUM = [{"role": "user", "content": SUM}]
REQUEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": CHAT_OF_SUM, "max_tokens": 60, "temperature": 0},
    TEXT: {"prompt": SUM, "max_tokens": 60, "temperature": 0},
    RESPONSES: {"input": SUM, "max_output_tokens": 60, "temperature": 0},
    MESSAGES: {"messages": CHAT_OF_SUM, "max_tokens": 60, "temperature": 0, "thinking": {"type": "adaptive"}},
}
THOUGHT = {"grammar": 'root ::= "I STOP think</think>\\n\\nanswer\\n\\nSTOP now"'}
PLAIN = {"grammar": 'root ::= "plain"'}
SCHEMA = {"type": "object", "properties": {"v": {"const": "a STOP b"}}, "required": ["v"]}


def answer(server: Server, url: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(server.url + url, json=REQUEST[url] | body, timeout=LONG)
    assert response.status_code == 200, response.text
    assert "x-pymtp-ignored" not in response.headers
    found: dict[str, Any] = response.json()
    return found


def texts(url: str, found: dict[str, Any]) -> tuple[str, str]:
    """Return the thinking and the text of an answer."""
    if url == CHAT:
        message = found["choices"][0]["message"]
        return message.get("reasoning_content") or "", message["content"]
    blocks = found["content"] if url == MESSAGES else [{**part} for item in found["output"] for part in item["content"]]
    return (
        "".join(block.get("thinking", "") + block["text"] * (block["type"] == "reasoning_text") for block in blocks)
        if url == RESPONSES
        else "".join(block.get("thinking", "") for block in blocks),
        "".join(block["text"] for block in blocks if block["type"] in ("text", "output_text")),
    )


def streamed_content(server: Server, **body: Any) -> str:
    response = httpx.post(server.url + CHAT, json=REQUEST[CHAT] | body | {"stream": True}, timeout=LONG)
    assert response.status_code == 200, response.text
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n")[:-2]]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("url", APIS)
@pytest.mark.parametrize(("stop", "right"), [("STOP", "answer\n\n"), ("\n\n", "answer")])
def test_stop_string_waits_for_the_answer(server: Server, url: str, stop: str, right: str) -> None:
    field = "stop_sequences" if url == MESSAGES else "stop"
    found = answer(server, url, **THOUGHT, **{field: [stop]})
    assert texts(url, found) == ("I STOP think", right)
    assert url != MESSAGES or (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", stop)


def test_stop_string_waits_for_the_answer_in_a_stream_and_after_a_budget(server: Server) -> None:
    stops = {*"0123456789 \n"}
    found = answer(server, CHAT, stop=[*stops], thinking_budget=6)
    thought, text = texts(CHAT, found)
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
    assert found["choices"][0]["finish_reason"] == "stop"
    assert set(thought) & stops
    assert not set(text) & stops
    assert streamed_content(server, **THOUGHT, stop="STOP") == "answer\n\n"


def test_stop_string_within_a_schema_ends_the_answer_and_not_the_thinking(server: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    thought, text = texts(CHAT, answer(server, CHAT, response_format=wanted, stop=["STOP"], thinking_budget=6))
    assert thought
    assert text.endswith('"a ')


@pytest.mark.parametrize("url", [CHAT, TEXT, *APIS[1:]])
def test_rule_holds_for_the_answer_after_the_thinking(server: Server, url: str) -> None:
    budget = {} if url == TEXT else {"thinking_budget": 6}
    for fields, right in (
        ({"guided_choice": ["red", "blue"]}, {"red", "blue"}),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, {"yes!", "no!"}),
        ({"ebnf": 'root ::= "e" [12]'}, {"e1", "e2"}),
        ({"guided_json": '{"const": 7}'}, {"7"}),
    ):
        found = answer(server, url, **fields, **budget)
        thought, text = ("-", found["choices"][0]["text"]) if url == TEXT else texts(url, found)
        assert text in right
        assert thought


def test_rule_waits_for_the_end_of_a_thinking_without_a_budget(server: Server) -> None:
    found = answer(server, CHAT, guided_choice=["red", "blue"], max_tokens=20)
    assert texts(CHAT, found)[1] in ("", "red", "blue")
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] > 6


def test_rule_gives_one_text_with_drafts_and_without(server: Server) -> None:
    fields = {"guided_regex": "[a-z ]{10,40}", "temperature": 1.0, "seed": 3, "thinking_budget": 8}
    drafted = answer(server, CHAT, **fields)
    plain = answer(server, CHAT, **fields, draft_tokens=0)
    assert texts(CHAT, drafted) == texts(CHAT, plain)
    assert (drafted["pymtp"]["drafted"] > 0, plain["pymtp"]["drafted"]) == (True, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"enable_thinking": "false"},
        {"chat_template_kwargs": {"enable_thinking": "False"}},
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"enabled": False}},
        {"reasoning": {"max_tokens": 0}},
        {"thinking": {"type": "disabled"}},
        {"thinking_budget": 0},
    ],
)
def test_each_spelling_switches_thinking_off(server: Server, fields: dict[str, Any]) -> None:
    assert texts(CHAT, answer(server, CHAT, **PLAIN, **fields)) == ("", "plain")
    assert texts(RESPONSES, answer(server, RESPONSES, **PLAIN, **fields)) == ("", "plain")
    if "reasoning" not in fields:
        own = {"thinking": None} | fields
        assert texts(MESSAGES, answer(server, MESSAGES, **PLAIN, **own)) == ("", "plain")


@pytest.mark.parametrize(
    "fields", [{"reasoning": {"exclude": True}}, {"include_reasoning": False}, {"reasoning_format": "hidden"}]
)
def test_thinking_can_be_left_out_of_the_answer(server: Server, fields: dict[str, Any]) -> None:
    message = answer(server, CHAT, **THOUGHT, **fields)["choices"][0]["message"]
    assert (message["content"], message.keys() & {"reasoning", "reasoning_content"}) == ("answer\n\nSTOP now", set())
    assert streamed_content(server, **THOUGHT, **fields) == "answer\n\nSTOP now"
    body = REQUEST[CHAT] | THOUGHT | fields | {"stream": True}
    assert '"reasoning' not in httpx.post(server.url + CHAT, json=body, timeout=LONG).text


def test_stop_token_ends_the_answer_and_not_the_thinking(server: Server) -> None:
    llm = server.llm
    tokens = llm.chat(CHAT_OF_SUM, SamplingParams(60, grammar=THOUGHT["grammar"])).token_ids
    n = next(i for i in range(len(tokens)) if "</think>" in llm.model.detokenize(tokens[:i]))
    at, token = next((i, token) for i, token in enumerate(tokens) if i > n and token in tokens[:n])
    assert llm.model.token_bytes(token)
    found = answer(server, CHAT, **THOUGHT, stop_token_ids=[token])
    assert found["choices"][0]["finish_reason"] == "stop"
    right = llm.model.detokenize(tokens[n:at]).lstrip("\n")
    assert right
    assert texts(CHAT, found) == ("I STOP think", right)


@pytest.mark.parametrize("url", REQUEST)
@pytest.mark.parametrize(
    ("name", "value"),
    {
        "bad_words": ["a"],
        "min_tokens": 5,
        "allowed_token_ids": [1],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "guided_whitespace_pattern": " ",
        "structural_tag": "x",
        "prompt_logprobs": 1,
        "truncate_prompt_tokens": 5,
    }.items(),
)
def test_field_that_would_change_the_output_is_refused_in_all_apis(
    server: Server, url: str, name: str, value: object
) -> None:
    response = httpx.post(server.url + url, json=REQUEST[url] | {name: value}, timeout=LONG)
    assert response.status_code == 400
    assert f"{name}: not supported" in response.text
