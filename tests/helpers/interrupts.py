"""Signal handlers that raise wherever they may."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any


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
        name = frame.f_code.co_filename.replace("\\", "/")
        if not any(file in name for file in self.files):
            return None
        if event == "line" and self._may_raise(frame):
            self.left -= 1
            if self.left == -1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace

    def _may_raise(self, frame: FrameType) -> bool:
        """No signal is handled at a `try:`, nor as a `with` is left, before what it took is let go of: Python would not
        let go of it."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        before, self.lines[frame] = self.lines.get(frame, 0), frame.f_lineno
        return line != "try:" and not (line.startswith("with ") and before > frame.f_lineno)
