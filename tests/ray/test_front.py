"""Tests of the front of a Ray Serve application, with fake replicas: forwarding, refusals, and lost replicas."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.late import ray_exceptions, ray_front, ray_serve_exceptions
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pymtp.ray.routing import RoutingHint
from pymtp.server.app import create_app
from pymtp.server.http.sse import encode_events
from pymtp.server.metrics import logs
from pymtp.server.settings import ServerSettings

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
STREAM = {**START, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Call:
    """A fake call of a replica: it yields messages, and then raises an error if one is given."""

    def __init__(self, messages: list[Any], error: Exception | None) -> None:
        self._messages, self._error = messages, error
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        for message in self._messages:
            if isinstance(message, asyncio.Event):
                await message.wait()
            else:
                yield [message]
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        self.cancelled = True


class Replicas:
    """A fake deployment handle. calls_received: arguments of each call. metrics: the metrics of each replica."""

    def __init__(self, *messages: Any, error: Exception | None = None, metrics: Any = ()) -> None:
        self._messages, self._error, self._metrics = list(messages), error, metrics
        self.calls_received: list[tuple[dict[str, Any], bytes, RoutingHint]] = []
        self.calls: list[Call] = []

    def options(self, *, stream: bool, method_name: str) -> Replicas:
        assert stream
        assert method_name == "answer"
        return self

    def remote(self, scope: dict[str, Any], body: bytes, *, hint: RoutingHint) -> Call:
        self.calls_received.append((scope, body, hint))
        self.calls.append(Call(self._messages, self._error))
        return self.calls[-1]

    def broadcast(self, method: str) -> Any:
        async def results(*, timeout_s: float, return_exceptions: bool) -> list[Any]:
            assert return_exceptions
            if self._error is not None:
                raise self._error
            return list(self._metrics)

        assert method == "metrics"
        return SimpleNamespace(results_async=results)


def replica_lost() -> Exception:
    error: Exception = ray_exceptions.ActorDiedError()
    return error


def front_app(replicas: Replicas, settings: ServerSettings) -> Any:
    """Return the application of a front of these replicas."""
    return ray_front.with_middleware(ray_front.ReplicaForwarder(replicas), settings)


def ask(replicas: Replicas, path: str, *, prefix: str = "", given: Any = None, **more: Any) -> httpx.Response:
    """Send a request through a front, and return the answer. given: fields of the settings."""
    app = front_app(replicas, ServerSettings(**(given or {})))
    return asyncio.run(send(app, more.pop("method", "POST"), prefix + path, prefix, **more))


async def send(app: Any, method: str, path: str, prefix: str = "", **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path, **more)


def test_front_forwards_the_request_and_the_answer() -> None:
    replicas = Replicas({**START, "status": 201}, body(b"a"), body(b"b", more=False))
    done = ask(replicas, "/tokenize?x=1", content=b"{}", headers={"X-Other": "1"})
    assert (done.status_code, done.content, done.headers["content-type"]) == (201, b"ab", "application/json")
    (scope, sent, hint) = replicas.calls_received[0]
    assert (scope["method"], scope["path"], scope["query_string"], sent) == ("POST", "/tokenize", b"x=1", b"{}")
    assert (b"x-other", b"1") in scope["headers"]
    assert (b"x-request-id", done.headers["x-request-id"].encode()) in scope["headers"]
    assert hint == RoutingHint()
    assert json.dumps(
        {name: str(value) for name, value in scope.items()}
    )  # the scope has no objects that cannot be sent to another process


def test_proxy_adapter_removes_the_route_prefix() -> None:
    replicas = Replicas(START, body(b"{}", more=False))
    assert ask(replicas, "/health", prefix="/chat", method="GET", given={"api_keys": ("k",)}).status_code == 200
    assert (replicas.calls_received[0][0]["path"], replicas.calls_received[0][0].get("root_path", "")) == (
        "/health",
        "",
    )


def test_proxy_adapter_removes_the_request_id_header_that_the_proxy_adds_itself() -> None:
    replicas = Replicas({**START, "headers": [*START["headers"], (b"x-request-id", b"mine")]}, body(b"{}", more=False))
    done = ask(replicas, CHAT, content=b"{}", headers={"X-Request-Id": "mine"})
    assert "x-request-id" not in done.headers  # the proxy adds it
    assert [value for name, value in replicas.calls_received[0][0]["headers"] if name == b"x-request-id"] == [b"mine"]


def test_front_sends_the_routing_hint_of_a_chat() -> None:
    replicas = Replicas(START, body(b"{}", more=False))
    for question in ("a", "b", "a"):
        ask(replicas, CHAT, json={"messages": [{"role": "user", "content": question}]})
    keys = [hint.key for _, _, hint in replicas.calls_received]
    assert (keys[0], keys[0] == keys[1]) == (keys[2], False)


@pytest.mark.parametrize(
    ("given", "sent", "status"),
    [
        ({"api_keys": ("k",)}, {"content": b"{}"}, 401),
        ({"max_body_bytes": 8}, {"content": b"x" * 9}, 413),
    ],
)
def test_refused_request_reaches_no_replica(given: Any, sent: Any, status: int) -> None:
    replicas = Replicas(START, body(b"{}", more=False))
    done = ask(replicas, CHAT, given=given, **sent)
    assert (done.status_code, replicas.calls_received) == (status, [])
    assert done.json()["error"]["code"] in ("invalid_api_key", "body_too_large")


def test_refusal_has_cors_headers() -> None:
    given = {"api_keys": ("k",), "cors_origins": ("http://other",)}
    done = ask(Replicas(), CHAT, given=given, content=b"{}", headers={"Origin": "http://other"})
    assert (done.status_code, done.headers["access-control-allow-origin"]) == (401, "http://other")


@pytest.mark.parametrize("begun", [[], [START]])
def test_client_gets_a_503_if_the_replica_is_lost_before_it_answers(begun: list[Any]) -> None:
    done = ask(Replicas(*begun, error=replica_lost()), CHAT, content=b"{}")
    assert (done.status_code, done.headers["retry-after"]) == (503, "1")
    assert done.json()["error"] == {
        "message": "the replica that was answering this request was lost",
        "type": "server_error",
        "param": None,
        "code": "replica_lost",
    }
    answer = ask(Replicas(*begun, error=replica_lost()), MESSAGES, content=b"{}").json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "overloaded_error")


def test_broken_stream_ends_with_an_error_in_the_form_of_its_api() -> None:
    chat = ask(Replicas(STREAM, body(b'data: {"choices": []}\n\n'), error=replica_lost()), CHAT, content=b"{}")
    *_, last, end = chat.text.split("\n\n")
    assert (chat.status_code, end, "[DONE]" in chat.text) == (200, "", False)
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"

    begun = encode_events([{"type": "message_start"}])
    message = ask(Replicas(STREAM, body(begun), error=replica_lost()), MESSAGES, content=b"{}").text.split("\n\n")[1]
    name, data = message.split("\n")
    assert (name, json.loads(data.removeprefix("data: "))["type"]) == ("event: error", "error")


def test_broken_response_stream_ends_with_response_failed() -> None:
    response = {"id": "resp_1", "status": "in_progress", "output": []}
    events = [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]
    events.append({"type": "response.output_text.delta", "delta": 'data: {"'})
    parts = [body(encode_events([{**event, "sequence_number": i}])) for i, event in enumerate(events)]
    *_, last, done, _ = ask(Replicas(STREAM, *parts, error=replica_lost()), RESPONSES, content=b"{}").text.split("\n\n")
    assert done == "data: [DONE]"
    name, data = last.split("\n")
    failed = json.loads(data.removeprefix("data: "))
    assert (name, failed["type"], failed["sequence_number"]) == ("event: response.failed", "response.failed", 3)
    assert failed["response"]["id"] == "resp_1"
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "server_error")


def test_complete_answer_is_unchanged_if_the_replica_is_lost_afterwards() -> None:
    done = ask(Replicas(START, body(b"{}", more=False), error=replica_lost()), CHAT, content=b"{}")
    assert (done.status_code, done.content) == (200, b"{}")


def test_lost_replica_closes_the_connection_of_a_partial_answer_that_is_not_a_stream() -> None:
    with pytest.raises(RuntimeError, match="was lost"):
        ask(Replicas(START, body(b'{"half'), error=replica_lost()), CHAT, content=b"{}")


def test_client_gets_a_429_with_retry_after_if_the_queue_is_full() -> None:
    full = ray_serve_exceptions.BackPressureError(num_queued_requests=8, max_queued_requests=8)
    done = ask(Replicas(error=full), CHAT, content=b"{}")
    assert (done.status_code, done.json()["error"]["code"], done.headers["retry-after"]) == (429, "queue_full", "1")


def test_client_gets_a_500_and_not_replica_lost_if_the_code_of_a_replica_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pymtp"), "propagate", True)  # a server of another test has turned it off
    broken = ray_exceptions.RayTaskError("answer", "Traceback: it was here", ValueError("secret")).as_instanceof_cause()
    done = ask(Replicas(error=broken), CHAT, content=b"{}")
    assert (done.status_code, done.json()["error"]["code"]) == (500, "internal_error")
    assert ("secret" in done.text, "it was here" in caplog.text) == (False, True)
    for cause in (replica_lost(), asyncio.CancelledError()):
        died = ray_exceptions.RayTaskError("answer", "Traceback", cause)
        assert ask(Replicas(error=died), CHAT, content=b"{}").json()["error"]["code"] == "replica_lost"


def test_front_configures_the_log_as_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[Any] = []
    monkeypatch.setattr(logs, "configure", lambda *given: configured.append(given))
    ray_front.FrontDeployment(Replicas(), ServerSettings(log_format="json", log_level="warning"))
    assert configured == [("json", "warning")]


@pytest.mark.parametrize("path", ["/metrics", CHAT])
def test_front_refuses_host_names_that_are_not_allowed(path: str) -> None:
    front = front_app(Replicas(), ServerSettings(allowed_hosts=("api.example",)))
    done = asyncio.run(send(front, "GET", path, headers={"host": "evil.example"}))
    assert done.status_code == 403


@pytest.mark.parametrize("length", ["x", "-1", "1_0", "", "\u00b2", "9" * 5000])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_invalid_content_length_is_refused_by_front_and_server(length: str, path: str) -> None:
    replicas = Replicas()
    app = create_app(ServerSettings(), lambda: pytest.fail("no model is asked"))
    headers = {"content-length": length.encode("latin-1")}
    for answers in (front_app(replicas, ServerSettings()), app):
        done = asyncio.run(send(answers, "POST", path, content=b"{}", headers=headers))
        assert done.status_code == (413 if length.startswith("9") else 400)
        assert done.json()["error"]["message"]
    assert not replicas.calls_received


def test_client_disconnect_cancels_the_call_to_the_replica() -> None:
    replicas = Replicas(STREAM, body(b"data: {}\n\n"), asyncio.Event())
    app = front_app(replicas, ServerSettings())
    sent: list[Any] = []
    incoming = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def disconnect_during_the_answer() -> None:
        begun = asyncio.Event()

        async def receive() -> Any:
            if incoming:
                return incoming.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message["type"])
            if len(sent) == 2:
                begun.set()

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(disconnect_during_the_answer())
    assert (sent, replicas.calls[0].cancelled) == (["http.response.start", "http.response.body"], True)


def test_client_gets_a_503_if_metrics_of_replicas_time_out() -> None:
    done = ask(Replicas(error=TimeoutError()), "/metrics", method="GET")
    assert (done.status_code, done.json()["error"]["code"]) == (503, "unavailable")


def test_metrics_are_merged_over_all_replicas_that_answer() -> None:
    def of(name: str) -> list[Any]:
        gauge = GaugeMetricFamily("pymtp:places", "Places.", labels=["replica"])
        gauge.add_metric([name], 4)
        counter = CounterMetricFamily("pymtp:tokens", "Tokens.", labels=["replica"])
        counter.add_metric([name], 7)
        return [gauge, counter]

    replicas = Replicas(metrics=[of("a"), replica_lost(), of("b")])
    done = ask(replicas, "/metrics", method="GET")
    assert done.headers["content-type"].startswith("text/plain")
    samples = [line for line in done.text.splitlines() if not line.startswith("#")]
    assert samples == [
        f'pymtp:{name}{{replica="{each}"}} {value}'
        for name, value in (("places", "4.0"), ("tokens_total", "7.0"))
        for each in "ab"
    ]
    assert done.text.count("# TYPE") == 2
    assert ask(replicas, "/metrics", method="GET", given={"api_keys": ("k",)}).status_code == 401
