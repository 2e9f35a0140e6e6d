"""Keeps one worker process at work, which serves: a worker that dies is started anew, on the same socket.

Clients that connect meanwhile wait in the socket's backlog. Only this process is signalled: the worker is in a session
of its own, so that Ctrl-C in a terminal asks it to end once, by way of this one.
"""

from __future__ import annotations

import json
import logging
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
from pymtp.model.files import inspect
from pymtp.server.metrics.logs import failures_held, log
from pymtp.server.process.head_file import HeadFile
from pymtp.server.process.launch import FAILED, FILE, HEAD, READY, START, Launch, line
from pymtp.server.process.listener import url
from pymtp.validation import is_hub_name

GOOD = 60.0  # seconds of service after which the next restart is at once again
LONGEST_DELAY = 30.0  # seconds before a restart
SILENCE = 60.0  # seconds: a worker whose event loop stands still so long is ended
TICK = 5.0  # seconds, of silence too, that count at most at once: this process may have been stopped itself
LATE = 5.0  # seconds, on top of the grace, until a worker that was to end is killed


def supervise(listener: socket.socket, launch: Launch) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code: 0 when all ended in order, else 128 + the second signal.

    Raises what the first worker could not load the model by; SystemExit with its code where it died before it served.
    """
    log.info("loading the model", extra={"fields": {"url": url(listener)}})
    with Signals() as signals, listener:
        return Supervisor(listener, launch, signals).run()


class Supervisor:
    def __init__(self, listener: socket.socket, launch: Launch, signals: Signals) -> None:
        self._listener, self._launch, self._signals = listener, launch, signals
        self._url = url(listener)
        self._asked: list[int] = []  # signals to end, in order
        self._failures = 0  # since a worker did well
        self._file: str | None = None  # of a model of the hub, once a worker had it
        self._head: HeadFile | None = None  # its head, where that is a file of its own
        self._by_name = True  # the next worker asks the hub

    def run(self) -> int:
        """As supervise."""
        served = False
        while True:
            try:
                worker = Worker(self._listener, self._next())
            except OSError as error:  # no memory or no process to be had: later there may be
                if not served:
                    raise
                if self._pause(self._delay(None), f"it cannot be started: {error}"):
                    return 0
                continue
            try:
                self._watch(worker)
            finally:
                code = worker.end()
            served = served or worker.served is not None
            if self._asked:
                return 128 + self._asked[1] if len(self._asked) > 1 else 0
            if not served and worker.error is not None:
                raise worker.error
            why = str(worker.error) if worker.error is not None else f"it ended with {_shown(code)}"
            if not served:
                log.error("the worker never served: %s", why)
                raise SystemExit(128 - code if code < 0 else code or 1)
            if self._pause(self._delay(worker.served), why):
                return 0
            self._choose(worker)

    def _next(self) -> Launch:
        """What a worker is started with: files that another had where there are some, else the model's name."""
        if self._by_name or self._file is None:
            return self._launch
        head = {} if self._head is None else {"head": self._head.path}
        return replace(self._launch, model=self._file, llm={**self._launch.llm, **head})

    def _choose(self, worker: Worker) -> None:
        """What the next worker loads: the file that others had, whatever the hub has by now. Where that file or a part
        of it is gone or damaged, the hub is asked; where the hub does not help, the file may be there again."""
        if self._file is None or worker.served is not None:
            return
        if self._by_name:
            self._by_name = False
            return
        try:
            with failures_held(logging.getLogger("pymtp.native")):
                inspect(Path(self._file))
            if self._head is not None:
                self._head.check()
        except ModelLoadError as error:
            self._by_name = True
            log.warning(
                "%s. %s is asked for by its name: the hub may have another file by now", error, self._launch.model
            )

    def _keep(self, file: str, head: str | None) -> None:
        """Remembers the files of a worker that serves."""
        if self._launch.model is not None and is_hub_name(self._launch.model):
            self._file, self._by_name = file, False
            self._head = None if head is None else HeadFile(head)

    def _delay(self, served: float | None) -> float:
        """Seconds until the next one begins. served: when the last began to, if it did."""
        if served is not None and time.monotonic() - served >= GOOD:
            self._failures = 0
        self._failures += 1
        return 0.0 if self._failures == 1 else min(LONGEST_DELAY, 2.0 ** (self._failures - 2))

    def _pause(self, seconds: float, why: str) -> bool:
        """Waits; whether a signal ended it."""
        log.error("the worker is gone: %s. A new one starts%s", why, f" in {seconds:g} s" if seconds else "")
        end = time.monotonic() + seconds
        while not self._asked and (left := end - time.monotonic()) > 0:
            self._asked += self._signals.wait(left)
        return bool(self._asked)

    def _watch(self, worker: Worker) -> None:
        """Until it is gone, or is to be killed."""
        with selectors.DefaultSelector() as selector:
            selector.register(worker.control, selectors.EVENT_READ)
            selector.register(self._signals, selectors.EVENT_READ)
            seen, silence, end = time.monotonic(), 0.0, float("inf")
            while time.monotonic() < end:
                heard = False
                for key, _ in selector.select(min(TICK, end - time.monotonic())):
                    if key.fileobj is self._signals:
                        self._asked += self._signals.wait(0)
                        continue
                    heard = True
                    for said in worker.hear():
                        if READY in said:
                            self._keep(said[FILE], said.get(HEAD))
                            place = {"url": self._url, "model": said[READY], "worker": worker.process.pid}
                            if said.get(HEAD) is not None:
                                place["head"] = Path(said[HEAD]).name
                            log.info("serving", extra={"fields": place})
                    if worker.gone:
                        return
                if len(self._asked) > 1:
                    return
                if self._asked and end == float("inf"):
                    log.info("ending: no new requests", extra={"fields": {"grace": self._launch.settings.grace}})
                    self._listener.close()  # the worker has its own
                    worker.process.terminate()
                    end = time.monotonic() + self._launch.settings.grace + LATE
                now = time.monotonic()
                silence = 0.0 if heard else silence + min(now - seen, TICK)
                seen = now
                if silence >= SILENCE and worker.served is not None and not self._asked:
                    log.error("the worker has not answered for %g s: its threads follow", SILENCE)
                    worker.process.send_signal(signal.SIGABRT)  # faulthandler shows where they are
                    with suppress(subprocess.TimeoutExpired):
                        worker.process.wait(LATE)
                    return


