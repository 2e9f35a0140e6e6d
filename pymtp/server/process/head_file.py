"""The separate head of a model of the hub, as a worker loaded it: one file or several parts."""

from __future__ import annotations

import os
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.files import split_paths


class HeadFile:
    """The files of a head and their sizes at load time. A head alone is no model, so only the sizes are checked."""

    def __init__(self, path: str) -> None:
        """path: the file, or the first part of a split head."""
        self.path = path
        self._sizes = {part: _size(part) for part in split_paths(Path(path))}

    def check(self) -> None:
        """Raise ModelLoadError where a file is gone, or has another size."""
        for part, size in self._sizes.items():
            if (now := _size(part)) != size:
                state = "no such file" if now is None else f"{now:,} bytes, and {size or 0:,} when it was loaded"
                raise ModelLoadError(f"{part}: {state}")


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
