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

    def __enter__(self) -> Interrupted:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename.replace("\\", "/")
        if not any(file in name for file in self.files):
            return None
        # no signal is handled at a `try:`, and Python would not leave the `with` around it
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            self.left -= 1
            if self.left == -1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace
