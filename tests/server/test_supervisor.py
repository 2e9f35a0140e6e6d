"""Tests of the two processes of `pymtp serve`: signals, restarts, and the effects of both on clients."""

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from helpers.picture_files import data_url, picture
from helpers.served import ENDLESS, Served, gone, last_of
from helpers.servers import LONG, wait_until
from makers.make_mmproj import make_mmproj

from pymtp import LLM
from pymtp.hub.errors import UnreachableError
from pymtp.server.process.http_server import HttpServer
from pymtp.server.process.supervisor import doubled_delay
from pymtp.server.settings import ServerSettings

Serve = Callable[..., Served]


# A worker whose model loads for ever.
SLOW = """
from pymtp.server.process import supervisor
supervisor.WORKER_PROGRAM = supervisor.WORKER_PROGRAM.replace(
    "run_worker(", "import time; from pymtp.server.process import worker\\n"
    "worker.load = lambda *_, **__: time.sleep(1e6)\\nrun_worker(")
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=LONG)
    except httpx.ConnectError:
        return True
    except (
        httpx.ReadError,
        httpx.RemoteProtocolError,
    ):  # the socket was closed while the connection waited in its backlog
        return False
    return False


def is_aborted(lines: Iterator[str]) -> bool:
    """Return whether a stream ends without its last chunk."""
    said: list[str] = []
    try:
        said += lines
    except httpx.TransportError:
        return True
    return "data: [DONE]" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_requests_finish_and_refuses_new_ones(serve: Serve, number: signal.Signals) -> None:
    served = serve().ready()
    url, worker = served.url, served.worker()
    with served.streaming(max_tokens=600) as lines:
        served.process.send_signal(number)
        served.line("shutting down")
        wait_until(lambda: refuses(url))
        last = last_of(lines)
    assert last["usage"]["completion_tokens"] == 600
    assert served.exit_code() == 0
    assert gone(worker)


def test_ctrl_c_signals_only_the_supervisor(serve: Serve) -> None:
    standing = (
        "from pymtp.server.process import supervisor\nsupervisor.WORKER_PROGRAM = 'import sys, time; "
        'print("begun", file=sys.stderr, flush=True); time.sleep(1e6)\''
    )
    served = serve(before=standing, start_new_session=True)
    served.line("begun")
    os.killpg(served.process.pid, signal.SIGINT)  # as a terminal does for Ctrl-C
    assert served.exit_code() == 0
    assert not [line for line in served.lines if "KeyboardInterrupt" in line]


def after_shutdown(served: Served) -> list[str]:
    """Return the lines of the log after that of the shutdown, without their times and those of requests."""
    texts = [line.partition(" ")[2].strip() for line in served.lines]
    (begin,) = [i for i, text in enumerate(texts) if "shutting down" in text]
    return [text for text in texts[begin + 1 :] if " request " not in text and text != "stuck"]


def test_request_that_outlasts_the_grace_ends_with_an_error(serve: Serve) -> None:
    served = serve("--grace", "0").ready()
    with served.streaming() as lines:
        served.process.send_signal(signal.SIGTERM)
        *_, last = lines
    assert "the server cancelled the request" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert served.exit_code() == 0
    assert after_shutdown(served) == ["WARNING the grace is over: running requests are cancelled requests=1"]


# A worker whose projector never comes to the end of a layer, and that cancels requests right after the grace.
STUCK = """
from pymtp.server.process import supervisor
supervisor.KILL_DELAY = 4.0
supervisor.WORKER_PROGRAM = supervisor.WORKER_PROGRAM.replace("run_worker(", "import sys, time\\n"
    "from pymtp.model.projector import Projector\\nfrom pymtp.server.process import http_server\\n"
    "http_server.SHUTDOWN_MARGIN = 0\\n"
    "Projector.advance = lambda *_: print('stuck', file=sys.stderr, flush=True) or time.sleep(1e6)\\nrun_worker(")
