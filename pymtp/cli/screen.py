"""The console for stderr, which gets all output except generated text and tables; and the text on stdout."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.markup import escape
from rich.style import Style


class _Stderr:
    """A wrapper of sys.stderr that drops output which cannot be written.

    A closed stderr must not end a command that can still write text to stdout.
    """

    def write(self, text: str) -> int:
        try:
            return sys.stderr.write(text) if sys.stderr else 0
        except OSError:
            with suppress(OSError):  # text left in the buffer would raise again, at the latest when the process exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            return 0

    def flush(self) -> None:
        with suppress(OSError):
            if sys.stderr:
                sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


# emoji is off because rich would replace ":new:" in "auto:new: 12" by an emoji
class _Screen(Console):
    """A console that never hides the cursor: a signal may end a program while it shows a status or its progress."""

    def show_cursor(self, show: bool = True) -> bool:
        return super().show_cursor(True)


screen = _Screen(file=cast(IO[str], _Stderr()), highlight=False, emoji=False)


# control characters that a terminal may obey: all but newline, tab, and the carriage return of a line end
_CONTROL = re.compile(r"\r(?!\n|$)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def write_text(text: str, style: Style | None = None) -> None:
    """Write generated text to stdout at once.

    On a terminal, control characters become U+FFFD, since a model may have read or made up commands for terminals.

    style: for a terminal.
    """
    if sys.stdout.isatty():
        text = _replace_controls(text)
    sys.stdout.write(text if style is None else style.render(text))
    sys.stdout.flush()


def _replace_controls(text: str) -> str:
    return _CONTROL.sub("\ufffd", text)


def printable(text: str) -> str:
    """Return a text for stderr: on a terminal, control characters become U+FFFD, since a file may hold them."""
    return _replace_controls(text) if screen.is_terminal else text


class _WarningHandler(logging.Handler):
    """A log handler that shows each warning once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and (text := " ".join(record.getMessage().split())) not in self._shown:
            self._shown.add(text)
            screen.print(f"[bold yellow]warning:[/] {escape(printable(text))}", soft_wrap=True)


def show_draft_warnings() -> None:
    """Show warnings about the head from now on.

    `loading_status` does not suffice, because some faults of a head are found only while text is generated.
    """
    logger = logging.getLogger("pymtp.drafts")
    if not any(isinstance(handler, _WarningHandler) for handler in logger.handlers):
        logger.addHandler(_WarningHandler())


@contextmanager
def loading_status(name: str) -> Iterator[None]:
    """Show "loading NAME …" while the block runs, and each warning of pymtp and llama.cpp once.

    Errors in the log are not shown, because the exception that is raised has their messages.
    """
    handler = _WarningHandler()
    logger = logging.getLogger("pymtp")
    logger.addHandler(handler)
    try:
        with screen.status(escape(printable(f"loading {name} …"))):
            yield
    finally:
        logger.removeHandler(handler)


def show_error(error: Exception | str) -> None:
    """Print an error as one line on stderr."""
    text = "; ".join(str(error).splitlines())
    screen.print(f"[bold red]error:[/] {escape(printable(text))}", soft_wrap=True)


def show_remark(text: str) -> None:
    """Print a remark about what was done on stderr, in brackets."""
    screen.print(printable(f"({text})"), style="dim", markup=False, soft_wrap=True)