class Worker:
    """A process that serves on the listener. It ends when this one does.

    served: when it began to; None before. error: what it could not begin by. gone: whether it has ended by itself.
    """

    def __init__(self, listener: socket.socket, launch: Launch) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-c", START, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(), theirs.fileno()),
                    start_new_session=True,
                )
            except OSError:
                self.control.close()
                raise
        self.served: float | None = None
        self.error: PymtpError | None = None
        self.gone = False
        self._unread = b""
        with suppress(OSError):  # it is gone: seen at once
            self.control.sendall(line({"path": sys.path, "listener": listener.fileno(), **launch.as_given()}))

    def hear(self) -> list[dict[str, Any]]:
        """What it has to say."""
        try:
            news = self.control.recv(2**16)
        except OSError:
            news = b""
        self.gone = not news
        *lines, self._unread = (self._unread + news).split(b"\n")
        all_said: list[dict[str, Any]] = [json.loads(each) for each in lines]
        for said in all_said:
            if READY in said:
                self.served = time.monotonic()
            elif FAILED in said:
                self.error = getattr(errors, said[FAILED], PymtpError)(said["message"])
        return all_said

    def end(self) -> int:
        """Kills it, unless it is about to end by itself. Returns its exit code: that of a signal is negative."""
        try:
            self.process.wait(LATE if self.gone else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.control.close()
        return self.process.wait()


class Signals:
    """SIGTERM and SIGINT, to be waited for. One that is ignored stays so."""

    def __enter__(self) -> Signals:
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
        """Readable when one has come."""
        return self._reader.fileno()

    def wait(self, seconds: float) -> list[int]:
        """Those that have come, or come within so long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if not selector.select(seconds):
                return []
        return [number for number in self._reader.recv(64) if number in self._before]


def _shown(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
