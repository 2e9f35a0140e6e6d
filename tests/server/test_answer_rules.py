"""Tests of answers beside thinking, in all APIs: rules for the answer, stops, and fields that switch thinking off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server
from makers.chat_templates import DROPS_THINKING
from makers.gguf_variants import rewrite

from pymtp import SamplingParams

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
APIS = (CHAT, MESSAGES, RESPONSES)
HELLO = [{"role": "user", "content": "hi"}]
REQUEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 60, "temperature": 0},
    TEXT: {"prompt": "hi", "max_tokens": 60, "temperature": 0},
    RESPONSES: {"input": "hi", "max_output_tokens": 60, "temperature": 0},
    MESSAGES: {"messages": HELLO, "max_tokens": 60, "temperature": 0, "thinking": {"type": "adaptive"}},
}
THOUGHT = {"grammar": 'root ::= "I STOP think</think>\\n\\nanswer\\n\\nSTOP now"'}
PLAIN = {"grammar": 'root ::= "plain"'}
SCHEMA = {"type": "object", "properties": {"v": {"const": "a STOP b"}}, "required": ["v"]}


@pytest.fixture(scope="module")
def thinker(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("models") / "thinker.gguf"
    rewrite(demo, path, metadata={"tokenizer.chat_template": DROPS_THINKING})
    server = Server(model=path, n_ctx=1024).ready()
    yield server
    server.close()


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
def test_stop_string_waits_for_the_answer(thinker: Server, url: str, stop: str, right: str) -> None:
    field = "stop_sequences" if url == MESSAGES else "stop"
    found = answer(thinker, url, **THOUGHT, **{field: [stop]})
    assert texts(url, found) == ("I STOP think", right)
    assert url != MESSAGES or (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", stop)


def test_stop_string_waits_for_the_answer_in_a_stream_and_after_a_budget(thinker: Server) -> None:
    found = answer(thinker, CHAT, stop=["a", "e", "i", "o", " ", "\n"], thinking_budget=6)
    thought, text = texts(CHAT, found)
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
    assert set(thought) & set("aeio ")
    assert not set(text) & set("aeio \n")
    assert streamed_content(thinker, **THOUGHT, stop="STOP") == "answer\n\n"


def test_stop_string_within_a_schema_ends_the_answer_and_not_the_thinking(thinker: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    thought, text = texts(CHAT, answer(thinker, CHAT, response_format=wanted, stop=["STOP"], thinking_budget=6))
    assert thought
    assert text.endswith('"a ')


@pytest.mark.parametrize("url", [CHAT, TEXT, *APIS[1:]])
def test_rule_holds_for_the_answer_after_the_thinking(thinker: Server, url: str) -> None:
    budget = {} if url == TEXT else {"thinking_budget": 6}
    for fields, right in (
        ({"guided_choice": ["red", "blue"]}, {"red", "blue"}),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, {"yes!", "no!"}),
        ({"ebnf": 'root ::= "e" [12]'}, {"e1", "e2"}),
        ({"guided_json": '{"const": 7}'}, {"7"}),
    ):
        found = answer(thinker, url, **fields, **budget)
        thought, text = ("-", found["choices"][0]["text"]) if url == TEXT else texts(url, found)
        assert text in right
        assert thought


def test_rule_waits_for_the_end_of_a_thinking_without_a_budget(thinker: Server) -> None:
    found = answer(thinker, CHAT, guided_choice=["red", "blue"], max_tokens=20)
    assert texts(CHAT, found)[1] in ("", "red", "blue")
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] > 6


def test_rule_gives_one_text_with_drafts_and_without(thinker: Server) -> None:
    fields = {"guided_regex": "[a-z ]{10,40}", "temperature": 1.0, "seed": 3, "thinking_budget": 8}
    drafted = answer(thinker, CHAT, **fields)
    plain = answer(thinker, CHAT, **fields, draft_tokens=0)
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
def test_each_spelling_switches_thinking_off(thinker: Server, fields: dict[str, Any]) -> None:
    assert texts(CHAT, answer(thinker, CHAT, **PLAIN, **fields)) == ("", "plain")
    assert texts(RESPONSES, answer(thinker, RESPONSES, **PLAIN, **fields)) == ("", "plain")
    if "reasoning" not in fields:
        own = {"thinking": None} | fields
        assert texts(MESSAGES, answer(thinker, MESSAGES, **PLAIN, **own)) == ("", "plain")


@pytest.mark.parametrize(
    "fields", [{"reasoning": {"exclude": True}}, {"include_reasoning": False}, {"reasoning_format": "hidden"}]
)
def test_thinking_can_be_left_out_of_the_answer(thinker: Server, fields: dict[str, Any]) -> None:
    message = answer(thinker, CHAT, **THOUGHT, **fields)["choices"][0]["message"]
    assert (message["content"], message.keys() & {"reasoning", "reasoning_content"}) == ("answer\n\nSTOP now", set())
    assert streamed_content(thinker, **THOUGHT, **fields) == "answer\n\nSTOP now"
    body = REQUEST[CHAT] | THOUGHT | fields | {"stream": True}
    assert '"reasoning' not in httpx.post(thinker.url + CHAT, json=body, timeout=LONG).text


def test_stop_token_ends_the_answer_and_not_the_thinking(thinker: Server) -> None:
    llm = thinker.llm
    tokens = llm.chat(HELLO, SamplingParams(60, grammar=THOUGHT["grammar"])).token_ids
    n = next(i for i in range(len(tokens)) if "</think>" in llm.model.detokenize(tokens[:i]))
    at, token = next((i, token) for i, token in enumerate(tokens) if i > n and token in tokens[:n])
    assert llm.model.token_bytes(token)
    found = answer(thinker, CHAT, **THOUGHT, stop_token_ids=[token])
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
