"""Tests of the start of `pymtp serve`, and of the messages if it cannot start."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from helpers.command import run
from helpers.served import FIRST_LINES, Served
from helpers.servers import LONG
from typer.testing import CliRunner
from uvicorn import Config

from pymtp import LLM, SamplingParams
from pymtp.cli.app import app
from pymtp.errors import InvalidRequestError
from pymtp.server.process import http_server
from pymtp.server.process.http_server import _UvicornServer
from pymtp.server.process.listener import is_local, listen, listen_all, url

Serve = Callable[..., Served]


def test_serve_serves_the_shipped_model_and_logs_the_url(serve: Serve, llm: LLM) -> None:
    served = serve("-s", "2").ready()
    assert served.field("model") == "demo"
    for line, words in zip(served.lines, FIRST_LINES, strict=False):
        assert words in line
    assert served.get("/health").json() == {"status": "ok"}
    expected = llm.generate("def f(x):", SamplingParams(max_tokens=16)).text
    assert served.ask(max_tokens=16, temperature=0).json()["choices"][0]["text"] == expected


def test_options_reach_the_worker(serve: Serve) -> None:
    served = serve("-s", "3", "-c", "1024", "-a", "first", "-a", "second", "--max-body", "1").ready()
    assert [model["id"] for model in served.get("/v1/models").json()["data"]] == ["first", "second"]
    assert served.ask(prompt="x" * 2**20).status_code == 413
    metrics = served.get("/metrics").text
    assert 'pymtp:num_requests_max{model_name="first"} 3.0' in metrics
    assert 'n_ctx="1024"' in metrics


@pytest.mark.parametrize("way", ["option", "environment", "file"])
def test_api_key_is_required_and_not_in_the_command_line(serve: Serve, way: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("other\n\nsecret-of-mine\n")
    options = {"option": ("--api-key", "secret-of-mine", "--api-key", "other"), "file": ("--api-key-file", keys)}
    env = {"PYMTP_API_KEY": "other secret-of-mine"} if way == "environment" else {}
    served = serve(*options.get(way, ()), env=env, warm=False).ready()
    assert served.ask().status_code == 401
    for key in ("secret-of-mine", "other"):
        right = {"Authorization": f"Bearer {key}"}
        assert served.get("/v1/models", headers=right).status_code == 200
    assert b"secret-of-mine" not in Path(f"/proc/{served.worker()}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--cors-origin", "example.com"), 2, "scheme://host"),
        (("--cors-origin", "https://example.com/"), 2, "scheme://host"),
        (("--allowed-host", "http://example.com"), 2, "without scheme"),
        (("-a", ""), 2, "--served-name must not be empty, and must have no space around it"),
        (("--host", "no.such.host.invalid"), 2, "no.such.host.invalid"),
        (("--host", "192.0.2.1"), 1, "192.0.2.1:0"),
        (("--log-level", "loud"), 2, "--log-level"),
        (("--grace", "inf"), 2, "--grace inf"),
        (("--timeout", "inf"), 2, "--timeout inf"),
        (("--api-key-file", os.devnull), 2, "no key"),
        (("--api-key", ""), 2, "--api-key must not be empty, and must have no space around it"),
        (("--api-key", "a "), 2, "--api-key must not be empty, and must have no space around it"),
        (("-s", "0"), 2, "--n-seq-max 0 must be a whole number from 1 to 256"),
        (("-c", "-1"), 2, "--ctx -1 must be"),
        (("-t", "0"), 2, "--threads 0 must be"),
        (("-g", "-5"), 2, "--gpu-layers -5 must be"),
        (("-d", "99"), 2, "--draft-tokens 99 must be a whole number from 0 to 64"),
        (("-d", "many"), 2, "--draft-tokens"),
        (("--cache-type", "x"), 2, "--cache-type 'x' is not known"),
        (("--draft-vocab", "0"), 2, "--draft-vocab 0 must be"),
        (("--tap", "x"), 2, "--tap 'x' is not known"),
        (("-m", "missing.gguf", "--host", "0.0.0.0"), 3, "missing.gguf"),
        (("-m", os.devnull), 3, "null is not a regular file"),
        (("-m", __file__), 3, "test_serve.py is not a GGUF file"),
        (("--prefix", "missing.prefix"), 2, "missing.prefix"),
    ],
)
def test_invalid_option_prints_one_line_and_starts_no_worker(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: int, words: str
) -> None:
    monkeypatch.setattr("pymtp.cli.serve.supervise", lambda *_: pytest.fail("a worker is started"))
    done = run("serve", "--port", "0", *options)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout, line[:7]) == (code, "", "error: ")
    assert words in line


def test_error_names_an_option_that_the_model_does_not_support(serve: Serve, headless: Path) -> None:
    served = serve("-m", headless, "-d", "2")
    assert served.exit_code() == 2
    assert "error: --draft-tokens 2 needs" in served.lines[-1]
    assert "use --draft-tokens 0" in served.lines[-1]


@pytest.mark.parametrize(
    ("end", "why"),
    [(10_000, "failed to read"), (-1000, "is cut off at")],
    ids=["told by llama.cpp", "told by pymtp"],
)
def test_load_error_is_logged_once(serve: Serve, demo: Path, tmp_path: Path, end: int, why: str) -> None:
    (tmp_path / "cut.gguf").write_bytes(demo.read_bytes()[:end])
    served = serve("-m", tmp_path / "cut.gguf")
    assert served.exit_code() == 3
    assert [line[:7] for line in served.lines if why in line] == ["error: "]


def test_port_in_use_prints_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"error: cannot listen at 127.0.0.1:{port}: Address already in use\n"


def test_error_names_missing_packages_of_the_server_extra(serve: Serve) -> None:
    served = serve(before="import sys; sys.modules['uvicorn'] = None")
    assert served.exit_code() == 2
    assert served.lines == [
        "error: pymtp serve needs more packages: pip install fastapi uvicorn httptools httpx prometheus-client\n"
    ]


@pytest.mark.parametrize(("options", "times"), [((), 1), (("--api-key", "some"), 0)])
def test_public_server_without_a_key_warns_once(serve: Serve, options: tuple[str, ...], times: int) -> None:
    served = serve("--host", "0.0.0.0", *options).ready()
    assert sum("anybody" in line for line in served.lines) == times
    assert served.url.startswith("http://127.0.0.1:")


def test_server_listens_on_several_addresses(serve: Serve) -> None:
    served = serve("--host", "127.0.0.1, 127.0.0.2").ready()
    for host in ("127.0.0.1", "127.0.0.2"):
        answer = httpx.get(f"http://{host}:{served.url.rpartition(':')[2]}/health", timeout=LONG)
        assert answer.json() == {"status": "ok"}
    served.process.terminate()
    assert served.exit_code() == 0


def test_wrong_address_among_several_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'' has no address"):
        listen_all(("127.0.0.1", ""), 0)


def test_listener_url_of_ipv6_has_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        listener = listen("::1", 0)
    except OSError:
        pytest.skip("no IPv6")
    with listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
        assert is_local(listener)


def test_listen_prefers_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *request_body, **more: found)
    with listen("localhost", 0) as listener:
        assert listener.family == socket.AF_INET


def test_listen_refuses_a_host_without_an_address() -> None:
    with pytest.raises(InvalidRequestError, match="no address"):
        listen("no host", 0)


@pytest.mark.parametrize("blank", ["", " "])
def test_blank_api_key_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    monkeypatch.setenv("PYMTP_API_KEY", blank)
    found = CliRunner().invoke(app, ["serve", "--port", "0", "-m", "nowhere.gguf"])
    assert isinstance(found.exception, InvalidRequestError)
    assert "PYMTP_API_KEY is empty" in str(found.exception)


@pytest.mark.parametrize("option", ["--served-name", "--api-key"])
def test_name_or_key_that_is_not_utf8_is_refused(option: str) -> None:
    found = CliRunner().invoke(app, ["serve", "--port", "0", "-m", "nowhere.gguf", option, "b\udcff"])
    assert isinstance(found.exception, InvalidRequestError)
    assert f"{option} must be UTF-8" in str(found.exception)


@pytest.mark.parametrize("closed", [0, 1])
def test_serve_works_with_a_closed_standard_stream(serve: Serve, closed: int) -> None:
    before = f"import os, sys; os.close({closed}); {'sys.stdout = None' if closed else ''}"
    assert serve(before=before).ready().get("/health").status_code == 200


def test_relative_path_in_a_deleted_directory_is_reported_as_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = run("serve", "-m", "m.gguf", "--port", "0")
    assert done.returncode == 3
    assert "error: no such file: m.gguf" in done.stderr


def test_idle_server_ticks_once_per_heartbeat_and_ends_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[float] = []

    async def use() -> None:
        server = _UvicornServer(Config(FastAPI()), FastAPI(), 30.0)
        on_tick = server.on_tick

        async def counted(counter: int) -> bool:
            ticks.append(asyncio.get_running_loop().time())
            return await on_tick(counter)

        monkeypatch.setattr(server, "on_tick", counted)
        asyncio.get_running_loop().call_later(0.5, server.end)
        await server.main_loop()

    monkeypatch.setattr(http_server, "HEARTBEAT_SECONDS", 0.2)
    asyncio.run(use())
    assert len(ticks) in (3, 4)
    assert ticks[1] - ticks[0] >= 0.19
    ticks.clear()
    monkeypatch.setattr(http_server, "HEARTBEAT_SECONDS", 1000)
    asyncio.run(use())
    assert len(ticks) == 2
