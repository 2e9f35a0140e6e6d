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
PROGRAM = """
import os, sys
from pymtp.cli import app_main

sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, mode, closefd=False) for i, mode in enumerate("rww"))  # may be pipes
app_main()
"""


def call(path: str, arguments: list[str]) -> int:
    """Run a command with this process's folder, environment and streams, and return its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(path)
        socket.send_fds(control, [json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
        return int(CODE.unpack(control.recv(CODE.size))[0])


def wait_for_calls(path: str) -> None:
    """Answer calls until this process is ended."""
    import typer.main

    from helpers.warm import COMMAND, ForkingPopen, become
    from pymtp.cli.app import app
    from pymtp.context import options
    from pymtp.server.process import http_server, supervisor, worker  # noqa: F401

    options.default_threads = lambda: 1  # on a busy machine, each thread would wait for the others
    command = typer.main.get_command(app)  # takes a tenth of a second, which each call would take
    typer.main.get_command = lambda _: command
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
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
        streams = {"p2cread": fds[0], "c2pwrite": fds[1], "errwrite": writer if serves else fds[2]}
        arguments += ["--port", "0"] if serves else []
        become({**streams, "start_new_session": False, "pass_fds": [], "args": [*COMMAND, PROGRAM, *arguments]})


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
