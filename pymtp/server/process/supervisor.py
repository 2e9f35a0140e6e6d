"""The supervisor of `pymtp serve`: it runs one worker process at a time, and starts a new one when the worker dies.

All workers serve on the same listening sockets. Clients that connect while no worker runs wait in the backlog.
The worker runs in a session of its own, so that Ctrl-C in a terminal sends SIGINT to the supervisor only; the
supervisor then sends SIGTERM to the worker.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pymtp import errors
from pymtp.errors import PymtpError
from pymtp.server.metrics.logs import log
from pymtp.server.process.listener import url
from pymtp.server.process.model_source import ModelSource
from pymtp.server.process.worker_config import (
    FAILED,
    FILE,
    HEAD,
    PROJECTOR,
    READY,
    WORKER_PROGRAM,
    WorkerConfig,
    encode_message,
)
from pymtp.server.settings import ServerSettings

# If a worker has served for this number of seconds before it dies, the next worker starts without delay.
HEALTHY_SECONDS = 60.0
MAX_RESTART_DELAY = 30.0  # the most seconds before a restart
SILENCE_TIMEOUT = 60.0  # seconds without a message from a worker, after which it is killed
# The most seconds that one pass of the loop adds to the silence of a worker: if the supervisor itself was stopped, it
# must not take the time for silence of the worker.
MAX_TICK = 5.0
KILL_DELAY = 5.0  # seconds after the grace, after which a worker that has not ended is killed


class Launch(Protocol):
    """The configuration of the process that serves: a WorkerConfig, or that of a front."""

    @property
    def settings(self) -> ServerSettings:
        """Return the settings of the server."""

    def to_json(self) -> dict[str, Any]:
        """Return the config as a JSON object."""


def supervise(listeners: Sequence[socket.socket], config: Launch, program: str | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code: 0, or 128 + the number of a second signal.

    config: sent to the process that serves.
    program: the program of that process, None for the worker's.

    Raises the exception of the first worker if that could not load the model. If the first worker died before it was
    ready, raises SystemExit with the worker's exit code.
    """
    log.info("starting", extra={"fields": {"url": url(listeners[0])}})
    with TerminationSignals() as signals, ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        return Supervisor(listeners, config, signals, program).run()


