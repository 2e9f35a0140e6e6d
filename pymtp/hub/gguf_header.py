"""Read the header of a GGUF file without its weights: keys of the architecture, and names and types of tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from pymtp.errors import ModelLoadError

# bytes of a value, by the type numbers of the GGUF format
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_FIRST_READ = 256 * 1024  # bytes; more than the header of any part of a split file but the first
_MAX_HEADER = 64 * 1024**2  # bytes; a vocabulary of 248,320 tokens with its merges takes 10 MiB
_MAX_DIMS = 4  # GGML_MAX_DIMS
_PROJECTOR_KINDS = ("clip.projector_type", "clip.vision.projector_type")

ReadAt = Callable[[int, int], bytes]  # (offset, n): returns n bytes of the file from the offset, fewer only at its end


class Header(NamedTuple):
    """The header of a GGUF file.

    architecture: such as "qwen35", "" if the key is missing.
    kind: general.type, such as "model" or "adapter", "" if the key is missing.
    blocks, width, n_head_blocks: the architecture's block_count, embedding_length and nextn_predict_layers, 0 if the
        key is missing. The width of a projector is that of its output.
    projector: the kind of a projector, such as "qwen3vl_merger", "" for other files.
    tensors: the names of the tensors in this file.
    types: for each of them, ggml's number of its type, and the number of its elements.
    size: the bytes from the beginning of the file to the end of the header.
    """

    architecture: str
    kind: str
    blocks: int
    width: int
    n_head_blocks: int
    projector: str
    tensors: tuple[str, ...]
    types: tuple[tuple[int, int], ...]
    size: int


class _Cursor:
    """A file that is read from its beginning, in pieces of growing size."""

    def __init__(self, read: ReadAt) -> None:
        self._read = read
        self._data = b""  # the bytes from _start on
        self._start = self._position = 0
        self._piece = _FIRST_READ

    @property
    def position(self) -> int:
        """Return the number of bytes that were read or skipped."""
        return self._position

    def take(self, n: int) -> bytes:
        begin = self._position - self._start
        if n > len(self._data) - begin:
            if self._position + n > _MAX_HEADER:
                raise ValueError("its header is longer than any model's")
            self._data = self._read(self._position, max(n, self._piece))
            self._start, begin = self._position, 0
            self._piece = min(2 * self._piece, 4 * 1024**2)
            if len(self._data) < n:
                raise ValueError("it ends within its header")
        self._position += n
        return self._data[begin : begin + n]

    def skip(self, n: int) -> None:
        self._position += n
        if self._position - self._start > len(self._data):
            self._data, self._start = b"", self._position

    def number(self, form: str) -> int:
        (value,) = struct.unpack("<" + form, self.take(struct.calcsize(form)))
        return int(value)

    def count(self, min_bytes: int) -> int:
        """Read the number of entries that follow, each of at least `min_bytes`.

        Raises ValueError if a header cannot hold this number of entries.
        """
        n_entries = self.number("Q")
        if n_entries > _MAX_HEADER // min_bytes:
            raise ValueError(f"it counts {n_entries} entries, more than any model's")
        return n_entries

    def string(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def skip_strings(self, n: int) -> None:
        """Skip strings: a loop of its own, because a vocabulary and its merges are half a million of them."""
        length = struct.Struct("<Q").unpack_from
        while n:
            data, at = self._data, self._position - self._start
            while n and at + 8 <= len(data):
                at += 8 + length(data, at)[0]
                n -= 1
            self.skip(self._start + at - self._position)
            if n:
                self.skip(self.number("Q"))
                n -= 1

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip(self.number("Q"))
        elif kind == _ARRAY:
            kind = self.number("I")
            if kind == _STRING:
                self.skip_strings(self.count(8))
            else:
                self.skip(self.number("Q") * _size(kind))
        else:
            self.skip(_size(kind))


def _size(kind: int) -> int:
    if kind not in _SIZES:
        raise ValueError(f"a key has the unknown type {kind}")
    return _SIZES[kind]


def read_header(name: str, read: ReadAt) -> Header:
    """Read the header of a file, and skip the values of the vocabulary. name: for messages.

    Raises ModelLoadError for a file that is damaged or not GGUF.
    """
    file = _Cursor(read)
    keys = dict[str, str | int]()
    tensors, types = list[str](), list[tuple[int, int]]()
    try:
        if file.take(4) != b"GGUF":
            raise ValueError("its first bytes are not GGUF")
        if (version := file.number("I")) not in (2, 3):
            raise ValueError(f"version {version} of the format is not known")
        n_tensors, n_keys = file.count(24), file.count(13)  # the bytes of an entry whose name is empty
        for _ in range(n_keys):
            key, kind = file.string(), file.number("I")
            if kind == _STRING and (key.startswith("general.") or key in _PROJECTOR_KINDS):
                keys[key] = file.string()
            elif kind == _UINT32:
                keys[key] = file.number("I")
            else:
                file.skip_value(kind)
        for _ in range(n_tensors):
            tensors.append(file.string())
            if (n_dims := file.number("I")) > _MAX_DIMS:
                raise ValueError(f"a tensor has {n_dims} dimensions")
            shape = struct.unpack(f"<{n_dims}Q", file.take(8 * n_dims))
            types.append((file.number("I"), math.prod(shape)))
            file.take(8)  # its offset
    except ValueError as error:
        raise ModelLoadError(f"{name} is not a GGUF file, or it is damaged: {error}") from error
    architecture = str(keys.get("general.architecture", ""))
    numbers = ("block_count", "embedding_length", "nextn_predict_layers")
    blocks, width, n_head_blocks = (int(keys.get(f"{architecture}.{key}", 0)) for key in numbers)
    width = width or int(keys.get("clip.vision.projection_dim", 0))
    return Header(
        architecture,
        str(keys.get("general.type", "")),
        blocks,
        width,
        n_head_blocks,
        next((str(keys[key]) for key in _PROJECTOR_KINDS if keys.get(key)), ""),
        tuple(tensors),
        tuple(types),
        file.position,
    )
