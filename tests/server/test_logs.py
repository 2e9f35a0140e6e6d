"""Tests of the log: each request gets one line with token counts and times, but without the prompt."""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.served import Served
from helpers.servers import LONG, Server, wait_until

from pymtp.server.metrics.logs import JsonLines, TextLines
from pymtp.server.settings import ServerSettings

SECRET = "a secret between us"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """Enable all log levels, and return a function that returns the fields of the logged requests."""
    caplog.set_level(logging.DEBUG, "pymtp.server")
    return lambda: [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]


def record(message: str, level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("pymtp.server", level, "here", 1, message, (), None)
    made.created, made.fields = 1_700_000_000.25, fields
    return made


def chat(server: Server, **more: Any) -> httpx.Response:
    headers = more.pop("headers", None)
    request_body = {
        "model": "m",
        "messages": [{"role": "user", "content": SECRET}],
        "max_tokens": 20,
        "ignore_eos": True,
        **more,
    }
    return httpx.post(f"{server.url}/v1/chat/completions", json=request_body, headers=headers, timeout=LONG)


@pytest.mark.parametrize("stream", [False, True])
def test_request_log_line_has_tokens_drafts_and_times(
    server: Server, log: Callable[[], list[dict[str, Any]]], stream: bool
) -> None:
    answer = chat(server, stream=stream, n=2, max_tokens=20)
    wait_until(log)
    (line,) = log()
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (line["client"], line["request_id"]) == ("127.0.0.1", answer.headers["x-request-id"])
    assert (line["completion_tokens"], line["finish_reason"]) == (40, "length,length")
    assert line["prompt_tokens"] >= line["cached_tokens"] >= 0
    assert line["drafted"] >= line["accepted"] >= 0
    assert line["drafted_by_text"] == line["accepted_by_text"] == 0
    assert 0 < line["time_to_first_token"] <= line["seconds"]


def test_request_log_has_the_clients_request_id(server: Server, log: Callable[[], list[dict[str, Any]]]) -> None:
    assert chat(server, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert chat(server, headers={"X-Request-Id": "not mine"}).headers["x-request-id"] != "not mine"
    wait_until(lambda: len(log()) == 2)
    assert log()[0]["request_id"] == "mine-1"
    assert " " not in log()[1]["request_id"]


def test_refused_request_is_logged_without_tokens(server: Server, log: Callable[[], list[dict[str, Any]]]) -> None:
    assert chat(server, max_tokens="many").status_code == 400
    wait_until(log)
    (line,) = log()
    assert line["status"] == 400
    assert "completion_tokens" not in line


def test_client_disconnect_is_logged_as_abort(server: Server, log: Callable[[], list[dict[str, Any]]]) -> None:
    request_body = {"prompt": SECRET, "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=request_body, timeout=LONG) as answer:
        next(answer.iter_lines())
    wait_until(log)
    (line,) = log()
    assert line["finish_reason"] == "abort"
    assert 0 < line["completion_tokens"] < 3000


def test_monitoring_requests_are_logged_at_debug_level(
    server: Server, log: Callable[[], list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/health", "/metrics"):
        httpx.get(f"{server.url}{path}", timeout=LONG)
    wait_until(lambda: len(log()) == 2)
    assert {each.levelno for each in caplog.records if each.name == "pymtp.server"} == {logging.DEBUG}


@pytest.mark.parametrize("expected", [False, True])
def test_prompts_are_logged_only_with_log_prompts(serve: Callable[..., Served], expected: bool) -> None:
    served = serve("--log-format", "json", *(("--log-prompts",) if expected else ()))
    url = json.loads(served.line('"serving"'))["url"]
    request_body = {"model": "m", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 5}
    httpx.post(f"{url}/v1/chat/completions", json=request_body, timeout=LONG)
    httpx.post(f"{url}/v1/completions", json={"prompt": SECRET, "max_tokens": 5}, timeout=LONG)
    lines = [json.loads(served.line('"request"', n)) for n in (1, 2)]
    assert [line.get("prompt") for line in lines] == ([request_body["messages"], SECRET] if expected else [None, None])
    served.process.terminate()
    served.exit_code()
    assert sum(SECRET in line for line in served.lines) == 2 * expected
    for line in served.lines:
        assert {"time", "level", "message"} <= set(json.loads(line))


def test_text_log_writes_one_line_for_any_input() -> None:
    said = {"request_id": 'a"b c', "route": "/\n2026-01-01T00:00:00.000Z INFO forged", "seconds": 0.25, "none": None}
    line = TextLines().format(record("request", **said))
    assert "\n" not in line
    when, level, message, *words = shlex.split(line)
    assert (when, level, message) == ("2023-11-14T22:13:20.250Z", "INFO", "request")
    assert {word.partition("=")[0] for word in words} == set(said)
    assert "seconds=0.25" in words
    assert "none=null" in words


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()], ids=["text", "json"])
@pytest.mark.parametrize("path", ["/\x9b31m", "/\x85forged", "/\u2028forged", "/\u202egnorw"])
def test_text_log_line_has_no_control_characters(path: str, lines: logging.Formatter) -> None:
    assert lines.format(record("request", route=path)).isprintable()


def test_json_log_line_has_the_message_and_the_traceback() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        made = record("it\nfailed", logging.ERROR, key="ä")
        made.exc_info = (type(error), error, error.__traceback__)
    (line,) = JsonLines().format(made).splitlines()
    said = json.loads(line)
    assert said["exception"].endswith("ValueError: odd")
    del said["exception"]
    assert said == {"time": "2023-11-14T22:13:20.250Z", "level": "error", "message": "it\nfailed", "key": "ä"}


def test_log_times_are_utc_with_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert TextLines().format(record("x")).startswith("2023-11-14T22:13:20.250Z ")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_prompts_are_not_logged_by_default() -> None:
    assert not ServerSettings().log_prompts
