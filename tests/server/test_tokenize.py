"""Tests of /tokenize, /detokenize, /props and /version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp import build_info
from pymtp.model.model import Model
from pymtp.server.tokenize import DetokenizeResponse, TokenizeResponse

TEXT = "def f(ö): <|im_end|>"


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


@pytest.mark.parametrize("name", ["content", "prompt"])
def test_tokenize_and_detokenize_round_trip(http: httpx.Client, server: Server, name: str) -> None:
    found = http.post("/tokenize", json={name: TEXT}).json()
    assert found["tokens"] == server.llm.model.tokenize(TEXT, add_special=False)
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 4096)
    back = http.post("/detokenize", json={"tokens": found["tokens"]}).json()
    assert back["content"] == back["prompt"] == "def f(ö): "  # control tokens have no text


@pytest.mark.parametrize("request_body", [{"special": True}, {"skip_special_tokens": False}])
def test_control_tokens_are_detokenized_on_request(http: httpx.Client, request_body: dict[str, bool]) -> None:
    tokens = http.post("/tokenize", json={"content": TEXT}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens, **request_body}).json()["content"] == TEXT
    (name, said), *_ = request_body.items()
    assert http.post("/detokenize", json={"tokens": tokens, name: not said}).json()["content"] == "def f(ö): "


def test_special_and_skip_special_tokens_exclude_each_other(http: httpx.Client) -> None:
    request_body = {"tokens": [1], "special": True, "skip_special_tokens": True}
    assert http.post("/detokenize", json=request_body).status_code == 400


def test_pieces_are_text_or_bytes(http: httpx.Client, server: Server) -> None:
    request_body = {"content": "aö", "with_pieces": True, "return_token_strs": True}
    found = http.post("/tokenize", json=request_body).json()
    assert [one["piece"] for one in found["tokens"]] == ["a", [0xC3], [0xB6]]
    tokens = server.llm.model.tokenize("aö")
    assert found["token_strs"] == [server.llm.model.token_text(token) for token in tokens]


def test_responses_match_their_models(http: httpx.Client) -> None:
    for request_body in ({"content": TEXT}, {"content": TEXT, "with_pieces": True, "return_token_strs": True}):
        found = http.post("/tokenize", json=request_body).json()
        reported = TokenizeResponse.model_validate(found, extra="forbid").model_dump()
        assert reported == {"token_strs": None, **found}
    found = http.post("/detokenize", json={"tokens": [1, 2]}).json()
    assert set(found) == set(DetokenizeResponse.model_validate(found).model_dump())


def test_tokenize_requires_a_text(http: httpx.Client) -> None:
    for body in ({}, {"content": None}):
        assert http.post("/tokenize", json=body).status_code == 400
    assert http.post("/tokenize", json={"content": ""}).json()["tokens"] == []


def test_too_long_input_of_tokenize_and_detokenize_is_refused(http: httpx.Client) -> None:
    most = 2**20  # the limit, because it is more than 64 times the 4,096 tokens of the context
    assert http.post("/tokenize", json={"content": "a" * most}).status_code == 200
    refused = http.post("/tokenize", json={"content": "a" * (most + 1)})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    assert http.post("/detokenize", json={"tokens": [0] * (most + 1)}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [("tokenize", {"content": "aö", "with_pieces": True, "return_token_strs": True}), ("detokenize", {"tokens": [1]})],
)
def test_tokenization_does_not_run_on_the_event_loop(
    http: httpx.Client, server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    threads: list[str] = []
    for name in ("tokenize", "detokenize", "token_bytes", "token_text"):
        call = getattr(Model, name)

        def reported(*args: Any, _call: Any = call, **keywords: Any) -> Any:
            threads.append(threading.current_thread().name)
            return _call(*args, **keywords)

        monkeypatch.setattr(Model, name, reported)
    assert http.post(f"/{path}", json=body).status_code == 200
    assert threads
    assert all(name.startswith("pymtp") for name in threads)


def test_props_and_version_describe_model_and_build(http: httpx.Client, server: Server) -> None:
    card = http.get("/v1/models/demo").json()
    meta = card["meta"]
    assert (card["max_model_len"], meta["n_vocab"], meta["mtp"]) == (4096, server.llm.model.n_vocab, True)
    assert http.get("/models").json() == http.get("/v1/models").json()
    props = http.get("/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (4, 4096)
    assert props["chat_template"] == server.llm.model.chat_template
    info = build_info()
    assert http.get("/version").json() == {"version": info["pymtp"], "llama_cpp": info["llama_cpp_commit"]}
