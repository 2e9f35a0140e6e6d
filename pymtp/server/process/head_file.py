"""The head of a model of the hub as a worker had it, in a file of its own or in several."""

from __future__ import annotations

import os
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.files import parts_of


class HeadFile:
    """Knows whether the files are those that a worker read: by their sizes, for a head alone is no model to inspect."""

    def __init__(self, path: str) -> None:
        """path: of a split head the first part's."""
        self.path = path
        self._sizes = {part: _size(part) for part in parts_of(Path(path))}

    def check(self) -> None:
        """Raise ModelLoadError where a file is gone, or has another size."""
        for part, size in self._sizes.items():
            if (now := _size(part)) != size:
                there = "no such file" if now is None else f"{now:,} bytes, and {size or 0:,} when it was loaded"
                raise ModelLoadError(f"{part}: {there}")


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
