"""Tests of /infill and of the suffix of completions, with the requests of llama.vim and of Continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp.openai.infill import infill_tokens, read_fim_tokens

# What llama.vim sends while its user types, and what it sends to cache its context beforehand
VIM: dict[str, Any] = {
    "input_prefix": "import os\n\ndef size(path):\n",
    "input_suffix": "\n\nprint(size('a'))\n",
    "input_extra": [{"text": "def remove(path):\n    os.remove(path)\n", "time": [5, 6], "filename": "files.py"}],
    "prompt": "    return os.",
    "n_predict": 12,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.90,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "response_fields": [
        "content",
        "timings/prompt_n",
        "timings/prompt_ms",
        "timings/prompt_per_token_ms",
        "timings/prompt_per_second",
        "timings/predicted_n",
        "timings/predicted_ms",
        "timings/predicted_per_token_ms",
        "timings/predicted_per_second",
        "truncated",
        "tokens_cached",
    ],
}
VIM_RING: dict[str, Any] = {
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": VIM["input_extra"],
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "stream": False,
    "samplers": [],
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}
EXPECTED = (
    "<|repo_name|>myproject\n<|file_sep|>files.py\ndef remove(path):\n    os.remove(path)\n<|file_sep|>filename\n"
    "<|fim_prefix|>import os\n\ndef size(path):\n    return os.<|fim_suffix|>\n\nprint(size('a'))\n<|fim_middle|>"
)


@pytest.fixture(scope="module")
def http(fim_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fim_server.url, timeout=LONG) as client:
        yield client


def test_llama_vim_gets_the_fields_that_it_shows(http: httpx.Client) -> None:
    response = http.post("/infill", json=VIM)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert set(answer) == set(VIM["response_fields"])
    assert answer["content"]
    assert answer["timings/predicted_n"] <= 12
    assert "n_indent" in response.headers["x-pymtp-ignored"]


def test_llama_vims_context_is_cached_for_its_next_request(http: httpx.Client) -> None:
    ring = VIM_RING | {"input_extra": [{"text": "a = 1\n" * 200, "filename": "a.py"}]}
    response = http.post("/infill", json=ring)
    assert (response.status_code, response.json()) == (200, {})
    asked = VIM | {"input_extra": ring["input_extra"], "response_fields": ["timings/cache_n"]}
    assert http.post("/infill", json=asked).json()["timings/cache_n"] > 200


def test_infill_prompt_has_the_files_the_prefix_and_the_suffix(http: httpx.Client, fim_server: Server) -> None:
    answer = http.post("/infill", json={**VIM, "response_fields": [], "temperature": 0}).json()
    assert answer["prompt"] == EXPECTED
    tokens = fim_server.llm.model.tokenize(EXPECTED)
    assert answer["tokens_evaluated"] == len(tokens)


def test_infill_streams_the_same_text(http: httpx.Client) -> None:
    body = {**VIM, "response_fields": [], "temperature": 0, "t_max_predict_ms": 0}
    whole = http.post("/infill", json=body).json()["content"]
    lines = http.post("/infill", json={**body, "stream": True}).text.splitlines()
    assert "".join(json.loads(line.removeprefix("data: "))["content"] for line in lines if line) == whole


def test_suffix_of_openais_completions_fills_in(http: httpx.Client) -> None:
    body = {"n_predict": 8, "temperature": 0}
    native = http.post("/infill", json={"input_prefix": "def f(", "input_suffix": "return a", **body}).json()
    asked = {"model": "m", "prompt": "def f(", "suffix": "return a", "max_tokens": 8, "temperature": 0}
    answer = http.post("/v1/completions", json=asked).json()
    assert answer["choices"][0]["text"] == native["content"]
    assert answer["usage"]["prompt_tokens"] == native["tokens_evaluated"]


def test_continue_completes_by_llama_cpp_and_by_ollama(http: httpx.Client) -> None:
    prompt = "<|fim_prefix|>def f(<|fim_suffix|>return a<|fim_middle|>"
    llama_cpp = {"prompt": prompt, "stream": True, "n_predict": 8, "stop": ["\n\n"], "temperature": 0.01}
    events = http.post("/completion", json=llama_cpp).text.splitlines()
    text = "".join(json.loads(event.removeprefix("data: "))["content"] for event in events if event)
    options = {"temperature": 0.01, "num_predict": 8, "stop": ["\n\n"], "num_ctx": 2048}
    ollama = {"model": "fim", "prompt": "def f(", "suffix": "return a", "raw": True, "options": options}
    shown = http.post("/api/show", json={"name": "fim"}).json()
    assert ".Suffix" in shown["template"]  # Continue takes it for a sign that the model can fill in
    lines = http.post("/api/generate", json={**ollama, "keep_alive": 1800, "stream": True}).text.splitlines()
    assert "".join(json.loads(line)["response"] for line in lines)
    assert text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/v1/completions", {"model": "m", "prompt": "a", "suffix": "b"}),
        ("/api/generate", {"model": "m", "prompt": "a", "suffix": "b"}),
    ],
)
def test_model_without_the_tokens_refuses(server: Server, path: str, body: dict[str, Any]) -> None:
    response = httpx.post(server.url + path, json=body, timeout=LONG)
    assert response.status_code == 400
    assert "cannot fill in text" in response.text


@pytest.mark.parametrize("extra", [{}, {"filename": "a"}, {"filename": 1, "text": "a"}, {"text": 1}])
def test_files_without_text_are_refused(http: httpx.Client, extra: dict[str, Any]) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "input_extra": [extra]}
    assert http.post("/infill", json=body).status_code == 400


def test_infill_prompt_fits_in_the_context(fim_server: Server) -> None:
    model = fim_server.llm.model
    special = read_fim_tokens(model)
    prefix, suffix = model.tokenize("a = 1\n" * 100), model.tokenize("b = 2\n" * 100)
    files = [("x.py", "c = 3\n" * 100)]
    for n_ctx, n_predict in ((64, 16), (300, 64), (1000, None), (4096, 100)):
        tokens = infill_tokens(model, special, prefix, suffix, begun="z", files=files, n_ctx=n_ctx, n_predict=n_predict)
        assert len(tokens) + (n_predict or 1) <= n_ctx
        start, middle = tokens.index(special.prefix), tokens.index(special.suffix)
        n_prefix, n_suffix = middle - start - 2, len(tokens) - middle - 2
        assert tokens[start + 1 : middle - 1] == prefix[len(prefix) - n_prefix :]
        assert tokens[middle + 1 : -1] == suffix[:n_suffix]
        assert n_suffix > 0
    assert tokens[0] == special.repo  # with room for all
