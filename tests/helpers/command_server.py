"""The program `pymtp` for scripts of a shell: each call is a fork of a process that has imported pymtp.

`python command_server.py SOCKET` waits for calls, and `python -S command_server.py SOCKET ARGUMENT…` is one. A call of
`serve` takes a free port, and ends as soon as the server serves.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from struct import Struct

CODE = Struct("i")


def call(path: str, arguments: list[str]) -> int:
    """Run a command with this process's folder, environment and streams, and return its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(path)
        socket.send_fds(control, [json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
        return int(CODE.unpack(control.recv(CODE.size))[0])


def wait_for_calls(path: str) -> None:
    """Answer calls until this process is ended."""
    from helpers.warm import ForkingPopen
    from pymtp.cli import app_main
    from pymtp.context import options
    from pymtp.server.process import http_server, supervisor, worker  # noqa: F401

    options.default_threads = lambda: 1  # on a busy machine, each thread would wait for the others
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    while True:
        control, _ = listener.accept()
        if os.fork():
            control.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked, fds, _, _ = socket.recv_fds(control, 2**20, 3)
        arguments, folder, environment = json.loads(asked)
        serves = arguments[:1] == ["serve"]
        reader, writer = os.pipe()
        child = os.fork()
        if child:
            os.close(writer)
            if serves:
                _end_when_it_serves(child, reader, fds[2])
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            control.send(CODE.pack(code if code >= 0 else 128 - code))
            os._exit(0)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number, fd in enumerate([*fds[:2], writer if serves else fds[2]]):
            os.dup2(fd, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, mode) for i, mode in enumerate("rww"))
        app_main([*arguments, "--port", "0"] if serves else arguments)


def _end_when_it_serves(child: int, reader: int, stderr: int) -> None:
    """Pass on what a server says, and end it when it says that it serves."""
    with os.fdopen(reader) as lines, os.fdopen(stderr, "w") as target:
        for line in lines:
            target.write(line)
            if " serving " in line:
                os.kill(child, signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(call(sys.argv[1], sys.argv[2:]))
    sys.path.insert(0, str(Path(__file__).parents[1]))
    wait_for_calls(sys.argv[1])
