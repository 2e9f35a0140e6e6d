"""Claims about /tokenize, /detokenize and what is told of the model."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp import build_info

TEXT = "def f(ö): <|im_end|>"


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


@pytest.mark.parametrize("name", ["content", "prompt"])
def test_tokens_are_those_of_the_model_and_lead_back_to_the_text(http: httpx.Client, server: Server, name: str) -> None:
    found = http.post("/tokenize", json={name: TEXT}).json()
    assert found["tokens"] == server.llm.model.tokenize(TEXT, add_special=False)
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 4096)
    back = http.post("/detokenize", json={"tokens": found["tokens"]}).json()
    assert back["content"] == back["prompt"] == "def f(ö): "  # control tokens have no text


def test_pieces_are_text_or_bytes(http: httpx.Client, server: Server) -> None:
    asked = {"content": "aö", "with_pieces": True, "return_token_strs": True}
    found = http.post("/tokenize", json=asked).json()
    assert [one["piece"] for one in found["tokens"]] == ["a", [0xC3], [0xB6]]
    tokens = server.llm.model.tokenize("aö")
    assert found["token_strs"] == [server.llm.model.token_text(token) for token in tokens]


def test_a_text_has_to_come(http: httpx.Client) -> None:
    for body in ({}, {"content": None}):
        assert http.post("/tokenize", json=body).status_code == 400
    assert http.post("/tokenize", json={"content": ""}).json()["tokens"] == []


def test_the_model_and_the_build_are_told(http: httpx.Client, server: Server) -> None:
    card = http.get("/v1/models/demo").json()
    assert (card["max_model_len"], card["meta"]["n_vocab"], card["meta"]["mtp"]) == (4096, 2048, True)
    assert http.get("/models").json() == http.get("/v1/models").json()
    props = http.get("/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (4, 4096)
    assert props["chat_template"] == server.llm.model.chat_template
    info = build_info()
    assert http.get("/version").json() == {"version": info["pymtp"], "llama_cpp": info["llama_cpp_commit"]}
