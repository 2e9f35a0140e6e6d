"""Errors raised at any line: those of signal handlers, and those that nobody expects."""

from __future__ import annotations

import linecache
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pymtp


@cache
def _is_one_of(name: str, files: tuple[str, ...]) -> bool:
    return any(file in name.replace("\\", "/") for file in files)


@cache
def _first_word(name: str, line: int) -> str:
    return linecache.getline(name, line).strip().partition(" ")[0]


@cache
def _package_files() -> list[str]:
    return [path.as_posix() for path in Path(pymtp.__file__).parent.rglob("*.py")]


class ErrorAtLine:
    """Raises an error before the n-th line of some files is run, counted from 0."""

    def __init__(self, n: int, error: type[BaseException], *files: str) -> None:
        """Check that each part names a file of the package.

        files: parts of the files' paths. Raises AssertionError for a part that no file has.
        """
        for part in files:
            assert any(part in path for path in _package_files()), f"no file of pymtp is named {part}"
        self.left, self.error, self.files = n, error, files
        self.lines: dict[FrameType, int] = {}  # the last line of each frame

    def __enter__(self) -> ErrorAtLine:
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
                raise self.error
        return self._trace_lines

    def _may_raise(self, frame: FrameType) -> bool:
        """Tell whether Python runs signal handlers before this line.

        It runs none at a `try:`, and none at the end of a `with` before __exit__: the lock would not be released.
        """
        line = frame.f_lineno
        before, self.lines[frame] = self.lines.get(frame, 0), line
        first = _first_word(frame.f_code.co_filename, line)
        return first != "try:" and not (first == "with" and before > line)


class InterruptAtLine(ErrorAtLine):
    """Raises KeyboardInterrupt before the n-th line of some files is run, as a signal handler may."""

    def __init__(self, n: int, *files: str) -> None:
        super().__init__(n, KeyboardInterrupt, *files)
