"""Ctrl-C in a chat: it ends a turn or empties the input line, and a second one in a row ends the program."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Counts Ctrl-C, and handles SIGINT while its `with` block runs.

    in_a_row: the number of times that Ctrl-C was pressed since the user last typed something else.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        """cancel: ends the turn that runs. It is called by a signal handler."""
        self.in_a_row = 0
        self._cancel = cancel
        self._turn_runs = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let the first Ctrl-C within the block end the turn, instead of raising KeyboardInterrupt."""
        self._turn_runs = True
        try:
            yield
        finally:
            self._turn_runs = False

    def _handle(self, *_: object) -> None:
        self.in_a_row += 1
        if not self._turn_runs or self.in_a_row > 1:
            raise KeyboardInterrupt
        self._cancel()
