"""GGUF files as the gguf package reads them, cached: reading the shipped model's vocabulary takes 25 ms."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray


class _PlainReader(GGUFReader):
    """A reader of the mapped file as a plain array: each slice of a numpy.memmap takes several times longer."""

    @property
    def data(self) -> NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._data = mapped.view(np.ndarray)


def open_gguf(path: Path) -> GGUFReader:
    """Open a file for reading, or return the cached reader unless the file was written or replaced since."""
    stat = path.stat()
    return _open(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=4)
def _open(path: Path, _version: tuple[int, int, int]) -> GGUFReader:
    return _PlainReader(path)
