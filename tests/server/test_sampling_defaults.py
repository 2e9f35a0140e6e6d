"""Tests of default sampling parameters: the server's options override the values of the model file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import make_llm
from helpers.served import Served
from helpers.servers import LONG, Server
from helpers.tuned import TUNED

from pymtp import LLM, SamplingParams
from pymtp.chat import Chat
from pymtp.server.settings import ServerSettings

# The model continues both in many ways, so that each sampling parameter changes the text.
SAID = "Once upon a time"
QUESTION = "Tell a story."
MESSAGES = [{"role": "user", "content": QUESTION}]
NO_THINKING = {"enable_thinking": False}  # the default of one of the APIs
CHAT = Chat(MESSAGES, chat_template_kwargs=NO_THINKING)
OWN = {"temperature": 2.0, "presence_penalty": 0.5, "seed": 6}  # sampling options of the server
# Fields of requests. All values differ from the values of the model file and of the server's options.
GIVEN: dict[str, Any] = {
    "temperature": 0.4,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.5,
    "repetition_penalty": 1.7,
    "presence_penalty": 1.5,
    "frequency_penalty": 0.7,
    "seed": 9,
}


@pytest.fixture(scope="module")
def llm(tuned: Path) -> Iterator[LLM]:
    """Return an LLM of the model file with sampling defaults, without a server."""
    with make_llm(tuned) as llm:
        yield llm


@pytest.fixture(scope="module")
def tuned_server(tuned: Path) -> Iterator[Server]:
    """Return a server for the model file with sampling defaults; the server has sampling options, too."""
    server = Server(ServerSettings(sampling=OWN), lambda: make_llm(tuned, n_seq_max=4)).ready()
    yield server
    server.close()


def chat(url: str, **fields: Any) -> str:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 24, **NO_THINKING, **fields}
    found: str = post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"]
    return found


def completion(url: str, **fields: Any) -> str:
    found: str = post(f"{url}/v1/completions", {"prompt": SAID, "max_tokens": 24, **fields})["choices"][0]["text"]
    return found


def message(url: str, **fields: Any) -> str:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 24, **fields}
    return "".join(block["text"] for block in post(f"{url}/v1/messages", body)["content"])


def response(url: str, **fields: Any) -> str:
    body = {"model": "m", "input": QUESTION, "max_output_tokens": 24, **NO_THINKING, **fields}
    return "".join(part["text"] for item in post(f"{url}/v1/responses", body)["output"] for part in item["content"])


def post(url: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(url, json=body, timeout=LONG)
    assert answer.status_code == 200, answer.text
    return answer.json()


APIS = [chat, completion, message, response]


def expected(llm: LLM, ask: Callable[..., str], **fields: Any) -> str:
    params = SamplingParams(24, **{**TUNED, **OWN, **fields})
    if ask is completion:
        return llm.generate(SAID, params).text
    return llm.generate(CHAT, params).text


@pytest.mark.parametrize("ask", APIS)
def test_server_options_override_the_defaults_of_the_model_file(
    tuned_server: Server, llm: LLM, ask: Callable[..., str]
) -> None:
    text = ask(tuned_server.url)
    assert text == expected(llm, ask)
    assert ask(tuned_server.url, temperature=None, top_k=None, seed=None) == text
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    assert text != expected(llm, ask, **neutral)


@pytest.mark.parametrize("ask", APIS)
@pytest.mark.parametrize("name", GIVEN)
def test_request_field_overrides_only_its_own_default(
    tuned_server: Server, llm: LLM, ask: Callable[..., str], name: str
) -> None:
    given = {name: GIVEN[name]}
    text = expected(llm, ask, **given)
    assert text != expected(llm, ask)
    assert ask(tuned_server.url, **given) == text


@pytest.mark.parametrize("ask", APIS)
def test_temperature_0_is_greedy(tuned_server: Server, llm: LLM, ask: Callable[..., str]) -> None:
    penalties = {"presence_penalty": 0, "repetition_penalty": 1}
    greedy = SamplingParams(24)
    text = llm.generate(SAID if ask is completion else CHAT, greedy).text
    assert text != expected(llm, ask, **penalties)
    assert ask(tuned_server.url, temperature=0, **penalties) == text


def test_defaults_are_reported_under_the_names_of_request_fields(tuned_server: Server, server: Server) -> None:
    reported = {
        "temperature": 2.0,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.02,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.0,
        "repeat_penalty": 1.2,
        "repeat_last_n": 9,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "top_n_sigma": 0.0,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "seed": 6,
    }
    props = httpx.get(f"{tuned_server.url}/props").json()
    assert props["default_generation_settings"]["params"] == reported
    (card,) = httpx.get(f"{tuned_server.url}/v1/models").json()["data"]
    assert card["meta"]["sampling"] == reported
    assert chat(tuned_server.url, **reported) == chat(tuned_server.url)
    (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert {name: card["meta"]["sampling"][name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")} == {
        "temperature": 0.2,  # of the shipped model's file
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": -1,
    }


def test_response_reports_its_sampling_parameters(tuned_server: Server) -> None:
    done = post(f"{tuned_server.url}/v1/responses", {"model": "m", "input": SAID, "max_output_tokens": 2})
    assert (done["temperature"], done["top_p"], done["presence_penalty"]) == (2.0, 0.9, 0.5)


def test_special_values_work_in_server_defaults(new_server: Callable[..., Server]) -> None:
    alone = new_server(sampling={"top_p": 0, "top_k": -1, "seed": -1}).ready()
    greedy = new_server(sampling={"temperature": 0}).ready()
    assert chat(alone.url) == chat(greedy.url)


def test_sampling_options_of_the_command_line_become_defaults(
    serve: Callable[..., Served], tuned: Path, llm: LLM
) -> None:
    options = ("--temp", "1.1", "--presence-penalty", "0.5", "--top-k", "-1", "--repeat-penalty", "1.3")
    served = serve("-m", tuned, *options, "--repeat-last-n", "-1", "--seed", "3", "-c", "1024").ready()
    line = served.line("default sampling parameters")
    assert "temperature=1.1 top_k=0 top_p=0.9 min_p=0.02" in line
    given = {"temperature": 1.1, "presence_penalty": 0.5, "top_k": 0, "repetition_penalty": 1.3, "penalty_last_n": -1}
    text = llm.generate(CHAT, SamplingParams(24, seed=3, **TUNED | given)).text
    assert chat(served.url) == text
    others = [SamplingParams(24), SamplingParams(24, seed=4, **TUNED | given), SamplingParams(24, seed=3, **TUNED)]
    assert text not in [llm.generate(CHAT, other).text for other in others]
