"""Tests of error responses: each response has a status and an error object that clients can parse."""

from __future__ import annotations

import ast
import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from conftest import ROOT
from helpers.late import openai
from helpers.servers import LONG, Server

from pymtp.server import service
from pymtp.server.service import Service

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello."}]
REQUEST: Any = {"model": "m", "messages": HELLO}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        yield client


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"model": "m"}, "messages is missing", "messages"),
    (REQUEST | {"model": 5}, "model must be a string", "model"),
    ({"model": "m", "messages": []}, "1 or more entries", "messages"),
    ({"model": "m", "messages": "hello"}, "list", "messages"),
    (REQUEST | {"messages": [{"role": "nobody", "content": "a"}]}, "'system', 'developer', 'user'", "messages[0].role"),
    (REQUEST | {"temperature": "1"}, "must be a number", "temperature"),
    (REQUEST | {"temperature": -1}, "at least 0", "temperature"),
    (REQUEST | {"n": 0}, "at least 1", "n"),
    (REQUEST | {"max_tokens": 1.5}, "whole number", "max_tokens"),
    (REQUEST | {"top_logprobs": 1000}, "at most 100", "top_logprobs"),
    (REQUEST | {"tool_choice": "required"}, "no tools", "tool_choice"),
    (REQUEST | {"grammar": "root ::= ("}, "grammar", None),
    (REQUEST | {"functions": [{"name": "f"}]}, "not supported", "functions"),
    (REQUEST | {"function_call": {"name": "f"}}, "not supported", "function_call"),
    (REQUEST | {"max_tokens": 0}, "at least 1, not 0", "max_tokens"),
    (REQUEST | {"max_tokens": -2}, "at least 1, not -2", "max_tokens"),
    (REQUEST | {"reasoning_effort": "ultra"}, "must be one of none, minimal", "reasoning_effort"),
    (REQUEST | {"logit_bias": [[1, 2], ["a", 2]]}, "must be a whole number", "logit_bias[1][0]"),
    (REQUEST | {"guided_choice": []}, "1 or more entries", "guided_choice"),
    (REQUEST | {"structured_outputs": {"lark": "a"}}, "structured_outputs.lark: not", "structured_outputs.lark"),
    (REQUEST | {"echo": True}, "echo: not supported", "echo"),
    (REQUEST | {"add_generation_prompt": False}, "not supported", "add_generation_prompt"),
]


@pytest.mark.parametrize(("body", "why", "param"), WRONG)
def test_validation_error_names_the_field(
    http: httpx.Client, body: dict[str, Any], why: str, param: str | None
) -> None:
    found = error(http.post(CHAT, json=body), 400)
    assert why in found["message"]
    assert (found["param"], found["type"]) == (param, "invalid_request_error")


def test_logit_bias_has_tokens_of_the_vocabulary(server: Server, http: httpx.Client) -> None:
    n = server.llm.model.n_vocab
    found = error(http.post(CHAT, json=REQUEST | {"logit_bias": {str(n - 1): 1, str(n): 1}}), 400)
    assert f"{n} is outside the vocabulary" in found["message"]
    assert (found["param"], found["type"]) == (None, "invalid_request_error")


BROKEN = [b"", b"{", b"[]", b'"text"', b"\xff\xfe\x00", b'{"n": ' + b"1" * 5000 + b"}", b"[" * 200_000]
BROKEN += [b'{"messages": [{"role": "\\ud800", "content": "\\ud800"}]}', b'{"messages": [], "temperature": NaN}']


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:20]))
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize"])
def test_invalid_body_is_refused(http: httpx.Client, path: str, body: bytes) -> None:
    assert error(http.post(path, content=body, headers=JSON), 400)["message"]


def test_content_type_other_than_json_is_refused(http: httpx.Client) -> None:
    body = json.dumps(REQUEST)
    found = error(http.post(CHAT, content=body, headers={"Content-Type": "text/plain"}), 400)
    assert "application/json" in found["message"]


def test_unknown_errors_say_that_the_connection_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Service) -> None:
        raise RuntimeError("unknown")

    monkeypatch.setattr(Service, "facts", property(fail))
    answer = httpx.get(f"{server.url}/props", timeout=LONG)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["connection"] == "close"


def test_too_long_prompt_has_openais_error_code(http: httpx.Client) -> None:
    long = [{"role": "user", "content": "a b c d " * 3000}]
    for stream in (False, True):
        found = error(http.post(CHAT, json=REQUEST | {"messages": long, "stream": stream}), 400)
        assert found["code"] == "context_length_exceeded"
        assert "4096" in found["message"]


