"""Tests of /v1/embeddings with OpenAI's client, and of /embedding in the form of llama.cpp's server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.late import openai
from helpers.servers import LONG, Server

from pymtp.engine.embedder import CHUNK, normalized
from pymtp.server.http.json_response import encode_list
from pymtp.server.llama import embeddings
from pymtp.server.ollama import routes as ollama_routes


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=LONG) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


def vectors(http: httpx.Client, path: str = "/v1/embeddings", **body: Any) -> Any:
    response = http.post(path, json={"model": "m", **body})
    assert response.status_code == 200, response.text
    return np.array([one["embedding"] for one in response.json()["data"]], np.float32)


def test_openais_client_gets_the_embeddings_of_the_llm(client: openai.OpenAI, server: Server) -> None:
    texts = ["import os", "def f(x):"]
    for encoding in ("base64", "float"):
        found = client.embeddings.create(model="m", input=texts, encoding_format=encoding)  # type: ignore[arg-type]
        if encoding == "base64":
            rows = [np.frombuffer(base64.b64decode(one.embedding), "<f4") for one in found.data]  # type: ignore[arg-type]
        else:
            rows = [np.array(one.embedding, np.float32) for one in found.data]
        np.testing.assert_array_equal(rows, server.llm.embed(texts))
        assert [one.index for one in found.data] == [0, 1]
        n = sum(len(server.llm.model.tokenize(text)) for text in texts)
        assert (found.usage.prompt_tokens, found.usage.total_tokens) == (n, n)
    default = client.embeddings.create(model="m", input=texts)
    np.testing.assert_array_equal(
        np.array([one.embedding for one in default.data], np.float32), server.llm.embed(texts)
    )


def test_inputs_of_all_forms_mean_the_same(http: httpx.Client, server: Server) -> None:
    tokens = server.llm.model.tokenize("import os")
    parts = {"content": [{"type": "text", "text": "import "}, {"type": "text", "text": "os"}]}
    several = vectors(http, input=["import os", tokens, parts, {"prompt_string": "import os"}])
    assert (several == server.llm.embed("import os")).all()
    for one in ("import os", tokens, parts):
        assert (vectors(http, input=one) == several[0]).all()


def test_pooling_and_dimensions_are_taken(http: httpx.Client, server: Server) -> None:
    mean = server.llm.embed("import os", pooling="mean")
    np.testing.assert_array_equal(vectors(http, input="import os", pooling="mean")[0], mean)
    short = vectors(http, input="import os", dimensions=8)[0]
    whole = server.llm.embed("import os")[:8]
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole), atol=1e-6)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_llama_cpps_form_is_a_list_without_a_model(http: httpx.Client, server: Server, path: str) -> None:
    for name in ("content", "input"):
        (answer,) = http.post(path, json={name: "import os"}).json()
        assert answer["index"] == 0
        np.testing.assert_array_equal(np.array(answer["embedding"], np.float32), [server.llm.embed("import os")])
    assert vectors(http, path, input="import os").shape == (1, server.llm.model.n_embd)  # OpenAI's client without /v1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]: the prompt is empty"),
        ({"input": "a " * 99_999}, "too large"),
        ({"input": [2**30]}, "outside the vocabulary"),
        ({"input": {"content": "a"}}, "input"),
        ({"input": {"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}}, "input"),
        ({"input": "a", "pooling": "none"}, "pooling"),
        ({"input": {"prompt_string": "", "content": 5}}, "the prompt is empty"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({}, "input"),
    ],
)
def test_wrong_inputs_are_refused(http: httpx.Client, body: dict[str, Any], words: str) -> None:
    response = http.post("/v1/embeddings", json={"model": "m", **body})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_dimensions_are_at_most_those_of_the_model(http: httpx.Client, server: Server) -> None:
    n = server.llm.model.n_embd
    assert vectors(http, input="a", dimensions=n).shape == (1, n)
    response = http.post("/v1/embeddings", json={"model": "m", "input": "a", "dimensions": n + 1})
    assert response.status_code == 400
    assert "dimensions" in response.json()["error"]["message"]


def test_unknown_fields_are_named(http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", json={"model": "m", "input": "a", "tpyo": 1, "user": "u"})
    assert response.headers["x-pymtp-ignored"] == "tpyo"


def test_embeddings_count_for_the_queue(new_server: Any) -> None:
    server = new_server(max_queue=0).ready()
    # alone, a request may have any number of inputs
    assert httpx.post(f"{server.url}/v1/embeddings", json={"input": ["a"] * 9}, timeout=LONG).status_code == 200
    assert server.free()
    counted = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if "prompt_tokens_total{" in line]
    assert [float(line.rpartition(" ")[2]) for line in counted] == [9]


def test_embeddings_that_the_server_cancels_are_answered_with_503(server: Server, monkeypatch: Any) -> None:
    embed = server.llm._embedder.embed

    def cancels(tokens: list[int], pooling: Any, cancelled: Any, _: Any) -> Any:
        return embed(tokens, pooling, lambda: server.llm.cancel() or cancelled())  # type: ignore[func-returns-value]

    monkeypatch.setattr(server.llm._embedder, "embed", cancels)
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "a"}, timeout=LONG)
    assert answer.status_code == 503
    assert "cancelled" in answer.json()["error"]["message"]


def test_figures_count_the_memory_of_embeddings(new_server: Any) -> None:
    server = new_server(llm={"n_ctx": 256, "n_seq_max": 1}).ready()

    def total() -> Any:
        return sum(device["total"] for device in httpx.get(f"{server.url}/figures", timeout=LONG).json()["memory"])

    before = total()
    assert httpx.post(f"{server.url}/v1/embeddings", json={"input": "a"}, timeout=LONG).status_code == 200
    own = sum(device.total for device in server.llm._embedder.memory)
    assert total() == before + own
    lines = httpx.get(f"{server.url}/metrics", timeout=LONG).text.splitlines()
    assert [float(one.split()[1]) for one in lines if one.startswith("pymtp:embedding_context_bytes{")] == [own]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/api/embed"])
def test_embeddings_are_encoded_off_the_event_loop(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    loops: list[bool] = []

    def encode(entries: Any) -> str:
        loops.append(asyncio._get_running_loop() is not None)
        return encode_list(entries)

    for module in (embeddings, ollama_routes):
        monkeypatch.setattr(module, "encode_list", encode)
    assert http.post(path, json={"input": ["a", "b"]}).status_code == 200
    assert loops
    assert not any(loops)


def test_server_without_pooling_gives_the_vectors_of_all_tokens(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_server(pooling="none").ready()
    with httpx.Client(base_url=server.url, timeout=LONG) as http:
        tokens = server.llm.model.tokenize("import os" * 50)  # more than a chunk
        (one,) = http.post("/embedding", json={"content": tokens}).json()
        rows = np.array(one["embedding"], np.float32)
        assert len(rows) == len(tokens) > CHUNK
        np.testing.assert_array_equal(normalized(rows[-1]), server.llm.embed(tokens))
        (pooled,) = http.post("/embedding", json={"content": tokens, "pooling": "last"}).json()[0]["embedding"]
        np.testing.assert_array_equal(np.array(pooled, np.float32), server.llm.embed(tokens))
        monkeypatch.setattr(embeddings, "MAX_VALUES", 3 * server.llm.model.n_embd)
        assert http.post("/embedding", json={"content": [tokens[:2], tokens[:1]]}).status_code == 200
        refused = http.post("/embedding", json={"content": [tokens[:2], tokens[:2]]})
        assert (refused.status_code, "vectors of all tokens" in refused.text) == (400, True)
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/embedding", {"content": "a", "dimensions": 2}),
            ("/api/embed", {"model": "m", "input": "a"}),
        ):
            answer = http.post(path, json=body)
            assert (answer.status_code, "--pooling none" in answer.text) == (400, True)


def test_server_has_a_default_pooling(new_server: Callable[..., Server]) -> None:
    server = new_server(pooling="mean").ready()
    with httpx.Client(base_url=server.url, timeout=LONG) as http:
        assert (vectors(http, input="import os")[0] == server.llm.embed("import os", pooling="mean")).all()
        assert (vectors(http, input="import os", pooling="last")[0] == server.llm.embed("import os")).all()
