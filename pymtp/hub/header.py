"""What the header of a GGUF says of a model before the model is there: its architecture, and whether it has a head."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from pymtp.errors import ModelLoadError

# bytes of a value, by the numbers that the GGUF format gives to types
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_FIRST = 256 * 1024  # bytes; the keys of the architecture mostly come before the vocabulary
_MOST = 64 * 1024**2  # bytes of keys; a vocabulary of 248,320 tokens with its merges takes 10 MiB

Read = Callable[[int, int], bytes]  # (offset, n): n bytes of the file from there, fewer only at its end


class Header(NamedTuple):
    """architecture: such as "qwen35". has_head: whether it has a multi-token-prediction head."""

    architecture: str
    has_head: bool


class _Bytes:
    """A file read from its beginning, in pieces that grow."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._data = b""  # from _start on
        self._start = self._at = 0
        self._piece = _FIRST

    def take(self, n: int) -> bytes:
        begin = self._at - self._start
        if n > len(self._data) - begin:
            if self._at + n > _MOST:
                raise ValueError("more keys than any model has")
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

    def string(self) -> bytes:
        return self.take(self.number("Q"))

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip(self.number("Q"))
        elif kind == _ARRAY:
            kind, n = self.number("I"), self.number("Q")
            if kind == _STRING:
                for _ in range(n):
                    self.skip(self.number("Q"))
            else:
                self.skip(n * _size(kind))
        else:
            self.skip(_size(kind))


def _size(kind: int) -> int:
    if kind not in _SIZES:
        raise ValueError(f"a key has the unknown type {kind}")
    return _SIZES[kind]


def read_header(name: str, read: Read) -> Header:
    """name: for messages. Reads no more than it needs: where the architecture's keys come first, 256 KiB.

    Raises ModelLoadError for what is no GGUF.
    """
    file = _Bytes(read)
    architecture, heads = "", dict[str, int]()
    try:
        if file.take(4) != b"GGUF":
            raise ValueError("its first bytes are not GGUF")
        if (version := file.number("I")) not in (2, 3):
            raise ValueError(f"version {version} of the format is not known")
        file.number("Q")  # tensors
        for _ in range(file.number("Q")):
            key, kind = file.string().decode("utf-8", "replace"), file.number("I")
            if key == "general.architecture" and kind == _STRING:
                architecture = file.string().decode("utf-8", "replace")
            elif key.endswith(".nextn_predict_layers") and kind == _UINT32:
                heads[key] = file.number("I")
            else:
                file.skip_value(kind)
            if f"{architecture}.nextn_predict_layers" in heads:
                break
    except ValueError as error:
        raise ModelLoadError(f"{name} is no GGUF file, or it is damaged: {error}") from error
    return Header(architecture, heads.get(f"{architecture}.nextn_predict_layers", 0) > 0)