def test_openai_client_raises_its_error_classes(server: Server, new_server: Callable[..., Server]) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=LONG)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo", messages=HELLO, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("nothing")
    assert unknown.value.code == "model_not_found"
    guarded = new_server(api_keys=("secret", "other")).ready()
    with pytest.raises(openai.AuthenticationError) as missing:
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="guess", max_retries=0).models.list()
    assert (missing.value.code, missing.value.type) == ("invalid_api_key", "authentication_error")
    assert missing.value.request_id
    assert openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="other").models.list().data


def test_api_key_works_in_either_header_and_public_paths_need_no_key(new_server: Callable[..., Server]) -> None:
    server = new_server(api_keys=("sécret",))
    server.ready()  # requests /health without a key
    with httpx.Client(base_url=server.url) as client:
        for headers in ({}, {"x-api-key": "secret"}, {"authorization": "Basic sécret"}, {"authorization": "Bearer"}):
            encoded = {name: value.encode() for name, value in headers.items()}
            found = client.get("/v1/models", headers=encoded)
            assert error(found, 401)["code"] == "invalid_api_key"
            assert found.headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/models", headers={"x-api-key": "sécret".encode()}).status_code == 200
        assert client.get("/v1/models", headers={"authorization": "bearer sécret".encode()}).status_code == 200
        both = {"authorization": b"Bearer of another server", "x-api-key": "sécret".encode()}
        assert client.get("/v1/models", headers=both).status_code == 200
        assert client.get("/openapi.json", timeout=LONG).status_code == 200
        assert client.post(CHAT, json=REQUEST).status_code == 401


def test_unknown_model_is_not_found_if_served_names_are_set(
    http: httpx.Client, new_server: Callable[..., Server]
) -> None:
    request_body = REQUEST | {"model": "gpt-4o", "max_tokens": 1}
    assert http.post(CHAT, json=request_body).json()["model"] == "gpt-4o"
    named = new_server(served_names=("small", "tiny")).ready()
    with httpx.Client(base_url=named.url, timeout=LONG) as client:
        assert error(client.post(CHAT, json=request_body), 404)["code"] == "model_not_found"
        assert client.post(CHAT, json=request_body | {"model": "tiny"}).status_code == 200
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["small", "tiny"]


@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_body_is_refused_with_and_without_content_length(
    new_server: Callable[..., Server], chunked: bool
) -> None:
    server = new_server(max_body_bytes=10_000).ready()

    def pieces() -> Iterator[bytes]:
        yield from [b" " * 1000] * 20

    with httpx.Client(base_url=server.url, timeout=LONG) as client:
        body: Any = pieces() if chunked else b" " * 20_000
        assert error(client.post(CHAT, content=body, headers=JSON), 413)["code"] == "body_too_large"
        fits = json.dumps(REQUEST | {"max_tokens": 1}).encode().ljust(10_000)
        assert client.post(CHAT, content=fits, headers=JSON).status_code == 200


def test_too_large_content_length_is_refused_before_the_body_is_sent(new_server: Callable[..., Server]) -> None:
    server = new_server(max_body_bytes=10_000).ready()
    with socket.create_connection(("127.0.0.1", server.port), LONG) as client:
        client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_unknown_paths_and_methods_are_answered_with_error_objects(http: httpx.Client) -> None:
    assert error(http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    for method in ("GET", "DELETE", "PUT", "HEAD"):
        response = http.request(method, CHAT)
        assert (response.status_code, response.headers["allow"]) == (405, "POST, OPTIONS")
    options = http.request("OPTIONS", "/v1/models")
    assert (options.status_code, options.headers["allow"], options.content) == (204, "GET, HEAD, OPTIONS", b"")


def test_head_response_is_the_get_response_without_its_body(http: httpx.Client) -> None:
    for path in ("/health", "/v1/models", "/openapi.json", "/props", "/version"):
        whole, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]


