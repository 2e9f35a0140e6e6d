"""What the header of a GGUF file says before its weights are there: keys of the architecture, and names of tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from pymtp.errors import ModelLoadError

# bytes of a value, by the numbers that the GGUF format gives to types
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_FIRST = 256 * 1024  # bytes; more than the header of any part of a split file but the first
_MOST = 64 * 1024**2  # bytes of a header; a vocabulary of 248,320 tokens with its merges takes 10 MiB
_MOST_DIMS = 4  # GGML_MAX_DIMS

Read = Callable[[int, int], bytes]  # (offset, n): n bytes of the file from there, fewer only at its end


class Header(NamedTuple):
    """
    architecture: such as "qwen35". kind: of the file, "model" or "adapter" for example; both "" where it is not said.
    blocks, width, announced: the architecture's block_count, embedding_length and nextn_predict_layers, 0 where it is
        not said.
    tensors: names of the tensors in this file.
    size: bytes from the file's beginning to the end of the header.
    """

    architecture: str
    kind: str
    blocks: int
    width: int
    announced: int
    tensors: tuple[str, ...]
    size: int


class _Bytes:
    """A file read from its beginning, in pieces that grow."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._data = b""  # from _start on
        self._start = self._at = 0
        self._piece = _FIRST

    @property
    def at(self) -> int:
        """Bytes that were taken or skipped."""
        return self._at

    def take(self, n: int) -> bytes:
        begin = self._at - self._start
        if n > len(self._data) - begin:
            if self._at + n > _MOST:
                raise ValueError("its header is longer than any model's")
            self._data = self._read(self._at, max(n, self._piece))
            self._start, begin = self._at, 0
            self._piece = min(2 * self._piece, 4 * 1024**2)
            if len(self._data) < n:
                raise ValueError("it ends within its header")
        self._at += n
        return self._data[begin : begin + n]

    def skip(self, n: int) -> None:
        self._at += n
        if self._at - self._start > len(self._data):
            self._data, self._start = b"", self._at

    def number(self, form: str) -> int:
        (value,) = struct.unpack("<" + form, self.take(struct.calcsize(form)))
        return int(value)

    def count(self, least: int) -> int:
        """How many values come, each of at least so many bytes. Raises ValueError where no header holds so many."""
        n = self.number("Q")
        if n > _MOST // least:
            raise ValueError(f"it counts {n} entries, more than any model's")
        return n

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip(self.number("Q"))
        elif kind == _ARRAY:
            kind = self.number("I")
            if kind == _STRING:
                for _ in range(self.count(8)):
                    self.skip(self.number("Q"))
            else:
                self.skip(self.number("Q") * _size(kind))
        else:
            self.skip(_size(kind))


def _size(kind: int) -> int:
    if kind not in _SIZES:
        raise ValueError(f"a key has the unknown type {kind}")
    return _SIZES[kind]


def read_header(name: str, read: Read) -> Header:
    """Read the header of a file, without its vocabulary's values. name: for messages.

    Raises ModelLoadError for what is no GGUF.
    """
    file = _Bytes(read)
    kept = dict[str, str | int]()
    tensors = list[str]()
    try:
        if file.take(4) != b"GGUF":
            raise ValueError("its first bytes are not GGUF")
        if (version := file.number("I")) not in (2, 3):
            raise ValueError(f"version {version} of the format is not known")
        n_tensors, n_keys = file.count(24), file.count(13)  # bytes of one whose name is empty
        for _ in range(n_keys):
            key, kind = file.string(), file.number("I")
            if kind == _STRING and key.startswith("general."):
                kept[key] = file.string()
            elif kind == _UINT32:
                kept[key] = file.number("I")
            else:
                file.skip_value(kind)
        for _ in range(n_tensors):
            tensors.append(file.string())
            if (n_dims := file.number("I")) > _MOST_DIMS:
                raise ValueError(f"a tensor has {n_dims} dimensions")
            file.take(8 * n_dims + 4 + 8)  # its shape, type and offset
    except ValueError as error:
        raise ModelLoadError(f"{name} is no GGUF file, or it is damaged: {error}") from error
    architecture = str(kept.get("general.architecture", ""))
    keys = ("block_count", "embedding_length", "nextn_predict_layers")
    blocks, width, announced = (int(kept.get(f"{architecture}.{key}", 0)) for key in keys)
    return Header(architecture, str(kept.get("general.type", "")), blocks, width, announced, tuple(tensors), file.at)
