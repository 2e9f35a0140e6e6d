"""Claims about the two processes of `pymtp serve`: which of them ends when, and what clients see of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from helpers.served import ENDLESS, Served, gone, last_of
from helpers.servers import LONG, wait_until

from pymtp import LLM
from pymtp.hub.errors import UnreachableError
from pymtp.server.process.http_server import HttpServer
from pymtp.server.settings import Settings

Serve = Callable[..., Served]


# a worker whose model takes for ever to load
SLOW = """
from pymtp.server.process import supervisor
supervisor.START = supervisor.START.replace("work(", "import time; from pymtp.server.process import worker\\n"
    "worker.load = lambda *_, **__: time.sleep(1e6)\\nwork(")
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=LONG)
    except httpx.ConnectError:
        return True
    except (httpx.ReadError, httpx.RemoteProtocolError):  # it waited in the socket's queue when that was closed
        return False
    return False


def breaks_off(lines: Iterator[str]) -> bool:
    """Whether a stream ends without its last chunk."""
    said: list[str] = []
    try:
        said += lines
    except httpx.TransportError:
        return True
    return "data: [DONE]" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish_and_takes_no_new_ones(serve: Serve, number: signal.Signals) -> None:
    served = serve().ready()
    url, worker = served.url, served.worker()
    with served.streaming(max_tokens=1500) as lines:
        served.process.send_signal(number)
        served.line("ending")
        wait_until(lambda: refuses(url))
        last = last_of(lines)
    assert last["usage"]["completion_tokens"] == 1500
    assert served.exit_code() == 0
    assert gone(worker)


def test_ctrl_c_in_a_terminal_reaches_the_worker_by_its_supervisor_only(serve: Serve) -> None:
    standing = (
        "from pymtp.server.process import supervisor\nsupervisor.START = 'import sys, time; "
        'print("begun", file=sys.stderr, flush=True); time.sleep(1e6)\''
    )
    served = serve(before=standing, start_new_session=True)
    served.line("begun")
    os.killpg(served.process.pid, signal.SIGINT)  # as a terminal does
    assert served.exit_code() == 0
    assert not [line for line in served.lines if "KeyboardInterrupt" in line]


def test_a_request_that_outlasts_the_grace_ends_with_an_error_that_says_so(serve: Serve) -> None:
    served = serve("--grace", "0").ready()
    with served.streaming() as lines:
        served.process.send_signal(signal.SIGTERM)
        *_, last = lines
    assert "the server ended the request" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert served.exit_code() == 0


def test_a_second_signal_ends_all_at_once(serve: Serve) -> None:
    served = serve("--grace", "1000").ready()
    worker = served.worker()
    with served.streaming() as lines:
        assert served.end(signal.SIGTERM, signal.SIGINT) == 128 + signal.SIGINT
        assert gone(worker)
        assert breaks_off(lines)


def test_a_killed_worker_breaks_its_streams_and_service_returns(serve: Serve) -> None:
    served = serve("-s", "4").ready()
    first = served.worker()
    ends: list[type[Exception]] = []

    def ask(stream: bool) -> None:
        asked = ENDLESS if stream else {**ENDLESS, "stream": False, "stream_options": None}
        try:
            httpx.post(f"{served.url}/v1/completions", json=asked, timeout=LONG)
        except httpx.TransportError as error:
            ends.append(type(error))

    threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: served.metric("num_requests_running") == served.metric("num_requests_waiting") == 4)
    os.kill(first, signal.SIGKILL)
    for thread in threads:
        thread.join(LONG)
    assert len(ends) == 8
    assert httpx.ReadTimeout not in ends
    second = served.worker(2)
    assert second != first
    assert served.ask().status_code == 200
    assert "SIGKILL" in served.line("gone")


def test_a_client_that_comes_while_there_is_no_worker_is_answered(serve: Serve) -> None:
    served = serve().ready()
    os.kill(served.worker(), signal.SIGKILL)
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=LONG) as client:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_model_that_was_served_once_is_waited_for(serve: Serve, demo: Path, tmp_path: Path) -> None:
    model, away = tmp_path / "model.gguf", tmp_path / "away"
    model.symlink_to(demo)
    served = serve("-m", model).ready()
    model.rename(away)
    os.kill(served.worker(), signal.SIGKILL)
    assert "no such file" in served.line("gone", 2)
    away.rename(model)
    assert served.worker(2)


