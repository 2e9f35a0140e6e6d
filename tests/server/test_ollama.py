"""Tests of Ollama's API with its official client, and of what its answers have on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.late import ollama
from helpers.servers import LONG, Server

from pymtp.server.ollama.read import ignored_names, read_chat, read_generate
from pymtp.server.ollama.types import OllamaChatRequest, OllamaGenerateRequest

QUESTION = "Write a Python function to return the n-th Fibonacci number. Call it fibonacci."  # a long answer
ASKED: Any = [{"role": "user", "content": QUESTION}]
OPTIONS: Any = {"temperature": 0, "num_predict": 12}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]},
    },
}


@pytest.fixture(scope="module")
def client(server: Server) -> ollama.Client:
    return ollama.Client(server.url, timeout=LONG)


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


def test_chat_has_the_text_of_openais_api_whole_and_streamed(client: ollama.Client, http: httpx.Client) -> None:
    body = {"model": "m", "messages": ASKED, "temperature": 0, "max_tokens": 12, "top_p": 0.9}
    expected = http.post("/v1/chat/completions", json=body).json()
    whole = client.chat("m", ASKED, options=OPTIONS)
    assert whole.message.content == expected["choices"][0]["message"]["content"]
    *parts, last = client.chat("m:latest", ASKED, options=OPTIONS, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * len(parts)
    for answer in (whole, last):
        assert (answer.done, answer.done_reason) == (True, "length")
        assert (answer.prompt_eval_count, answer.eval_count) == (expected["usage"]["prompt_tokens"], 12)
        assert answer.prompt_eval_duration
        assert (answer.total_duration or 0) >= answer.prompt_eval_duration + (answer.eval_duration or 0)
    assert last.model == "m:latest"


def test_answers_stream_as_lines_of_json_unless_told_otherwise(http: httpx.Client) -> None:
    streamed = http.post("/api/chat", json={"messages": ASKED, "options": OPTIONS})
    assert streamed.headers["content-type"] == "application/x-ndjson"
    assert json.loads(streamed.text.splitlines()[-1])["done"]
    whole = http.post("/api/chat", json={"messages": ASKED, "options": OPTIONS, "stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["done"]


def test_generate_answers_fills_in_and_continues(client: ollama.Client, server: Server) -> None:
    raw = client.generate("m", "def f(", raw=True, options=OPTIONS)
    *parts, last = client.generate("m", "def f(", raw=True, options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == raw.response
    assert last.eval_count == raw.eval_count
    tokens = server.llm.model.tokenize("def f(")
    assert raw.prompt_eval_count == len(tokens)
    chat = client.generate("m", QUESTION, system="Be brief.", options=OPTIONS)
    messages = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert chat.response == client.chat("m", messages, options=OPTIONS).message.content
    assert client.generate("m", "def f(", suffix="return a", options=OPTIONS).response


def test_format_holds_the_answer_to_a_schema(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    options = {"num_predict": 64}
    assert json.loads(client.chat("m", ASKED, format=schema, options=options).message.content or "")["a"] in (1, 2)
    assert json.loads(client.generate("m", QUESTION, format=schema, options=options).response)["a"] in (1, 2)
    assert read_generate({"prompt": "a", "format": "json"}, {}).schema == {"type": "object"}


def test_options_reach_the_sampling_by_their_names() -> None:
    options = {"num_predict": 5, "typical_p": 0.5, "repeat_penalty": 1.5, "num_ctx": 9}
    fields = {"messages": ASKED, "options": options}
    params = read_chat(fields, {}).params
    assert (params.max_tokens, params.typical_p, params.repetition_penalty) == (5, 0.5, 1.5)
    assert ignored_names(fields, OllamaChatRequest.model_fields) == ["options.num_ctx"]


def test_thinking_stands_apart_and_can_be_switched_off() -> None:
    off = read_chat({"messages": ASKED, "think": False}, {}).prompt
    assert getattr(off, "chat_template_kwargs", None) == {"enable_thinking": False}
    low = read_chat({"messages": ASKED, "think": "low"}, {}).prompt
    assert getattr(low, "chat_template_kwargs", None) == {"reasoning_effort": "low", "enable_thinking": True}


def test_calls_and_their_results_are_read_in_ollamas_form() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 7}}}
    messages = [*ASKED, {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [call]}]
    request = read_chat({"messages": [*messages, {"role": "tool", "content": "7", "tool_name": "add"}]}, {})
    read = getattr(request.prompt, "messages", [])
    assert read[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 7}'}
    assert read[1]["reasoning_content"] == "t"
    assert read[2]["role"] == "tool"


@pytest.mark.parametrize(("sent", "read"), [('{"a": 7}', '{"a": 7}'), ('{"a":', '{"a":'), ([7], "[7]"), (None, "{}")])
def test_arguments_of_a_past_call_are_never_refused(sent: object, read: str) -> None:
    call = {"function": {"name": "add", "arguments": sent}}
    body = {"messages": [*ASKED, {"role": "assistant", "tool_calls": [call]}]}
    fields = OllamaChatRequest.model_validate(body).model_dump(exclude_unset=True)
    messages = getattr(read_chat(fields, {}).prompt, "messages", [])
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == read


def test_calls_are_answered_as_objects(client: ollama.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from pymtp.server.ollama import routes

    # Ollama's API cannot force a call, and the shipped model may answer in words
    monkeypatch.setattr(routes, "read_chat", lambda *given: replace(read_chat(*given), tool_choice="required"))
    options = {"num_predict": 200, "temperature": 0}
    answer = client.chat("m", ASKED, tools=[TOOL], options=options)
    assert answer.message.tool_calls
    assert (answer.message.tool_calls[0].function.name, answer.message.tool_calls[0].function.arguments) == (
        "add",
        {"a": 7},
    )
    parts = list(client.chat("m", ASKED, tools=[TOOL], options=options, stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert calls[0].function.arguments == {"a": 7}
    assert parts[-1].done_reason in ("stop", "length")


def test_embeddings_are_those_of_the_llm(client: ollama.Client, server: Server) -> None:
    found = client.embed("m", ["a", "import os"])
    np.testing.assert_array_equal(np.array(found.embeddings, np.float32), server.llm.embed(["a", "import os"]))
    assert found.prompt_eval_count == len(server.llm.model.tokenize("import os")) + 1
    assert list(client.embeddings("m", "a").embedding) == list(found.embeddings[0])
    n_ctx = server.llm.context.n_ctx
    assert client.embed("m", "a " * 2 * n_ctx).prompt_eval_count == n_ctx
    with pytest.raises(ollama.ResponseError):
        client.embed("m", "a " * 2 * n_ctx, truncate=False)


def test_models_are_described(client: ollama.Client, server: Server) -> None:
    (model,) = client.list().models
    assert model.details is not None
    assert (model.model, model.details.format, model.details.family) == ("demo", "gguf", "qwen35")
    assert model.size == server.llm.model.path.stat().st_size
    (running,) = client.ps().models
    assert running.context_length == server.llm.context.n_ctx
    shown = client.show("demo")
    assert shown.modelinfo is not None
    assert shown.modelinfo["qwen35.embedding_length"] == server.llm.model.n_embd
    assert shown.capabilities is not None
    assert {"completion", "embedding", "insert"} <= set(shown.capabilities)


def test_version_is_one_that_clients_accept(http: httpx.Client) -> None:
    assert tuple(map(int, http.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)


def test_request_without_a_prompt_tells_that_the_model_is_loaded(client: ollama.Client) -> None:
    assert client.generate("m", "").done_reason == "load"
    assert client.chat("m", []).done_reason == "load"


def test_options_of_the_server_are_named_as_ignored(http: httpx.Client) -> None:
    body = {"messages": ASKED, "stream": False, "options": {**OPTIONS, "num_ctx": 9, "num_gpu": 1}, "keep_alive": "5m"}
    response = http.post("/api/chat", json={**body, "tpyo": 1})
    assert response.headers["x-pymtp-ignored"] == "tpyo, options.num_ctx, options.num_gpu"
    assert ignored_names({"messages": ASKED, "options": OPTIONS}, OllamaChatRequest.model_fields) == []
    text = {"prompt": "a", "raw": True, "system": "b", "think": True}
    assert ignored_names(text, OllamaGenerateRequest.model_fields) == ["system", "think"]
    assert ignored_names(text | {"raw": False}, OllamaGenerateRequest.model_fields) == []


def test_models_are_listed_after_their_file_was_removed(
    http: httpx.Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = http.get("/api/tags").json()["models"]
    monkeypatch.setattr(server.llm.model, "path", server.llm.model.path.with_name("removed.gguf"))
    (after,) = http.get("/api/ps").json()["models"]
    assert (after["size"], after["digest"]) == (0, before["digest"])
    assert http.post("/api/show", json={}).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": [{"role": "user", "content": "a", "images": ["YQ=="]}]},
            "this model was loaded without a projector",
        ),
        ({"messages": ASKED, "options": {"temperature": -1}}, "options.temperature"),
        ({"messages": ASKED, "options": {"num_predict": "a"}}, "options.num_predict"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "messages[0].role"),
        ({"messages": ASKED, "format": 3}, "format"),
    ],
)
def test_errors_are_texts_that_name_the_field(http: httpx.Client, body: dict[str, Any], words: str) -> None:
    response = http.post("/api/chat", json=body)
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    assert words in response.json()["error"]


def test_unknown_names_are_refused_where_the_server_has_names(new_server: Any) -> None:
    server = new_server(served_names=("qwen",)).ready()
    client = ollama.Client(server.url, timeout=LONG)
    assert client.generate("qwen:latest", "").done
    with pytest.raises(ollama.ResponseError, match="there is no model"):
        client.generate("other", "")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),
        ({"content-type": "text/plain", "origin": "http://other.example"}, 400),
        ({"content-type": "text/plain", "sec-fetch-site": "cross-site"}, 400),
    ],
)
def test_body_is_json_whatever_its_type_unless_a_browser_sends_it(
    http: httpx.Client, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"model": "m", "prompt": "def f(", "stream": False, "options": OPTIONS})
    assert http.post("/api/generate", content=body, headers=headers).status_code == status
