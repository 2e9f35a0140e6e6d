"""The file of a separate MTP head that a worker has loaded from the hub, and a check whether it has changed."""

from __future__ import annotations

import os
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.files import split_paths


class HeadFile:
    """The files of a separate head, and their sizes at the time of loading.

    The check compares only the sizes, because a head cannot be opened without its model.
    """

    def __init__(self, path: str) -> None:
        """path: the file of the head, or its first part if the head is split into several files."""
        self.path = path
        self._sizes = {part: _size(part) for part in split_paths(Path(path))}

    def check(self) -> None:
        """Raise ModelLoadError if a file of the head is missing, or has another size than at the time of loading."""
        for part, size in self._sizes.items():
            if (now := _size(part)) != size:
                state = "no such file" if now is None else f"{now:,} bytes, but {size or 0:,} when it was loaded"
                raise ModelLoadError(f"{part}: {state}")


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
