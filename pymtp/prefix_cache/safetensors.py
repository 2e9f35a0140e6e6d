"""Reads tensors from a file of the safetensors format on demand.

The safetensors library maps files to memory: if another process truncates a mapped file, a signal kills the reader.
This module reads files instead, so that a truncated file raises an error.
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

MAX_HEADER_BYTES = 1 << 20
MAX_DIMENSIONS = 8
DTYPES: dict[str, np.dtype[Any]] = {"I32": np.dtype("<i4"), "U8": np.dtype("u1")}  # the types that `read` supports
FIELDS = {"dtype", "shape", "data_offsets"}


class DamagedFileError(ValueError):
    """The file is truncated or damaged, was changed while it was open, or is not in the safetensors format."""


class Tensor(NamedTuple):
    """A tensor's type and shape, and the offset of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class TensorFile:
    """An open file of tensors.

    size: the size of the file in bytes.
    metadata: the metadata of the header.
    tensors: the tensors of the header, by name.

    All methods raise OSError, and DamagedFileError for a file that is damaged or that another process changes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # O_NONBLOCK: opening a pipe must not wait for a writer
        self._file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        try:
            self._stat_when_opened = self._stat()
            self.size = self._stat_when_opened.st_size
            if not stat.S_ISREG(self._stat_when_opened.st_mode):
                raise DamagedFileError("it is not a regular file")
            self.metadata, self.tensors = self._read_header()
        except BaseException:
            self.close()
            raise

    def read(self, name: str, first: int = 0, n: int | None = None) -> NDArray[Any]:
        """Read n rows of a tensor from row `first` on, or all of them. The tensor's type must be in DTYPES."""
        dtype, shape, start = self.tensors[name]
        rows = shape[0] - first if n is None else n
        assert 0 <= first <= first + rows <= shape[0]
        width = math.prod(shape[1:]) * DTYPES[dtype].itemsize
        data = host_bytes(rows * width)
        self.read_into(data.data, start + first * width)
        return data.view(DTYPES[dtype]).reshape(rows, *shape[1:])

    def read_into(self, buffer: memoryview, start: int) -> None:
        """Fill a buffer with the bytes of the file from the offset `start` on."""
        self._file.seek(start)
        while buffer:
            n = self._file.readinto(buffer)
            if not n:
                raise DamagedFileError("it ends before its tensors do")
            buffer = buffer[n:]
        now, before = self._stat(), self._stat_when_opened
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise DamagedFileError("it was changed while it was read")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _stat(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def _read_bytes(self, start: int, n: int) -> bytes:
        data = bytearray(n)
        self.read_into(memoryview(data), start)
        return bytes(data)

    def _read_header(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        n = int.from_bytes(self._read_bytes(0, 8), "little")
        if not 2 <= n <= min(MAX_HEADER_BYTES, self.size - 8):
            raise DamagedFileError("the length of its header is invalid")
        try:
            header = json.loads(self._read_bytes(8, n).decode(), object_pairs_hook=_unique_names)
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(f"its header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise DamagedFileError("its header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise DamagedFileError("its metadata are not strings")
        return metadata, _tensors(header, 8 + n, self.size)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a name occurs twice")
    return unique


def _tensors(header: Mapping[str, Any], start: int, size: int) -> dict[str, Tensor]:
    """Check the tensors of a header, and return them by name. They must fill the file from byte `start` to its end."""
    tensors, spans = {}, []
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != FIELDS or not isinstance(entry["dtype"], str):
            raise DamagedFileError(f"{name[:40]!r} is not a tensor")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise DamagedFileError(f"tensor {name[:40]!r} has an invalid shape or invalid offsets")
        first, end = (start + offset for offset in offsets)
        if dtype in DTYPES and end - first != math.prod(shape) * DTYPES[dtype].itemsize:
            raise DamagedFileError(f"tensor {name[:40]!r} has a size that does not fit its shape")
        tensors[name] = Tensor(dtype, tuple(shape), first)
        spans.append((first, end))
    for first, end in sorted(spans):
        if first != start or end < first:
            raise DamagedFileError("its tensors overlap or leave gaps")
        start = end
    if start != size:
        raise DamagedFileError(f"its tensors end at byte {start}, and the file at byte {size}")
    return tensors


def _are_sizes(values: object) -> bool:
    if not isinstance(values, list) or len(values) > MAX_DIMENSIONS:
        return False
    return all(type(value) is int and value >= 0 for value in values)