"""


def test_shutdown_while_an_image_is_encoded_answers_as_for_text(serve: Serve, tmp_path: Path) -> None:
    projector = make_mmproj("demo", tmp_path / "mmproj.gguf")
    served = serve("--grace", "0", "--mmproj", projector, before=STUCK).ready()
    content = [{"type": "image_url", "image_url": {"url": data_url(picture())}}, {"type": "text", "text": "a"}]
    body = {"messages": [{"role": "user", "content": content}]}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(httpx.post, f"{served.url}/v1/chat/completions", json=body, timeout=LONG)
        served.line("stuck")
        served.process.send_signal(signal.SIGTERM)
        answer = asked.result()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["message"] == "the server cancelled the request"
    assert served.exit_code() == 0
    assert after_shutdown(served) == ["WARNING the grace is over: running requests are cancelled requests=1"]


def test_second_signal_kills_the_worker_at_once(serve: Serve) -> None:
    served = serve("--grace", "1000").ready()
    worker = served.worker()
    with served.streaming() as lines:
        assert served.end(signal.SIGTERM, signal.SIGINT) == 128 + signal.SIGINT
        assert gone(worker)
        assert is_aborted(lines)


def test_killed_worker_aborts_its_streams_and_is_restarted(serve: Serve) -> None:
    served = serve("-s", "4").ready()
    first = served.worker()
    ends: list[type[Exception]] = []

    def ask(stream: bool) -> None:
        request_body = ENDLESS if stream else {**ENDLESS, "stream": False, "stream_options": None}
        try:
            httpx.post(f"{served.url}/v1/completions", json=request_body, timeout=LONG)
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
    assert "SIGKILL" in served.line("the worker failed")


def test_killed_workers_leave_no_file_open_and_their_successors_write_the_same_text(serve: Serve) -> None:
    at_once = "from pymtp.server.process import supervisor; supervisor.HEALTHY_SECONDS = 0.0"
    served = serve(before=at_once, warm=True).ready()

    def n_files() -> int:
        return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))

    def text() -> object:
        return served.ask(max_tokens=50, temperature=0).json()["choices"]

    first, open_files = text(), list[int]()
    for n in range(1, 4):
        os.kill(served.worker(n), signal.SIGKILL)
        served.worker(n + 1)
        assert text() == first
        open_files.append(n_files())
    assert open_files[1:] == open_files[:1] * 2


def test_client_that_connects_without_a_worker_is_answered_by_the_next_worker(serve: Serve) -> None:
    served = serve().ready()
    os.kill(served.worker(), signal.SIGKILL)
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=LONG) as client:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")


def test_worker_with_a_missing_model_file_is_retried_if_an_earlier_worker_served(
    serve: Serve, demo: Path, tmp_path: Path
) -> None:
    model, away = tmp_path / "model.gguf", tmp_path / "away"
    model.symlink_to(demo)
    served = serve("-m", model).ready()
    model.rename(away)
    os.kill(served.worker(), signal.SIGKILL)
    assert "no such file" in served.line("the worker failed", 2)
    away.rename(model)
    assert served.worker(2)


def test_restart_delay_is_limited_after_any_number_of_failures() -> None:
    assert [doubled_delay(n, 30.0) for n in (0, 1, 4, 5, 1023, 1024, 10**6)] == [1, 2, 16, 30, 30, 30, 30]


def test_restart_delay_grows_with_each_failure(serve: Serve) -> None:
    served = serve().ready()
    os.kill(served.worker(), signal.SIGKILL)
    os.kill(served.worker(2), signal.SIGKILL)
    os.kill(served.worker(3), signal.SIGKILL)
    assert "starts in 2 s" in served.line("the worker failed", 3)
    assert served.end(signal.SIGTERM) == 0  # while the supervisor waits before the restart


# Makes the starts of a worker fail whose numbers are in FULL_AT, as if the system had no free process.
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


def test_failed_start_of_a_worker_is_retried(serve: Serve) -> None:
    served = serve(before="FULL_AT = [2]" + FULL, warm=True).ready()
    os.kill(served.worker(), signal.SIGKILL)
    assert "it cannot be started: [Errno 11]" in served.line("starts in 1 s")
    assert served.worker(2)


def test_failed_start_of_the_first_worker_ends_the_server(serve: Serve) -> None:
    served = serve(before="FULL_AT = [1]" + FULL, warm=True)
    assert served.exit_code() == 1
    assert served.lines[-1].startswith("error: [Errno 11]")


def test_worker_exits_when_the_supervisor_exits(serve: Serve) -> None:
    served = serve().ready()
    worker = served.worker()
    with served.streaming() as lines:
        assert served.end(signal.SIGKILL) == -signal.SIGKILL
        assert is_aborted(lines)
    wait_until(lambda: gone(worker))


def test_hung_worker_is_killed_and_prints_its_stacks(serve: Serve) -> None:
    impatient = (
        "import pymtp.server.process.supervisor as s; s.SILENCE_TIMEOUT, s.MAX_TICK, s.KILL_DELAY = 3.0, 0.1, 0.2"
    )
    served = serve(before=impatient, warm=True).ready()
    os.kill(served.worker(), signal.SIGSTOP)
    served.line("has not answered for 3 s")
    assert served.worker(2)
    assert served.ask().status_code == 200


def test_loading_server_answers_503_and_ends_on_a_signal(serve: Serve) -> None:
    served = serve("--port", str(port := free_port()), before=SLOW, warm=True)
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: not refuses(url))
    health = httpx.get(f"{url}/health", timeout=LONG)
    assert (health.status_code, health.json()) == (503, {"status": "loading"})
    request_body = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=LONG)
    assert request_body.status_code == 503
    assert int(request_body.headers["retry-after"]) > 0
    assert served.end(signal.SIGTERM) == 0


def test_worker_that_dies_before_it_is_ready_is_not_restarted(serve: Serve) -> None:
    served = serve(before=SLOW, warm=True)
    wait_until(lambda: children(served.process.pid))
    (worker,) = children(served.process.pid)
    os.kill(worker, signal.SIGKILL)
    assert served.exit_code() == 128 + signal.SIGKILL
    assert "SIGKILL" in served.line("before it was ready")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


@pytest.mark.parametrize("unread", [b"", b"a beat that the supervisor has not read"])
def test_worker_exits_when_the_supervisor_exits_without_prctl(
    unread: bytes,
) -> None:
    ours, theirs = socket.socketpair()
    program = (
        "import socket, sys, time\nfrom pymtp.server.process.worker import exit_with_supervisor\n"
        "sys.platform = 'other'\n"
        f"control = socket.socket(fileno={theirs.fileno()})\nexit_with_supervisor(control)\ncontrol.sendall({unread})\n"
        "print('begun', flush=True)\ntime.sleep(1e6)"
    )
    command = [sys.executable, "-I", "-c", program]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        ours.close()
        assert process.wait(LONG) == 1


def test_worker_sends_no_heartbeat_before_it_is_ready() -> None:
    """Check that READY is not lost if the supervisor was stopped: earlier heartbeats would fill the socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = HttpServer(ServerSettings(), LLM, theirs)
        asyncio.run(server._heartbeat())
        theirs.shutdown(socket.SHUT_WR)
        assert ours.recv(1000) == b""


def test_load_error_is_sent_with_the_name_of_a_known_error_class() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        HttpServer(ServerSettings(), LLM, theirs)._loaded(UnreachableError("the hub answers 503"))
        said = json.loads(ours.recv(1000))
    assert said == {"failed": "ModelLoadError", "message": "the hub answers 503"}
