"""The consoles, and standard input. stdout belongs to the text; progress, figures and errors go to stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.markup import escape

from pymtp.errors import InvalidRequestError

NEVER_CUT = 10_000  # columns


class _Stderr:
    """sys.stderr. What cannot be written there is lost: the text on stdout is worth more."""

    def write(self, text: str) -> int:
        try:
            return sys.stderr.write(text) if sys.stderr else 0
        except OSError:
            with suppress(OSError):  # what is left in its buffer would fail again, at the end of the process too
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            return 0

    def flush(self) -> None:
        with suppress(OSError):
            if sys.stderr:
                sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


screen = Console(file=cast(IO[str], _Stderr()), highlight=False, emoji=False)  # "auto:new: 12" is no emoji


def tables() -> Console:
    """stdout for tables: as wide as the terminal, or as the table where a file or a program reads."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else NEVER_CUT)


class _Shown(logging.Handler):
    """Shows warnings, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and (said := " ".join(record.getMessage().split())) not in self._told:
            self._told.add(said)
            screen.print(f"[bold yellow]warning:[/] {escape(said)}", soft_wrap=True)


def show_warnings_of_drafts() -> None:
    """From now on, show what is wrong with a head that drafts: it comes to light while a text is written."""
    logger = logging.getLogger("pymtp.drafts")
    if not any(isinstance(handler, _Shown) for handler in logger.handlers):
        logger.addHandler(_Shown())


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Says what is being loaded, and shows what pymtp and llama.cpp warn of meanwhile, each once. Errors are in what
    is raised."""
    handler = _Shown()
    logger = logging.getLogger("pymtp")
    logger.addHandler(handler)
    try:
        with screen.status(escape(f"loading {what} …")):
            yield
    finally:
        logger.removeHandler(handler)


def show_error(error: Exception | str) -> None:
    """An error as one line."""
    said = "; ".join(str(error).splitlines())
    screen.print(f"[bold red]error:[/] {escape(said)}", soft_wrap=True)


def read_input(*, line: bool = False) -> str:
    """Standard input to its end, or its next line with the newline. Raises InvalidRequestError where it is closed, and
    for bytes that are no text."""
    if sys.stdin is None:
        raise InvalidRequestError("standard input is closed")
    try:
        return sys.stdin.readline() if line else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot read standard input: {error}") from error
