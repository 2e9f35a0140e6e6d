"""Signal handlers that raise wherever they may."""

from __future__ import annotations

import linecache
import sys
from functools import cache
from types import FrameType
from typing import Any


@cache
def _is_one_of(name: str, files: tuple[str, ...]) -> bool:
    return any(file in name.replace("\\", "/") for file in files)


@cache
def _first_word(name: str, line: int) -> str:
    return linecache.getline(name, line).strip().partition(" ")[0]


class Interrupted:
    """Raises KeyboardInterrupt as the n-th line of some files begins, counted from 0."""

    def __init__(self, n: int, *files: str) -> None:
        """files: parts of their names."""
        self.left, self.files = n, files
        self.lines: dict[FrameType, int] = {}  # where each frame was last

    def __enter__(self) -> Interrupted:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self.lines.clear()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        return self._trace_lines if _is_one_of(frame.f_code.co_filename, self.files) else None

    def _trace_lines(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and self._may_raise(frame):
            self.left -= 1
            if self.left == -1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace_lines

    def _may_raise(self, frame: FrameType) -> bool:
        """No signal is handled at a `try:`, nor as a `with` is left, before what it took is let go of: Python would not
        let go of it."""
        line = frame.f_lineno
        before, self.lines[frame] = self.lines.get(frame, 0), line
        first = _first_word(frame.f_code.co_filename, line)
        return first != "try:" and not (first == "with" and before > line)
