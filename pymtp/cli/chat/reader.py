"""Lines that the user types or pipes into a chat."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Protocol

from pymtp.cli.chat.interrupts import Interrupts
from pymtp.cli.model_file import show_note
from pymtp.cli.screen import screen
from pymtp.cli.texts import read_input
from pymtp.validation import replace_surrogates


class Reader(Protocol):
    """What reads the user's messages and commands.

    can_edit: whether `read` can offer a text to be changed.
    """

    can_edit: bool

    def read(self, text: str = "") -> str:
        """Read a message or a command, which may have several lines.

        text: what the user may change, where `can_edit` is true.

        Raises EOFError at the end of the input, and KeyboardInterrupt at Ctrl-C on an empty line, or while a text is
        changed.
        """
        ...

    def turn(self) -> AbstractContextManager[None]:
        """Keep what is typed while the block runs from the screen, for the next call of `read`."""
        ...


class PlainReader:
    """Reads standard input line by line, without editing."""

    can_edit = False

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def read(self, text: str = "") -> str:
        """Read a line, without its line end.

        Raises EOFError at the end of the input, and InvalidRequestError if it cannot be decoded.
        """
        typed = is_interactive()
        if typed:
            screen.print("> ", end="", style="bold")
        try:
            line = read_input(line=True)
        except KeyboardInterrupt:
            screen.print()  # the terminal has shown "^C"
            raise
        if not line:
            if typed:
                screen.print()
            raise EOFError
        if typed:
            self._interrupts.in_a_row = 0
        # bytes that are no UTF-8 are surrogates where Python's locale is C
        return replace_surrogates(line.rstrip("\r\n"))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Do nothing: the terminal shows what is typed."""
        yield


def is_interactive() -> bool:
    """Return whether a user types the input."""
    return sys.stdin is not None and sys.stdin.isatty()


def make_reader(interrupts: Interrupts) -> Reader:
    """Return a reader with line editing if a terminal can show it, and else one that reads lines.

    Prints a note if only prompt_toolkit is missing.
    """
    # stdout may be a file, while the user sees stderr
    shown = next((stream for stream in (sys.stderr, sys.stdout) if stream is not None and stream.isatty()), None)
    if not is_interactive() or shown is None or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return PlainReader(interrupts)
    if find_spec("prompt_toolkit") is None:
        show_note("lines cannot be edited: install what edits them with `pip install prompt-toolkit`")
        return PlainReader(interrupts)
    from pymtp.cli.chat.terminal import TerminalReader  # no other command imports prompt_toolkit, which takes a moment

    return TerminalReader(interrupts, shown)
