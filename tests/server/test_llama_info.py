"""Tests of /apply-template and /slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from conftest import shipped
from helpers.servers import LONG, Server

from pymtp.server.facts import ModelFacts
from pymtp.server.info import model_card, model_props
from pymtp.server.ollama.models import model_details

HI = [{"role": "user", "content": "hi"}]


def apply_template(server: Server, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/apply-template", json={"messages": HI, **body}, timeout=LONG)


def test_template_is_applied_as_for_a_chat(server: Server) -> None:
    prompt = apply_template(server).json()["prompt"]
    assert prompt == server.llm.chat_template.render(HI)
    chat = {"model": "m", "messages": HI, "max_tokens": 1}
    usage = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=LONG).json()["usage"]
    assert len(server.llm.model.tokenize(prompt)) == usage["prompt_tokens"]
    counted = httpx.post(f"{server.url}/v1/chat/completions/input_tokens", json={"messages": HI}, timeout=LONG).json()
    assert counted["input_tokens"] == usage["prompt_tokens"]


def test_verbose_chat_shows_its_prompt(server: Server) -> None:
    chat = {"messages": HI, "max_tokens": 4, "temperature": 0}
    for more, named in (({"verbose": True}, None), ({}, None), ({"verbose": True, "stream": True}, "verbose")):
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=chat | more, timeout=LONG)
        assert answer.headers.get("x-pymtp-ignored") == named
        if "stream" in more:
            continue
        assert ("__verbose" in answer.json()) == bool(more)
        if more:
            shown = answer.json()["__verbose"]
            assert shown["prompt"] == server.llm.chat_template.render(HI)
            assert (shown["tokens_predicted"], shown["tokens_evaluated"]) == (
                4,
                answer.json()["usage"]["prompt_tokens"],
            )


def test_answer_is_not_begun_on_request(server: Server) -> None:
    with_start, without = (
        apply_template(server, add_generation_prompt=begins).json()["prompt"] for begins in (True, False)
    )
    assert with_start.startswith(without)
    assert with_start != without
    assert without.endswith("hi<|im_end|>\n")


@pytest.mark.parametrize("messages", [None, "a", [1], [{}], [{"role": "user", "content": 1}]])
def test_wrong_messages_are_refused(server: Server, messages: Any) -> None:
    assert apply_template(server, messages=messages).status_code == 400


def test_props_name_the_model_and_its_end_token(server: Server) -> None:
    props = httpx.get(f"{server.url}/props", timeout=LONG).json()
    assert (props["model_alias"], props["eos_token"]) == ("demo", "<|im_end|>")
    assert props["total_slots"] == server.llm.context.n_seq_max


@pytest.mark.parametrize("sees", [True, False])
def test_props_card_and_capabilities_say_if_a_model_sees_images(sees: bool) -> None:
    facts = ModelFacts(shipped(), ("m",), "", 64, 1, {}, sees)
    assert model_props(facts).modalities["vision"] is sees
    assert model_card(facts, "m").meta.vision is sees
    assert ("vision" in model_details(facts)["capabilities"]) is sees


def test_slots_and_metrics_can_be_switched_off(new_server: Callable[..., Server]) -> None:
    server = new_server(slots=False, metrics=False).ready()
    for path in ("slots", "metrics"):
        answer = httpx.get(f"{server.url}/{path}", timeout=LONG)
        assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")


def test_slots_tell_how_many_sequences_work(server: Server) -> None:
    slots = httpx.get(f"{server.url}/slots", timeout=LONG).json()
    assert [slot["id"] for slot in slots] == list(range(server.llm.context.n_seq_max))
    assert {slot["n_ctx"] for slot in slots} == {server.llm.context.n_ctx}
    assert all(set(slot) == {"id", "n_ctx", "speculative", "is_processing"} for slot in slots)
    assert all(slot["speculative"] for slot in slots)
