"""A program in a terminal of its own: a pseudo-terminal, whose screen pyte draws."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyte

PATIENCE = 100
PASTE, PASTE_END = "\x1b[200~", "\x1b[201~"
UP, LEFT, HOME, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\x01", "\x1b\r", "\x03", "\x04"
CLEAR, SEARCH = "\x0c", "\x12"

# The program of the child. A test holds an answer with the file HOLD: once the answer has as many pieces as its number
# says, or contains its text, the next piece waits until the file is empty or Ctrl-C was pressed ("!": is empty).
# The model ends no answer itself, so that answers have as many tokens as -n says.
CHILD = """
import fcntl, os, signal, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # programs that a shell runs in the background ignore it
from dataclasses import replace
from pathlib import Path
from pymtp.cli.chat.interrupts import Interrupts
from pymtp.engine.stream import Stream
from pymtp.llm import LLM

hold, presses = Path(os.environ["HOLD"]), []
handle, next_piece, params = Interrupts._handle, Stream.__next__, LLM.get_default_sampling_params

def noted(self, *arguments):
    presses.append(1)
    hold.with_suffix(".pressed").touch()
    handle(self, *arguments)

def held(stream):
    texts, pressed = vars(stream).setdefault("held", ([], len(presses)))
    while (wanted := hold.read_text()) and ("!" in wanted or len(presses) == pressed):
        wanted = wanted.strip("!")
        if not (len(texts) >= int(wanted) if wanted.isdigit() else wanted in "".join(texts)):
            break
        hold.with_suffix(".held").touch()
        time.sleep(0.005)
    piece = next_piece(stream)
    texts.append(piece.text)
    return piece

Interrupts._handle, Stream.__next__ = noted, held
LLM.get_default_sampling_params = lambda llm: replace(params(llm), ignore_eos=True)
from pymtp_command import main
main()
"""


class Terminal:
    """`pymtp` in a terminal.

    raw: all bytes that the program has written to the terminal.
    """

    def __init__(
        self, folder: Path, *arguments: str, columns: int = 80, lines: int = 60, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the program.

        folder: for the user's state, and the file that holds answers.
        """
        self._hold = folder / "hold"
        self._hold.write_text("")
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = os.openpty()
        self._screen.write_process_input = lambda data: self.type(data)  # the program asks where the cursor is
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
        state = {"TERM": "xterm-256color", "XDG_STATE_HOME": str(folder), "HOLD": str(self._hold)}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", CHILD, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, **state, **(env or {})},
            cwd=folder,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """Return what the screen shows, without spaces at the ends of its lines."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    @property
    def cursor_line(self) -> str:
        """Return the line of the cursor."""
        return self._screen.display[self._screen.cursor.y].rstrip()

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def clear(self) -> None:
        """Clear the screen of a program that shows its input line."""
        self.type(CLEAR)
        self._wait_until(lambda: self.text == ">", "a cleared screen")

    def run(self, line: str, shown: str, *, clear: bool = True) -> None:
        """Send a line, and wait until the screen shows a text, and the next input line.

        clear: whether the screen is cleared first.
        """
        if clear:
            self.clear()
        self.type(f"{line}\r")
        self.wait(shown)
        self.wait_for_prompt()

    def wait(self, text: str) -> None:
        """Wait until the screen shows a text."""
        self._wait_until(lambda: text in self.text, text)

    def wait_for_prompt(self, line: str = ">") -> None:
        """Wait until the cursor is in an input line that has this text."""
        self._wait_until(lambda: self.cursor_line == line, line)

    def hold(self, wanted: str) -> None:
        """Hold the next answer: see CHILD."""
        for state in ("held", "pressed"):
            self._hold.with_suffix(f".{state}").unlink(missing_ok=True)
        self._hold.write_text(wanted)

    def wait_until_held(self) -> None:
        """Wait until the answer is held."""
        self._wait_until(self._hold.with_suffix(".held").exists, "an answer that is held")

    def wait_until_pressed(self) -> None:
        """Wait until the program has got the first Ctrl-C of a turn."""
        self._wait_until(self._hold.with_suffix(".pressed").exists, "a Ctrl-C that is noticed")

    def send(self, number: int) -> None:
        """Send a signal to the program."""
        self._process.send_signal(number)

    @property
    def settings(self) -> list[Any]:
        """Return the settings of the terminal: whether it shows what is typed, and others."""
        return termios.tcgetattr(self._master)

    def wait_for_end(self) -> int:
        """Wait until the program ends. Return its exit code."""
        self._wait_until(lambda: self._process.poll() is not None, "the end of the program")
        return self._process.wait()

    def read_rest(self) -> None:
        """Read what an ended program has written."""
        while select.select([self._master], [], [], 0)[0]:
            length = len(self.raw)
            self._read(0)
            if len(self.raw) == length:
                return

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > until:
                raise AssertionError(f"no {what!r} on the screen:\n{self.text}")
            self._read(0.02)

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError as error:
                if error.errno != errno.EIO:  # Linux: no process has the terminal open
                    raise
                time.sleep(seconds)
                return
            self.raw += data
            self._stream.feed(data)
