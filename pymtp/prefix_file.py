"""Prefixes in files: what a sequence holds, for this process to have again, or another.

A file is in the safetensors format. Its tensors: "tokens", "cells" (K and V, a row a token), "state", and at the end of
the file "sum", the CRC-32 of all bytes before it. The metadata name the format, its version, and all that a prefix
depends on. A CRC-32 finds all damage within four bytes side by side, and of other damage all but one in four billion.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pymtp.build import build_info
from pymtp.context import Context
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.saving import Bytes

FORMAT = "pymtp prefix"
VERSION = 1
SUM_BYTES = 4
NO_SUM = b"sum?"
PIECE = 16 << 20  # bytes that are read at a time
TENSORS = {"tokens": ("I32", 1), "cells": ("U8", 2), "state": ("U8", 1), "sum": ("U8", 1)}  # types and dimensions
SHOWN = 200  # characters of what a file says


def made_with(context: Context) -> dict[str, str]:
    """All that a prefix depends on, by what it is called in an error."""
    info = build_info()
    return {
        "model": context.model.digest,
        "pymtp": info["pymtp"],
        "llama.cpp": " ".join([info["llama_cpp_commit"], *info["patches"]]),
        "tap": context.tap,
        **context.cell_options,
    }


def save_prefix(context: Context, path: str | os.PathLike[str], seq: int = 0) -> None:
    """Writes what a sequence holds to a file. A crash leaves the file that was there, or the new one.

    Raises InvalidRequestError for a sequence that holds no tokens, OSError, and what `Context.save_cells` raises.
    """
    tokens = context.tokens(seq)
    state = context.save_state(seq)
    cells = context.save_cells(seq, 0, len(tokens))
    write(path, made_with(context), tokens, cells, state)


def load_prefix(context: Context, path: str | os.PathLike[str], seq: int = 0) -> list[int]:
    """Makes an empty sequence hold what a file has, as if it had read the tokens, which are returned.

    Raises InvalidRequestError for a file that is damaged, cut short or newer than this pymtp, that is of another model
    or of other options, or has more tokens than n_ctx; OSError; CancelledError. The sequence is empty then.
    """
    if context.tokens_held(seq):
        raise InvalidRequestError(f"sequence {seq} holds {context.tokens_held(seq)} tokens and is not empty")
    with PrefixFile(path, made_with(context)) as file:
        context.model.check_tokens(file.tokens)
        if len(file.tokens) > context.n_ctx:
            raise ContextFullError(f"{file.path} has {len(file.tokens)} tokens, more than n_ctx = {context.n_ctx}")
        try:
            for first, cells in file.pieces():
                context.load_cells(seq, first, [cells])
            context.load_state(seq, file.tokens, file.state)
        except BaseException:
            if not context.closed:
                context.clear(seq)
            raise
        return file.tokens


def write(
    path: str | os.PathLike[str], depends_on: Mapping[str, str], tokens: list[int], cells: Bytes, state: Bytes
) -> None:
    """depends_on: what a reader must have, too. The arrays as `Context` saves them."""
    path = Path(path)
    # in the same folder, and of a name that no other process has
    beside = path.with_name(f".{path.name[:80]}.{secrets.token_hex(8)}")
    tensors: dict[str, NDArray[Any]] = {
        "tokens": np.array(tokens, dtype=np.int32),
        "cells": cells,
        "state": state,
        "sum": np.frombuffer(NO_SUM, dtype=np.uint8),
    }
    beside.open("xb").close()  # which says in the usual words why it cannot be written
    try:
        try:
            save_file(tensors, beside, {"format": FORMAT, "version": str(VERSION), **depends_on})
        except SafetensorError as error:  # such as a full disk
            raise OSError(f"{beside}: {error}") from error
        with open(beside, "r+b") as file:
            found = _sum(file, os.path.getsize(beside) - SUM_BYTES)
            file.seek(-SUM_BYTES, os.SEEK_END)
            if file.read() != NO_SUM:  # tensors are sorted by alignment, then by name: "sum" is the last
                raise OSError(f"{beside}: this release of safetensors writes tensors in another order")
            file.seek(-SUM_BYTES, os.SEEK_END)
            file.write(found)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    _sync_folder(path.parent)


class PrefixFile:
    """A file that was looked at all through: it is whole, and it fits. Its arrays are read as they are asked for.

    tokens: the text. made_with: what it says that it depends on.
    """

    def __init__(self, path: str | os.PathLike[str], depends_on: Mapping[str, str]) -> None:
        """depends_on: what the reader has. Raises InvalidRequestError for a file that is refused, with what does not
        fit, and OSError for one that cannot be read."""
        self.path = Path(path)
        self._open = ExitStack()
        with open(self.path, "rb") as raw:  # which says in the usual words why it cannot be read
            size = os.fstat(raw.fileno()).st_size
            try:
                self._file: Any = self._open.enter_context(safe_open(self.path, framework="numpy"))
                self._check(raw, size, depends_on)
            except (SafetensorError, OSError) as error:
                self.close()
                raise self._refused(f"is no prefix, or it is cut short or damaged ({error})") from error
            except BaseException:
                self.close()
                raise

    def _check(self, file: BinaryIO, size: int, depends_on: Mapping[str, str]) -> None:
        said = dict(self._file.metadata() or {})
        if said.pop("format", None) != FORMAT:
            raise self._refused("is no prefix")
        version = said.pop("version", "")
        if version != str(VERSION):
            raise self._refused(f"is of format {version[:SHOWN]}, this pymtp reads {VERSION}")
        names: list[str] = self._file.keys()
        slices = {name: self._file.get_slice(name) for name in names}
        if {name: (one.get_dtype(), len(one.get_shape())) for name, one in slices.items()} != TENSORS:
            raise self._refused("is damaged: it has other tensors than a prefix")
        if _sum(file, size - SUM_BYTES) != self._read("sum").tobytes():
            raise self._refused("is damaged: its checksum is another")
        self.made_with = said
        for name in dict.fromkeys([*depends_on, *sorted(said)]):
            theirs, ours = said.get(name), depends_on.get(name)
            if theirs != ours:
                raise self._refused(f"is of another {name}: {_shown(theirs)}, here it is {_shown(ours)}")
        self.tokens: list[int] = self._read("tokens").tolist()
        n_cells, self._cell_bytes = slices["cells"].get_shape()
        if n_cells != len(self.tokens):
            raise self._refused(f"has K and V of {n_cells} tokens, for {len(self.tokens)} tokens")

    def _refused(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.path} {why}")

    def _read(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self._file.get_tensor(name)
        return found

    @property
    def state(self) -> Bytes:
        """As `Context.load_state` takes it."""
        return self._read("state")

    def cells(self, first: int, n: int) -> Bytes:
        """K and V of n tokens from `first` on, or as many as there are, as `Context.load_cells` takes them."""
        found: Bytes = self._file.get_slice("cells")[first : min(first + n, len(self.tokens))]
        return found

    def pieces(self) -> Iterator[tuple[int, Bytes]]:
        """All K and V in order, a bounded part at a time: the first token, and the cells from there."""
        step = max(1, PIECE // max(1, self._cell_bytes))
        for first in range(0, len(self.tokens), step):
            yield first, self.cells(first, step)

    def close(self) -> None:
        """Lets go of the file."""
        self._open.close()

    def __enter__(self) -> PrefixFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sum(file: BinaryIO, size: int) -> bytes:
    """The checksum of a file's first bytes."""
    found = 0
    file.seek(0)
    while size > 0 and (piece := file.read(min(PIECE, size))):
        found = zlib.crc32(piece, found)
        size -= len(piece)
    return found.to_bytes(SUM_BYTES, "little")


def _shown(value: str | None) -> str:
    return "not said" if value is None else value if len(value) <= SHOWN else f"{value[:SHOWN]}…"


def _sync_folder(folder: Path) -> None:
    """So that the new name lasts, too, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
