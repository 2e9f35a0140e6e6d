"""Tests of /infill and of the suffix of completions, with the requests of llama.vim and of Continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite

from pymtp.openai.infill import first_tokens, infill_tokens, last_tokens, read_fim_tokens

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
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


@pytest.fixture(scope="module")
def without_tokens(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the shipped model without the tokens for infilling: its vocabulary has other names for them."""
    path = tmp_path_factory.mktemp("models") / "without-fim.gguf"
    names = [str(name) for name in open_gguf(demo).fields["tokenizer.ggml.tokens"].contents()]
    rewrite(demo, path, metadata={"tokenizer.ggml.tokens": [name.replace("<|fim_", "<|other_") for name in names]})
    server = Server(model=path).ready()
    yield server
    server.close()


def test_llama_vim_gets_the_fields_that_it_shows(http: httpx.Client) -> None:
    response = http.post("/infill", json=VIM | {"ignore_eos": True})
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


def test_infill_prompt_has_the_files_the_prefix_and_the_suffix(http: httpx.Client, server: Server) -> None:
    answer = http.post("/infill", json={**VIM, "response_fields": [], "temperature": 0}).json()
    assert answer["prompt"] == EXPECTED
    tokens = server.llm.model.tokenize(EXPECTED)
    assert answer["tokens_evaluated"] == len(tokens)


def test_infill_streams_the_same_text(http: httpx.Client) -> None:
    body = {
        **VIM,
        "response_fields": [],
        "seed": 3,
        "t_max_predict_ms": 0,
        "ignore_eos": True,
    }  # its order of samplers has no temperature
    whole = http.post("/infill", json=body).json()["content"]
    lines = http.post("/infill", json={**body, "stream": True}).text.splitlines()
    assert "".join(json.loads(line.removeprefix("data: "))["content"] for line in lines if line) == whole
    assert whole


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
    ollama = {"model": "demo", "prompt": "def f(", "suffix": "return a", "raw": True, "options": options}
    shown = http.post("/api/show", json={"name": "demo"}).json()
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
def test_model_without_the_tokens_refuses(without_tokens: Server, path: str, body: dict[str, Any]) -> None:
    response = httpx.post(without_tokens.url + path, json=body, timeout=LONG)
    assert response.status_code == 400
    assert "cannot fill in text" in response.text
    assert path != "/v1/completions" or response.json()["error"]["param"] == "suffix"


@pytest.mark.parametrize("extra", [{}, {"filename": "a"}, {"filename": 1, "text": "a"}, {"text": 1}])
def test_files_without_text_are_refused(http: httpx.Client, extra: dict[str, Any]) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "input_extra": [extra]}
    assert http.post("/infill", json=body).status_code == 400


@pytest.mark.parametrize("text", ["a = 1\n", "def size(path):\n", "e\u0301 "])
def test_tokens_near_the_cursor_are_those_of_the_whole_text(server: Server, text: str) -> None:
    model, n_ctx = server.llm.model, 16
    long = text * (4 * n_ctx * model.max_token_bytes // len(text))
    whole = model.tokenize(long, add_special=False)
    assert first_tokens(model, [7, long], n_ctx)[:n_ctx] == [7, *whole][:n_ctx]
    assert first_tokens(model, [long, "b", 7], n_ctx)[:n_ctx] == whole[:n_ctx]
    assert last_tokens(model, [long, 7], n_ctx)[-n_ctx:] == [*whole, 7][-n_ctx:]
    assert last_tokens(model, ["b", 7, long], n_ctx)[-n_ctx:] == whole[-n_ctx:]
    for tokens in (first_tokens(model, [long], n_ctx), last_tokens(model, [long], n_ctx)):
        assert n_ctx <= len(tokens) < len(whole)


LARGE = "a = 1\n" * 2**13
FILES = {"input_prefix": "a", "input_suffix": "b", "n_predict": 1}


@pytest.fixture(scope="module")
def short() -> Iterator[Server]:
    """Serve the shipped model with a context that takes little time to fill."""
    server = Server(n_ctx=512).ready()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/infill", FILES | {"input_prefix": LARGE}, 200),
        ("/infill", FILES | {"input_prefix": [LARGE, 7]}, 200),
        ("/infill", FILES | {"input_prefix": [7, *[""] * 5000], "input_suffix": [7, *[""] * 5000]}, 200),
        ("/infill", FILES | {"input_suffix": LARGE}, 200),
        ("/infill", FILES | {"input_extra": [{"text": LARGE}] * 2}, 200),
        ("/infill", FILES | {"prompt": LARGE}, 400),
        ("/v1/completions", {"model": "m", "prompt": LARGE, "suffix": LARGE, "max_tokens": 1}, 200),
        ("/completion", {"prompt": [7, LARGE], "n_predict": 1}, 400),
        ("/completion", {"prompt": [7, *["a", ""] * 5000], "n_predict": 1}, 400),
        ("/completion", {"prompt": LARGE, "n_predict": 0}, 400),
        ("/completion", {"prompt": "a", "n_predict": 1, "logit_bias": [[LARGE, 1]]}, 400),
        ("/embeddings", {"input": [[7, LARGE]]}, 400),
        ("/embeddings", {"input": {"content": [{"type": "text", "text": LARGE}]}}, 400),
        ("/api/embed", {"model": "m", "input": LARGE, "truncate": False}, 400),
        ("/api/generate", {"model": "m", "prompt": LARGE, "suffix": "b", "options": {"num_predict": 1}}, 200),
    ],
)
def test_text_far_beyond_the_context_is_not_tokenized(
    short: Server,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    status: int,
) -> None:
    model, longest, calls = short.llm.model, 0, 0
    tokenize = model.tokenize

    def note(text: str, **keywords: Any) -> list[int]:
        nonlocal longest, calls
        longest, calls = max(longest, len(text)), calls + 1
        return tokenize(text, **keywords)

    monkeypatch.setattr(model, "tokenize", note)
    assert httpx.post(short.url + path, json=body, timeout=LONG).status_code == status
    assert longest < len(LARGE)
    assert calls < 100


def test_infill_prompt_fits_in_the_context(server: Server) -> None:
    model = server.llm.model
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
