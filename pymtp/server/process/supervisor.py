"""The supervisor of `pymtp serve`: it runs one worker process at a time, and starts a new one when the worker dies.

All workers serve on the same listening socket. Clients that connect while no worker runs wait in the socket's backlog.
The worker runs in a session of its own, so that Ctrl-C in a terminal sends SIGINT to the supervisor only; the
supervisor then sends SIGTERM to the worker.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pymtp import errors
from pymtp.errors import ModelLoadError, PymtpError
from pymtp.hub.files import split_paths
from pymtp.model.files import read_file_info
from pymtp.server.metrics.logs import hold_errors, log
from pymtp.server.process.listener import url
from pymtp.server.process.worker_config import FAILED, FILE, HEAD, READY, WORKER_PROGRAM, WorkerConfig, encode_message
from pymtp.validation import is_hub_name

# If a worker has served for this number of seconds before it dies, the next worker starts without delay.
HEALTHY_SECONDS = 60.0
MAX_RESTART_DELAY = 30.0  # the most seconds before a restart
SILENCE_TIMEOUT = 60.0  # seconds without a message from a worker, after which it is killed
# The most seconds that one pass of the loop adds to the silence of a worker: if the supervisor itself was stopped, it
# must not take the time for silence of the worker.
MAX_TICK = 5.0
KILL_DELAY = 5.0  # seconds after the grace, after which a worker that has not ended is killed


def supervise(listener: socket.socket, config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code: 0, or 128 + the number of a second signal.

    Raises the exception of the first worker if that could not load the model. If the first worker died before it was
    ready, raises SystemExit with the worker's exit code.
    """
    log.info("loading the model", extra={"fields": {"url": url(listener)}})
    with TerminationSignals() as signals, listener:
        return Supervisor(listener, config, signals).run()


class Supervisor:
    """The supervisor of the workers of a listening socket; see `supervise`."""

    def __init__(self, listener: socket.socket, config: WorkerConfig, signals: TerminationSignals) -> None:
        self._listener, self._config, self._signals = listener, config, signals
        self._url = url(listener)
        self._received: list[int] = []  # the received signals
        self._failures = 0  # the number of failed workers in succession
        self._model_file: str | None = None  # the file of the hub model that a worker has loaded
        self._head_file: HeadFile | None = None  # the separate head of that model, if any
        self._asks_hub = True  # whether the next worker asks the hub for the files of the model

    def run(self) -> int:
        """Run workers until a signal, and return the exit code; see `supervise`."""
        has_served = False
        while True:
            try:
                worker = WorkerProcess(self._listener, self._next_config())
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
            reason = str(worker.error) if worker.error is not None else f"it ended with {_exit_text(code)}"
            if not has_served:
                log.error("the worker failed before it was ready: %s", reason)
                raise SystemExit(128 - code if code < 0 else code or 1)
            if self._wait_to_restart(self._restart_delay(worker.ready_time), reason):
                return 0
            self._choose_source(worker)

    def _next_config(self) -> WorkerConfig:
        """Return the config of the next worker.

        If an earlier worker has loaded a model of the hub, the config has the paths of its files, so that the next
        worker loads the same files. Otherwise the config has the name of the model, as the user gave it.
        """
        if self._asks_hub or self._model_file is None:
            return self._config
        llm = self._config.llm
        head = llm.head if self._head_file is None else self._head_file.path
        return replace(self._config, llm=replace(llm, model=self._model_file, head=head))

    def _choose_source(self, worker: WorkerProcess) -> None:
        """Choose whether the next worker loads the files of an earlier worker, or asks the hub for the model.

        By default the next worker loads the files of the earlier worker, even if the hub has newer files. If the worker
        died before it was ready, the other source may be chosen: the hub after a missing or damaged file, the files
        after a failed request to the hub.

        worker: the worker that has died.
        """
        if self._model_file is None or worker.ready_time is not None:
            return
        if self._asks_hub:
            self._asks_hub = False
            return
        try:
            with hold_errors(logging.getLogger("pymtp.native")):
                read_file_info(Path(self._model_file))
            if self._head_file is not None:
                self._head_file.check()
        except ModelLoadError as error:
            self._asks_hub = True
            log.warning(
                "%s. The next worker asks the hub for %s; the hub may have another file by now",
                error,
                self._config.llm.model,
            )

    def _remember_files(self, file: str, head: str | None) -> None:
        """Remember the files that a worker has loaded, if the model comes from the hub.

        file: the path of the model's file.
        head: the path of the separate head; None if the model's file contains the head.
        """
        if isinstance(self._config.llm.model, str) and is_hub_name(self._config.llm.model):
            self._model_file, self._asks_hub = file, False
            self._head_file = None if head is None else HeadFile(head)

    def _restart_delay(self, ready_time: float | None) -> float:
        """Return the number of seconds to wait before the next start. Also counts the failure.

        ready_time: the time when the last worker became ready; None if it never was.
        """
        if ready_time is not None and time.monotonic() - ready_time >= HEALTHY_SECONDS:
            self._failures = 0
        self._failures += 1
        return 0.0 if self._failures == 1 else min(MAX_RESTART_DELAY, 2.0 ** (self._failures - 2))

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
                            self._remember_files(message[FILE], message.get(HEAD))
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
                    self._listener.close()  # the worker closes its own copy, so that new connections are refused
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

    def __init__(self, listener: socket.socket, config: WorkerConfig) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-c", WORKER_PROGRAM, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(), theirs.fileno()),
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
            self.control.sendall(encode_message({"path": sys.path, "listener": listener.fileno(), **config.to_json()}))

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


def _exit_text(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"


class HeadFile:
    """The files of a separate head, and their sizes at the time of loading.

    The check compares only the sizes, because a head cannot be opened without its model.
    """

    def __init__(self, path: str) -> None:
        """path: the file of the head, or its first part if the head is split into several files."""
        self.path = path
        self._sizes = {part: _size(part) for part in split_paths(Path(path))}

    def check(self) -> None:
        """Raise ModelLoadError if a file of the head is missing, or has another size than at the time of loading."""
        for part, size in self._sizes.items():
            if (now := _size(part)) != size:
                state = "no such file" if now is None else f"{now:,} bytes, but {size or 0:,} when it was loaded"
                raise ModelLoadError(f"{part}: {state}")


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
