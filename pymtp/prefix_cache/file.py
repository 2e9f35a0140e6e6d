"""Prefixes in files: K, V and states of a text, for this process to go on from, or another.

A file is in the safetensors format. Its tensors: "tokens"; "cells" (K and V, a row a token); for each place that a text
can go on from a "state.N", after N tokens, the last one after all; and at the end of the file "sum", the CRC-32 of all
bytes before it. The metadata name the format, its version, and what the prefix was made with. A CRC-32 finds all damage
within four bytes side by side, and of other damage all but one in four billion.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from pymtp.context.context import Context
from pymtp.context.state import Bytes
from pymtp.errors import InvalidRequestError
from pymtp.native.build_info import build_info
from pymtp.prefix_cache.safetensors import DamagedFileError, TensorFile
from pymtp.validation import read_path

FORMAT = "pymtp prefix"
VERSION = 1
SUM_BYTES = 4
PIECE = 16 << 20  # bytes that are read or written at a time
TENSORS = {"tokens": ("I32", 1), "cells": ("U8", 2), "sum": ("U8", 1)}  # types and dimensions
STATE = re.compile(r"state\.([1-9][0-9]{0,9})", re.ASCII)
NAMED_ONLY = ("n_ubatch",)  # a prompt's bits do not depend on how it is cut
SHOWN = 200  # characters of what a file says


def made_with(context: Context) -> dict[str, str]:
    """All that a file names: what the bits of a prefix depend on, by what it is called in an error, and n_ubatch."""
    info = build_info()
    return {
        "model": context.model.digest,
        **({"head's file": context.model.head_digest} if context.model.head_digest else {}),
        "pymtp": info["pymtp"],
        "llama.cpp": " ".join([info["llama_cpp_commit"], *info["patches"]]),
        "tap": context.tap,
        **context.cell_options,
        # only where there are any: files of before fit where there are none
        **({"adapters": context.model.lora_digest} if context.model.lora_digest else {}),
        **({"rope scaling": str(context.rope)} if context.rope.given() else {}),
    }


def look_at(path: str | os.PathLike[str]) -> None:
    """Raises as PrefixFile for what is no prefix by the file's first bytes: before a model is loaded for it."""
    _opened(read_path("a prefix", path)).close()


class PrefixFile:
    """A file that was looked at all through: it is whole, and it fits. Its arrays are read as they are asked for.

    tokens: the text. places: after how many of them a text can go on, rising. made_with: what the file says that it was
    made with. nbytes: K, V and states.
    """

    def __init__(self, path: str | os.PathLike[str], depends_on: Mapping[str, str] | None) -> None:
        """depends_on: what the reader has; None takes what any has. Raises InvalidRequestError for a file that is
        refused, with what does not fit, and OSError for one that cannot be read. So do all other methods, for one
        that another process changes meanwhile."""
        self.path = read_path("a prefix", path)
        self._file = _opened(self.path)
        try:
            self._check(depends_on)
        except BaseException:
            self.close()
            raise

    def _check(self, depends_on: Mapping[str, str] | None) -> None:
        said = dict(self._file.metadata)
        del said["format"]
        version = said.pop("version", "")
        if version != str(VERSION):
            raise self.refused(f"is of format {_shown(version)}, this pymtp reads {VERSION}")
        tensors = self._file.tensors
        kinds = {name: (one.dtype, len(one.shape)) for name, one in tensors.items()}
        states = [name for name in kinds if STATE.fullmatch(name)]
        if not states or kinds != TENSORS | dict.fromkeys(states, ("U8", 1)):
            raise self.refused("is damaged: it has other tensors than a prefix")
        if self._sum(self._file.size - SUM_BYTES) != self._read("sum").tobytes():
            raise self.refused("is damaged: its checksum is another")
        self.made_with = said
        wanted = said if depends_on is None else depends_on
        for name in dict.fromkeys([*wanted, *sorted(said)]):
            if name in NAMED_ONLY:
                continue
            theirs, ours = said.get(name), wanted.get(name)
            if theirs != ours:
                raise self.refused(_differs(name, _shown(theirs), _shown(ours)))
        self.tokens: list[int] = self._read("tokens").tolist()
        n_cells, self.cell_bytes = tensors["cells"].shape
        if n_cells != len(self.tokens):
            raise self.refused(f"has K and V of {n_cells} tokens, for {len(self.tokens)} tokens")
        self._state_bytes: dict[int, int] = {int(name.split(".")[1]): tensors[name].shape[0] for name in states}
        self.places = sorted(self._state_bytes)
        if self.places[-1] != n_cells:
            raise self.refused(f"has its last state after {self.places[-1]} tokens, and {n_cells} tokens")
        self.nbytes: int = n_cells * self.cell_bytes + sum(self._state_bytes.values())

    def refused(self, why: str) -> InvalidRequestError:
        """An error that names the file."""
        return _refused(self.path, why)

    def _damaged(self, error: DamagedFileError) -> InvalidRequestError:
        return _damaged(self.path, error)

    def _read(self, name: str, first: int = 0, n: int | None = None) -> NDArray[Any]:
        try:
            return self._file.read(name, first, n)
        except DamagedFileError as error:
            raise self._damaged(error) from error

    def _sum(self, size: int) -> bytes:
        """The checksum of the file's first bytes."""
        found, piece = 0, memoryview(bytearray(min(PIECE, size)))
        for start in range(0, size, PIECE):
            room = piece[: size - start]
            try:
                self._file.read_into(room, start)
            except DamagedFileError as error:
                raise self._damaged(error) from error
            found = zlib.crc32(room, found)
        return found.to_bytes(SUM_BYTES, "little")

    def state_bytes(self, place: int) -> int:
        """Of one of the places."""
        return self._state_bytes[place]

    def state(self, place: int) -> Bytes:
        """As `Context.load_state` takes it with the tokens up to one of the places."""
        return self._read(f"state.{place}")

    def cells(self, first: int, n: int) -> Bytes:
        """K and V of n tokens from `first` on, or as many as there are, as `Context.load_cells` takes them."""
        return self._read("cells", first, min(n, len(self.tokens) - first))

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> PrefixFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _opened(path: Path) -> TensorFile:
    try:
        file = TensorFile(path)
    except DamagedFileError as error:
        raise _damaged(path, error) from error
    if file.metadata.get("format") != FORMAT:
        file.close()
        raise _refused(path, "is no prefix")
    return file


def _refused(path: Path, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {why}")


def _damaged(path: Path, error: DamagedFileError) -> InvalidRequestError:
    return _refused(path, f"is no prefix, or it is cut short or damaged ({error})")


def _differs(name: str, theirs: str, ours: str) -> str:
    if name == "head":  # "with drafts" or "without drafts"
        takes = "draft_tokens=0" if ours == "with drafts" else "a head, and draft_tokens other than 0"
        return f"was made {theirs}, here it is {ours}: it takes {takes}"
    if name == "adapters":  # hashes, or none
        return "was made with other adapters, or with other scales of them"
    return f"is of another {_shown(name)}: {theirs}, here it is {ours}"


def _shown(value: str | None) -> str:
    if value is None:
        return "not said"
    text = "".join(c if c.isprintable() else "\ufffd" for c in value[:SHOWN])  # a terminal would obey some
    return text if len(value) <= SHOWN else f"{text}…"