class Supervisor:
    """The supervisor of the workers of listening sockets; see `supervise`."""

    def __init__(
        self, listeners: Sequence[socket.socket], config: Launch, signals: TerminationSignals, program: str | None
    ) -> None:
        self._listeners, self._config, self._signals, self._program = listeners, config, signals, program
        self._url = url(listeners[0])
        self._received: list[int] = []  # the received signals
        self._failures = 0  # the number of failed workers in succession
        self._source = ModelSource(config) if isinstance(config, WorkerConfig) else None

    def run(self) -> int:
        """Run workers until a signal, and return the exit code; see `supervise`."""
        has_served = False
        while True:
            try:
                config = self._config if self._source is None else self._source.next_config()
                worker = WorkerProcess(self._listeners, config, self._program)
                if isinstance(config, WorkerConfig):  # a front tells it itself
                    log_load(config.model_names[0], worker.process.pid)
            except OSError as error:  # no memory or no free process id: a later attempt may succeed
                if not has_served:
                    raise
                if self._wait_to_restart(self._restart_delay(None), f"it cannot be started: {error}"):
                    return 0
                continue
            try:
                self._watch(worker)
            finally:
                code = worker.end()
            has_served = has_served or worker.ready_time is not None
            if self._received:
                return 128 + self._received[1] if len(self._received) > 1 else 0
            if not has_served and worker.error is not None:
                raise worker.error
            reason = str(worker.error) if worker.error is not None else f"it ended with {exit_text(code)}"
            if not has_served:
                log.error("the worker failed before it was ready: %s", reason)
                raise SystemExit(128 - code if code < 0 else code or 1)
            if self._wait_to_restart(self._restart_delay(worker.ready_time), reason):
                return 0
            if self._source is not None and worker.ready_time is None:
                self._source.note_failed()

    def _restart_delay(self, ready_time: float | None) -> float:
        """Return the number of seconds to wait before the next start. Also counts the failure.

        ready_time: the time when the last worker became ready; None if it never was.
        """
        if ready_time is not None and time.monotonic() - ready_time >= HEALTHY_SECONDS:
            self._failures = 0
        self._failures += 1
        return 0.0 if self._failures == 1 else doubled_delay(self._failures - 2, MAX_RESTART_DELAY)

    def _wait_to_restart(self, seconds: float, reason: str) -> bool:
        """Wait before a restart, and return whether a signal ended the waiting. Also logs why the worker ended."""
        log.error(
            "the worker failed: %s. A new worker starts%s", reason, f" in {seconds:g} s" if seconds else " at once"
        )
        end = time.monotonic() + seconds
        while not self._received and (remaining := end - time.monotonic()) > 0:
            self._received += self._signals.wait(remaining)
        return bool(self._received)

    def _watch(self, worker: WorkerProcess) -> None:
        """Handle the messages of a worker and the signals, until the worker has exited or must be killed."""
        with selectors.DefaultSelector() as selector:
            selector.register(worker.control, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            last_check, silence, end = time.monotonic(), 0.0, float("inf")
            while time.monotonic() < end:
                got_message = False
                for key, _ in selector.select(min(MAX_TICK, end - time.monotonic())):
                    if key.fileobj is self._signals:
                        self._received += self._signals.wait(0)
                        continue
                    got_message = True
                    for message in worker.read_messages():
                        if READY in message:
                            if self._source is not None:
                                self._source.note_loaded(message[FILE], message.get(HEAD), message.get(PROJECTOR))
                            fields = {"url": self._url, "model": message[READY], "worker": worker.process.pid}
                            if message.get(HEAD) is not None:
                                fields["head"] = Path(message[HEAD]).name
                            log.info("serving", extra={"fields": fields})
                    if worker.has_exited:
                        return
                if len(self._received) > 1:
                    return
                if self._received and end == float("inf"):
                    log.info(
                        "shutting down: new requests are refused",
                        extra={"fields": {"grace": self._config.settings.grace}},
                    )
                    for listener in self._listeners:
                        listener.close()  # the worker closes its own copy, so that new connections are refused
                    worker.process.terminate()
                    end = time.monotonic() + self._config.settings.grace + KILL_DELAY
                now = time.monotonic()
                silence = 0.0 if got_message else silence + min(now - last_check, MAX_TICK)
                last_check = now
                if silence >= SILENCE_TIMEOUT and worker.ready_time is not None and not self._received:
                    log.error(
                        "the worker has not answered for %g s and is killed; the stacks of its threads follow",
                        SILENCE_TIMEOUT,
                    )
                    # On SIGABRT, faulthandler in the worker prints the stacks of all threads.
                    worker.process.send_signal(signal.SIGABRT)
                    with suppress(subprocess.TimeoutExpired):
                        worker.process.wait(KILL_DELAY)
                    return


class WorkerProcess:
    """A worker process. It exits when the supervisor exits.

    control: the socket to the worker.
    ready_time: the time when the worker became ready; None before that.
    error: the error that made loading the model fail; None if there was none.
    has_exited: whether the worker has exited by itself.
    """

    def __init__(self, listeners: Sequence[socket.socket], config: Launch, program: str | None = None) -> None:
        """Start the process. program: its program, None for the worker's."""
        self.control, theirs = socket.socketpair()
        files = [listener.fileno() for listener in listeners]
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-c", program or WORKER_PROGRAM, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(*files, theirs.fileno()),
                    start_new_session=True,
                )
            except OSError:
                self.control.close()
                raise
        self.ready_time: float | None = None
        self.error: PymtpError | None = None
        self.has_exited = False
        self._unread = b""
        with suppress(OSError):  # the worker has exited already, and the next read notices it
            self.control.sendall(encode_message({"path": sys.path, "listeners": files, **config.to_json()}))

    def read_messages(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived from the worker. Also sets ready_time, error and has_exited."""
        try:
            data = self.control.recv(2**16)
        except OSError:
            data = b""
        self.has_exited = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            if READY in message:
                self.ready_time = time.monotonic()
            elif FAILED in message:
                self.error = getattr(errors, message[FAILED], PymtpError)(message["message"])
        return messages

    def end(self) -> int:
        """Kill the process unless it exits by itself, and return its exit code: -N if signal N ended it."""
        try:
            self.process.wait(KILL_DELAY if self.has_exited else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.control.close()
        return self.process.wait()


class TerminationSignals:
    """A context in which SIGTERM and SIGINT are collected; a signal that was ignored before stays ignored."""

    def __enter__(self) -> TerminationSignals:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGINT)
            if signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when a signal arrives."""
        return self._reader.fileno()

    def wait(self, seconds: float) -> list[int]:
        """Return the numbers of the collected signals; wait up to `seconds` for a first one. Also removes them."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if not selector.select(seconds):
                return []
        return [number for number in self._reader.recv(64) if number in self._before]


def doubled_delay(n: int, longest: float) -> float:
    """Return the seconds before an attempt: 1 doubled n times, at most `longest`. 2.0**n has no value for n > 1023."""
    return min(longest, 2.0 ** min(n, 1023))


def log_load(name: str, pid: int, **fields: object) -> None:
    """Log that a worker begins to load a model."""
    log.info("loading the model", extra={"fields": {"model": name, "worker": pid, **fields}})


def exit_text(code: int) -> str:
    """Describe the exit code of a process, -N for signal N."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