def test_request_id_is_taken_from_the_client_or_created(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = [
        http.get("/health", headers={"x-request-id": bad}).headers["x-request-id"] for bad in ("", "a b", "x" * 200)
    ]
    assert len(set(made)) == 3
    assert all(name.startswith("req_") for name in made)


def test_unknown_fields_are_named_in_a_response_header(http: httpx.Client) -> None:
    request_body = REQUEST | {"max_tokens": 1, "max_token": 3, "user": "me", "a\nb": 1}
    assert http.post(CHAT, json=request_body).headers["x-pymtp-ignored"] == "max_token"
    assert "x-pymtp-ignored" not in http.post(CHAT, json=REQUEST | {"max_tokens": 1}).headers
    for url, own in (("/v1/messages", {"messages": HELLO, "max_tokens": 1}), ("/v1/responses", {"input": "a"})):
        request_body = own | {"max_output_tokens": 1, "max_token": 3, "metadata": {"user_id": "me"}, "other": None}
        named = http.post(url, json=request_body).headers["x-pymtp-ignored"]
        assert named == ("max_output_tokens, max_token" if "input" not in own else "max_token")
    counted: Any = (
        ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/v1/responses/input_tokens", {"input": "a"}),
        (f"{CHAT}/input_tokens", {"messages": HELLO}),
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
        ("/api/embeddings", {"prompt": "a"}),
    )
    for url, own in counted:
        assert http.post(url, json=own | {"max_token": 3}).headers["x-pymtp-ignored"] == "max_token"


def test_cors_allows_only_configured_origins(http: httpx.Client, new_server: Callable[..., Server]) -> None:
    asks = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in http.options(CHAT, headers=asks).headers
    server = new_server(cors_origins=("http://page.example",), api_keys=("secret",)).ready()
    with httpx.Client(base_url=server.url) as client:
        allowed = client.options(CHAT, headers=asks)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "http://page.example"
        # Chrome asks this before a public page may send a request to a private network
        private = {"Access-Control-Request-Private-Network": "true"}
        assert "access-control-allow-private-network" not in allowed.headers
        found = client.options(CHAT, headers=asks | private)
        assert (found.status_code, found.headers["access-control-allow-private-network"]) == (200, "true")
        for more in ({}, private):
            other = client.options(CHAT, headers=asks | more | {"Origin": "http://other.example"})
            assert (other.status_code, other.headers["vary"]) == (200, "Origin")
            assert not [name for name in other.headers if name.startswith("access-control-")]
        refused = client.get("/v1/models", headers={"Origin": "http://page.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "http://page.example"


def test_cors_localhost_allows_pages_of_this_machine_only(new_server: Callable[..., Server]) -> None:
    local = ["http://localhost", "https://app.localhost:5173", "http://127.0.0.1:3000", "http://[::1]:3000"]
    foreign = ["http://notlocalhost", "http://localhost.evil.example", "http://1.127.0.0.1", "null"]
    server = new_server(cors_origins="localhost").ready()
    for origin in local + foreign:
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        allowed = httpx.options(f"{server.url}{CHAT}", headers=asks).headers.get("access-control-allow-origin")
        assert allowed == (origin if origin in local else None)


def test_header_names_are_capitalized(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(LONG)
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
            b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"content":"a"}')
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert {b"Content-Type", b"Content-Length", b"X-Request-Id", b"Connection"} <= set(names)
    assert body.startswith(b'{"tokens"')


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_long_prompt_are_refused(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(service, "MAX_LOGPROB_VALUES", 100)
    body = {"model": "m", "prompt": [5] * 30, "echo": True, "max_tokens": 2, "stream": stream, "n": 2}
    found = http.post("/v1/completions", json=body | {"logprobs": 1})
    assert "reduce logprobs" in found.text
    assert found.status_code == 400
    assert http.post("/v1/completions", json=body | {"logprobs": 0}).status_code == 200
    both = body | {"prompt": [[5] * 30, [7] * 30], "logprobs": 0}
    assert "reduce logprobs" in http.post("/v1/completions", json=both).text


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, REQUEST | {"model": "\ud800", "max_tokens": 1}),
        (CHAT, REQUEST | {"model": "\ud800", "max_tokens": 1, "stream": True}),
        ("/v1/completions", {"model": "\ud800", "prompt": "a", "max_tokens": 1}),
        ("/v1/responses", {"model": "m", "input": "a", "user": "\ud800", "max_output_tokens": 1}),
    ],
)
def test_lone_surrogates_are_echoed_in_responses(http: httpx.Client, url: str, body: dict[str, Any]) -> None:
    response = http.post(url, content=json.dumps(body), headers=JSON)
    assert response.status_code == 200, response.text
    assert r"\ud800" in response.text


def test_codes_of_errors_are_those_of_the_reference() -> None:
    code = {}
    for path in (ROOT / "pymtp/server").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "ErrorInfo":
                values = [*call.args[3:4], *(word.value for word in call.keywords if word.arg == "code")]
                code |= {value.value: path.name for value in values if isinstance(value, ast.Constant)}
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8").split("\n## HTTP\n")[1]
    table = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    documented = {name for cell in table for name in re.findall(r"`([a-z_]+)`", cell)} - {"code"}
    assert code.keys() == documented
