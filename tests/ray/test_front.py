"""Claims about the door of a Ray Serve application, before replicas that a test plays: what they see of requests, and
what clients are told when one is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from pymtp.ray.front import Forward, Front, around
from pymtp.ray.lead import Lead
from pymtp.server.app import create_app
from pymtp.server.http.named_events import named_events
from pymtp.server.metrics import logs
from pymtp.server.settings import Settings

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
STREAM = {**START, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class Call:
    """An answer: messages, and an error where one comes after them."""

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
    """Plays a handle. asked: what was asked of the replicas. told: metrics of each."""

    def __init__(self, *messages: Any, error: Exception | None = None, told: Any = ()) -> None:
        self._messages, self._error, self._told = list(messages), error, told
        self.asked: list[tuple[dict[str, Any], bytes, Lead]] = []
        self.calls: list[Call] = []

    def options(self, *, stream: bool, method_name: str) -> Replicas:
        assert stream
        assert method_name == "answer"
        return self

    def remote(self, scope: dict[str, Any], body: bytes, *, lead: Lead) -> Call:
        self.asked.append((scope, body, lead))
        self.calls.append(Call(self._messages, self._error))
        return self.calls[-1]

    def broadcast(self, method: str) -> Any:
        async def results(*, timeout_s: float, return_exceptions: bool) -> list[Any]:
            assert return_exceptions
            if self._error is not None:
                raise self._error
            return list(self._told)

        assert method == "metrics"
        return SimpleNamespace(results_async=results)


def lost() -> ActorDiedError:
    return ActorDiedError()


def ask(replicas: Replicas, path: str, *, prefix: str = "", given: Any = None, **more: Any) -> httpx.Response:
    """What a client gets. given: Settings."""
    app = around(Forward(replicas), Settings(**(given or {})))  # type: ignore[arg-type]
    return asyncio.run(asked(app, more.pop("method", "POST"), prefix + path, prefix, **more))


async def asked(app: Any, method: str, path: str, prefix: str = "", **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path, **more)


def test_a_replica_sees_the_request_and_the_client_its_answer() -> None:
    replicas = Replicas({**START, "status": 201}, body(b"a"), body(b"b", more=False))
    done = ask(replicas, "/tokenize?x=1", content=b"{}", headers={"X-Other": "1"})
    assert (done.status_code, done.content, done.headers["content-type"]) == (201, b"ab", "application/json")
    (scope, sent, lead) = replicas.asked[0]
    assert (scope["method"], scope["path"], scope["query_string"], sent) == ("POST", "/tokenize", b"x=1", b"{}")
    assert (b"x-other", b"1") in scope["headers"]
    assert (b"x-request-id", done.headers["x-request-id"].encode()) in scope["headers"]
    assert lead == Lead()
    assert json.dumps({name: str(value) for name, value in scope.items()})  # nothing that belongs to this process


def test_paths_begin_at_the_route_prefix() -> None:
    replicas = Replicas(START, body(b"{}", more=False))
    assert ask(replicas, "/health", prefix="/chat", method="GET", given={"api_keys": ("k",)}).status_code == 200
    assert (replicas.asked[0][0]["path"], replicas.asked[0][0].get("root_path", "")) == ("/health", "")


def test_the_proxys_request_id_is_not_in_the_answer_twice() -> None:
    replicas = Replicas({**START, "headers": [*START["headers"], (b"x-request-id", b"mine")]}, body(b"{}", more=False))
    done = ask(replicas, CHAT, content=b"{}", headers={"X-Request-Id": "mine"})
    assert "x-request-id" not in done.headers  # the proxy, which is not here, adds it
    assert [value for name, value in replicas.asked[0][0]["headers"] if name == b"x-request-id"] == [b"mine"]


def test_a_chat_is_led_by_its_beginning() -> None:
    replicas = Replicas(START, body(b"{}", more=False))
    for question in ("a", "b", "a"):
        ask(replicas, CHAT, json={"messages": [{"role": "user", "content": question}]})
    keys = [lead.key for _, _, lead in replicas.asked]
    assert (keys[0], keys[0] == keys[1]) == (keys[2], False)


@pytest.mark.parametrize(
    ("given", "sent", "status"),
    [
        ({"api_keys": ("k",)}, {"content": b"{}"}, 401),
        ({"max_body_bytes": 8}, {"content": b"x" * 9}, 413),
    ],
)
def test_what_may_not_pass_is_seen_by_no_replica(given: Any, sent: Any, status: int) -> None:
    replicas = Replicas(START, body(b"{}", more=False))
    done = ask(replicas, CHAT, given=given, **sent)
    assert (done.status_code, replicas.asked) == (status, [])
    assert done.json()["error"]["code"] in ("invalid_api_key", "body_too_large")


def test_pages_of_other_origins_may_read_what_is_refused() -> None:
    given = {"api_keys": ("k",), "cors_origins": ("http://other",)}
    done = ask(Replicas(), CHAT, given=given, content=b"{}", headers={"Origin": "http://other"})
    assert (done.status_code, done.headers["access-control-allow-origin"]) == (401, "http://other")


@pytest.mark.parametrize("begun", [[], [START]])
def test_a_replica_that_is_lost_before_the_answer_is_a_503(begun: list[Any]) -> None:
    done = ask(Replicas(*begun, error=lost()), CHAT, content=b"{}")
    assert (done.status_code, done.headers["retry-after"]) == (503, "1")
    assert done.json()["error"] == {
        "message": "the replica that was to answer is gone",
        "type": "server_error",
        "param": None,
        "code": "replica_lost",
    }
    told = ask(Replicas(*begun, error=lost()), MESSAGES, content=b"{}").json()
    assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")


def test_a_stream_ends_with_an_error_in_the_form_of_its_api() -> None:
    chat = ask(Replicas(STREAM, body(b'data: {"choices": []}\n\n'), error=lost()), CHAT, content=b"{}")
    *_, last, end = chat.text.split("\n\n")
    assert (chat.status_code, end, "[DONE]" in chat.text) == (200, "", False)
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"

    begun = named_events([{"type": "message_start"}])
    message = ask(Replicas(STREAM, body(begun), error=lost()), MESSAGES, content=b"{}").text.split("\n\n")[1]
    name, data = message.split("\n")
    assert (name, json.loads(data.removeprefix("data: "))["type"]) == ("event: error", "error")


def test_a_response_that_is_lost_ends_as_failed() -> None:
    response = {"id": "resp_1", "status": "in_progress", "output": []}
    events = [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]
    events.append({"type": "response.output_text.delta", "delta": 'data: {"'})
    told = [body(named_events([{**event, "sequence_number": i}])) for i, event in enumerate(events)]
    *_, last, done, _ = ask(Replicas(STREAM, *told, error=lost()), RESPONSES, content=b"{}").text.split("\n\n")
    assert done == "data: [DONE]"
    name, data = last.split("\n")
    failed = json.loads(data.removeprefix("data: "))
    assert (name, failed["type"], failed["sequence_number"]) == ("event: response.failed", "response.failed", 3)
    assert failed["response"]["id"] == "resp_1"
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "server_error")


def test_an_answer_that_is_whole_stays_so() -> None:
    done = ask(Replicas(START, body(b"{}", more=False), error=lost()), CHAT, content=b"{}")
    assert (done.status_code, done.content) == (200, b"{}")


def test_an_answer_in_the_middle_that_is_no_stream_is_cut() -> None:
    with pytest.raises(RuntimeError, match="is gone"):
        ask(Replicas(START, body(b'{"half'), error=lost()), CHAT, content=b"{}")


def test_too_many_that_wait_for_a_replica_are_told_to_come_again() -> None:
    full = BackPressureError(num_queued_requests=8, max_queued_requests=8)
    done = ask(Replicas(error=full), CHAT, content=b"{}")
    assert (done.status_code, done.json()["error"]["code"], done.headers["retry-after"]) == (429, "queue_full", "1")


def test_code_of_a_replica_that_fails_is_no_lost_replica(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pymtp"), "propagate", True)  # a server that another test started took it
    broken = RayTaskError("answer", "Traceback: it was here", ValueError("secret")).as_instanceof_cause()
    done = ask(Replicas(error=broken), CHAT, content=b"{}")
    assert (done.status_code, done.json()["error"]["code"]) == (500, "internal_error")
    assert ("secret" in done.text, "it was here" in caplog.text) == (False, True)
    for of_its_end in (lost(), asyncio.CancelledError()):
        died = RayTaskError("answer", "Traceback", of_its_end)
        assert ask(Replicas(error=died), CHAT, content=b"{}").json()["error"]["code"] == "replica_lost"


def test_a_front_logs_as_a_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(logs, "configure", lambda *given: said.append(given))
    Front(Replicas(), Settings(log_format="json", log_level="warning"))  # type: ignore[arg-type]
    assert said == [("json", "warning")]


@pytest.mark.parametrize("path", ["/metrics", CHAT])
def test_a_door_answers_for_its_hosts_alone(path: str) -> None:
    doors = around(Forward(Replicas()), Settings(allowed_hosts=("api.example",)))  # type: ignore[arg-type]
    done = asyncio.run(asked(doors, "GET", path, headers={"host": "evil.example"}))
    assert done.status_code == 403


@pytest.mark.parametrize("length", ["x", "-1", "1_0", "", "\u00b2", "9" * 5000])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_length_that_is_no_number_is_refused_at_the_door_and_in_the_server(length: str, path: str) -> None:
    replicas = Replicas()
    app = create_app(Settings(), lambda: pytest.fail("no model is asked"))
    headers = {"content-length": length.encode("latin-1")}
    for answers in (around(Forward(replicas), Settings()), app):  # type: ignore[arg-type]
        done = asyncio.run(asked(answers, "POST", path, content=b"{}", headers=headers))
        assert done.status_code == (413 if length.startswith("9") else 400)
        assert done.json()["error"]["message"]
    assert not replicas.asked


def test_a_client_that_leaves_is_left_by_the_replica() -> None:
    replicas = Replicas(STREAM, body(b"data: {}\n\n"), asyncio.Event())
    app = around(Forward(replicas), Settings())  # type: ignore[arg-type]
    sent: list[Any] = []
    came = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def leaving() -> None:
        begun = asyncio.Event()

        async def receive() -> Any:
            if came:
                return came.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message["type"])
            if len(sent) == 2:
                begun.set()

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(leaving())
    assert (sent, replicas.calls[0].cancelled) == (["http.response.start", "http.response.body"], True)


def test_metrics_that_do_not_come_in_time_are_no_metrics() -> None:
    done = ask(Replicas(error=TimeoutError()), "/metrics", method="GET")
    assert (done.status_code, done.json()["error"]["code"]) == (503, "unavailable")


def test_metrics_are_those_of_all_replicas_that_tell_theirs() -> None:
    def of(name: str) -> list[Any]:
        gauge = GaugeMetricFamily("pymtp:places", "Places.", labels=["replica"])
        gauge.add_metric([name], 4)
        counter = CounterMetricFamily("pymtp:tokens", "Tokens.", labels=["replica"])
        counter.add_metric([name], 7)
        return [gauge, counter]

    replicas = Replicas(told=[of("a"), lost(), of("b")])
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