def test_a_worker_that_dies_again_and_again_is_given_more_and_more_time(serve: Serve) -> None:
    served = serve().ready()
    os.kill(served.worker(), signal.SIGKILL)
    os.kill(served.worker(2), signal.SIGKILL)
    os.kill(served.worker(3), signal.SIGKILL)
    assert "starts in 2 s" in served.line("gone", 3)
    assert served.end(signal.SIGTERM) == 0  # while it waits


# a system that starts no second worker, but a third
FULL = """
from pymtp.server.process import supervisor
starts, start = [], supervisor.subprocess.Popen
def popen(*arguments, **keywords):
    starts.append(1)
    if len(starts) in FULL_AT:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return start(*arguments, **keywords)
supervisor.subprocess.Popen = popen
"""


def test_a_worker_that_cannot_be_started_now_is_started_later(serve: Serve) -> None:
    served = serve(before="FULL_AT = [2]" + FULL).ready()
    os.kill(served.worker(), signal.SIGKILL)
    assert "it cannot be started: [Errno 11]" in served.line("starts in 1 s")
    assert served.worker(2)


def test_a_first_worker_that_cannot_be_started_ends_the_server_with_one_line(serve: Serve) -> None:
    served = serve(before="FULL_AT = [1]" + FULL)
    assert served.exit_code() == 1
    assert served.lines[-1].startswith("error: [Errno 11]")


def test_the_worker_goes_with_its_supervisor(serve: Serve) -> None:
    served = serve().ready()
    worker = served.worker()
    with served.streaming() as lines:
        assert served.end(signal.SIGKILL) == -signal.SIGKILL
        assert breaks_off(lines)
    wait_until(lambda: gone(worker))


def test_a_worker_that_stands_still_is_ended_and_shows_where_it_stood(serve: Serve) -> None:
    impatient = "import pymtp.server.process.supervisor as s; s.SILENCE, s.TICK, s.LATE = 3.0, 0.1, 0.2"
    served = serve(before=impatient).ready()
    os.kill(served.worker(), signal.SIGSTOP)
    served.line("has not answered for 3 s")
    assert served.worker(2)
    assert served.ask().status_code == 200


def test_while_the_model_loads_clients_are_told_so_and_a_signal_ends_it(serve: Serve) -> None:
    served = serve("--port", str(port := free_port()), before=SLOW)
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: not refuses(url))
    health = httpx.get(f"{url}/health", timeout=LONG)
    assert (health.status_code, health.json()) == (503, {"status": "loading"})
    asked = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=LONG)
    assert asked.status_code == 503
    assert int(asked.headers["retry-after"]) > 0
    assert served.end(signal.SIGTERM) == 0


def test_a_worker_that_dies_before_it_served_is_not_started_again(serve: Serve) -> None:
    served = serve(before=SLOW)
    wait_until(lambda: children(served.process.pid))
    (worker,) = children(served.process.pid)
    os.kill(worker, signal.SIGKILL)
    assert served.exit_code() == 128 + signal.SIGKILL
    assert "SIGKILL" in served.line("never served")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


@pytest.mark.parametrize("unread", [b"", b"a beat that the supervisor has not read"])
def test_a_worker_ends_when_its_supervisor_is_silent_for_ever_even_where_the_kernel_does_not_see_to_it(
    unread: bytes,
) -> None:
    ours, theirs = socket.socketpair()
    program = (
        "import socket, sys, time\nfrom pymtp.server.process.worker import end_with_supervisor\n"
        "sys.platform = 'other'\n"
        f"control = socket.socket(fileno={theirs.fileno()})\nend_with_supervisor(control)\ncontrol.sendall({unread})\n"
        "print('begun', flush=True)\ntime.sleep(1e6)"
    )
    command = [sys.executable, "-I", "-c", program]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        ours.close()
        assert process.wait(LONG) == 1


def test_a_worker_does_not_beat_before_it_serves() -> None:
    """What it says then must find room, however long a supervisor that was stopped has read nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = HttpServer(Settings(), LLM, theirs)
        asyncio.run(server._beat())
        theirs.shutdown(socket.SHUT_WR)
        assert ours.recv(1000) == b""


def test_an_error_goes_by_a_name_that_the_supervisor_knows() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        HttpServer(Settings(), LLM, theirs)._loaded(UnreachableError("the hub answers 503"))
        said = json.loads(ours.recv(1000))
    assert said == {"failed": "ModelLoadError", "message": "the hub answers 503"}
