"""Processes of Python that begin with pymtp imported: forks of one that has imported it, which save a second each.

A process of tests starts a waiting process at the first start_warm(). That one forks a guard for each program, and the
guard forks the program, and tells how it ended. Programs that such a program starts as `python -I -c PROGRAM` are forks
as well. They see no difference to `python -I -c PROGRAM`, except that modules are there already and that
/proc/PID/cmdline names this file.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple, TextIO

ALIVE = 300.0  # seconds until a test fails that waits for the end of a process
NUMBER = Struct("i")  # a process id, then an exit code
COMMAND = [sys.executable, "-I", "-c"]


class Program(NamedTuple):
    """A program for `python -I -c`, with its arguments."""

    source: str
    arguments: Sequence[str]


class WarmProcess:
    """A running program, with the part of subprocess.Popen that tests use. Its stdin is empty."""

    def __init__(self, program: Program, env: Mapping[str, str]) -> None:
        """Start the program. env: its environment. Raises OSError if the waiting process has ended."""
        self.returncode: int | None = None
        reader, writer = os.pipe()
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stderr: TextIO = os.fdopen(reader, encoding="utf-8")
        try:
            asked = json.dumps([*program, os.getcwd(), dict(env)]).encode()
            socket.send_fds(_waiting_process(), [asked], [writer, status.fileno()])
        finally:
            os.close(writer)
            status.close()
        self.pid = self._read_number()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = ALIVE) -> int:
        """Wait for the end, and return the exit code: -N if signal N ended it. Raises TimeoutError."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            self.returncode = self._read_number()
            self._status.close()
        return self.returncode

    def _read_number(self) -> int:
        return NUMBER.unpack(self._status.recv(NUMBER.size))[0]


@cache
def _waiting_process() -> socket.socket:
    """Start the process that waits for programs, and return the socket to it. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-I", __file__, str(theirs.fileno())]
        # A console made at an import looks at stderr: it must not be a terminal
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    return ours


def wait_for_a_program(control: socket.socket) -> Program:
    """Fork for each program that is asked for. Return in the forks alone: this process ends with the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards leave no zombies
    while True:
        asked, fds, _, _ = socket.recv_fds(control, 2**20, 2)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control.detach()
    source, arguments, folder, env = json.loads(asked)
    stderr, status = fds
    child = os.fork()
    if child:
        os.close(stderr)
        os.write(status, NUMBER.pack(child))
        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        os._exit(0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(stderr, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    return Program(source, arguments)


class ForkingPopen(subprocess.Popen[Any]):
    """A Popen that forks this process for a program of `python -I -c`, where a fork is safe."""

    def _execute_child(self, *given: Any) -> None:
        names = inspect.signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        command = names["args"]
        unsafe = threading.active_count() > 1 or asyncio._get_running_loop() is not None
        if unsafe or isinstance(command, str) or command[:3] != COMMAND:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            become(names)
        self._child_created = True
        self._close_pipe_fds(*(names[name] for name in PIPES))  # type: ignore[attr-defined]


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def become(names: Mapping[str, Any]) -> None:
    """Run a program in this forked process, with what exec would have set anew, and end the process."""
    code = 1
    try:
        gc.freeze()  # objects of the parent do not close files of the program that have the same numbers
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if names["start_new_session"]:
            os.setsid()
        for fd, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
            if names[name] >= 0:
                os.dup2(names[name], fd)
        kept = sorted(names["pass_fds"])
        for before, after in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(before + 1, after)
        _, _, _, source, *sys.argv[1:] = names["args"]
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    from pymtp.cli import app_main  # noqa: F401 — these imports are what the forks save
    from pymtp.server.process import http_server, supervisor, worker  # noqa: F401

    program = wait_for_a_program(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[:] = ["-c", *program.arguments]
    exec(compile(program.source, "<string>", "exec"), {"__name__": "__main__"})
