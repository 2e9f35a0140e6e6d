"""Tensors in a file of the safetensors format, read as they are asked for.

The library of that name maps files: a process that looks at a file which another cuts short meanwhile is ended by a
signal. Here a read comes back short, and is an error.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymtp.context.host_memory import host_bytes

MOST_HEADER = 1 << 20  # bytes
MOST_DIMENSIONS = 8
TYPES: dict[str, np.dtype[Any]] = {"I32": np.dtype("<i4"), "U8": np.dtype("u1")}  # that can be read
FIELDS = {"dtype", "shape", "data_offsets"}


class DamagedFileError(ValueError):
    """A file that is not what it should be."""


class Tensor(NamedTuple):
    """start: its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class TensorFile:
    """An open file. size: its bytes. metadata, tensors: what its header says, the tensors by their names.

    All methods raise DamagedFileError, also for a file that another process changes meanwhile, and OSError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # not to wait for whoever writes to a pipe of this name
        self._file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        try:
            self._as_opened = self._now()
            self.size = self._as_opened.st_size
            if not stat.S_ISREG(self._as_opened.st_mode):
                raise DamagedFileError("it is no regular file")
            self.metadata, self.tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def read(self, name: str, first: int = 0, n: int | None = None) -> NDArray[Any]:
        """Of a tensor of one of TYPES n rows, None for all from the first on, in memory of their own."""
        dtype, shape, start = self.tensors[name]
        rows = shape[0] - first if n is None else n
        assert 0 <= first <= first + rows <= shape[0]
        width = math.prod(shape[1:]) * TYPES[dtype].itemsize
        data = host_bytes(rows * width)
        self.read_into(data.data, start + first * width)
        return data.view(TYPES[dtype]).reshape(rows, *shape[1:])

    def read_into(self, room: memoryview, start: int) -> None:
        """Fills it with the file's bytes from a place on."""
        self._file.seek(start)
        while room:
            n = self._file.readinto(room)
            if not n:
                raise DamagedFileError("it ends before its tensors do")
            room = room[n:]
        now, then = self._now(), self._as_opened
        if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            raise DamagedFileError("it was changed while it was read")

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def _now(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def _bytes(self, start: int, n: int) -> bytes:
        data = bytearray(n)
        self.read_into(memoryview(data), start)
        return bytes(data)

    def _read_header(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        n = int.from_bytes(self._bytes(0, 8), "little")
        if not 2 <= n <= min(MOST_HEADER, self.size - 8):
            raise DamagedFileError("its header has no such length")
        try:
            header = json.loads(self._bytes(8, n).decode(), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(f"its header is no JSON: {error}") from error
        if not isinstance(header, dict):
            raise DamagedFileError("its header is no object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise DamagedFileError("its metadata are no texts")
        return metadata, _tensors(header, 8 + n, self.size)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _tensors(header: Mapping[str, Any], start: int, size: int) -> dict[str, Tensor]:
    """By their names. They fill the file from a place on, side by side."""
    found, spans = {}, []
    for name, said in header.items():
        if not isinstance(said, dict) or said.keys() != FIELDS or not isinstance(said["dtype"], str):
            raise DamagedFileError(f"{name[:40]!r} is no tensor")
        dtype, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise DamagedFileError(f"tensor {name[:40]!r} has no size")
        first, end = (start + offset for offset in offsets)
        if dtype in TYPES and end - first != math.prod(shape) * TYPES[dtype].itemsize:
            raise DamagedFileError(f"tensor {name[:40]!r} has another size than its shape")
        found[name] = Tensor(dtype, tuple(shape), first)
        spans.append((first, end))
    for first, end in sorted(spans):
        if first != start or end < first:
            raise DamagedFileError("its tensors do not lie side by side")
        start = end
    if start != size:
        raise DamagedFileError(f"its tensors end at byte {start} of {size}")
    return found


def _are_sizes(values: object) -> bool:
    if not isinstance(values, list) or len(values) > MOST_DIMENSIONS:
        return False
    return all(type(value) is int and value >= 0 for value in values)
