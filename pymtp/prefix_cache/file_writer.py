"""Writes a prefix to a file, piece by piece: see prefix_file.py for the format."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymtp.context.state import Bytes
from pymtp.prefix_cache.file import FORMAT, SUM_BYTES, VERSION
from pymtp.validation import read_path


class _Written(NamedTuple):
    size: int = 0  # bytes
    sum: int = 0  # the CRC-32 of them
    cells: int = 0  # rows among them


def place_of(path: str | os.PathLike[str]) -> Path:
    """Where the file is to be. Raises InvalidRequestError for what is no path, OSError where no file can be written."""
    place = Path(os.path.realpath(read_path("a prefix", path)))  # a link stays one
    if place.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    if place.exists() and not place.is_file():  # such as a device: it would be replaced
        raise OSError(f"{path} is no regular file")
    if not place.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {place.parent}", os.fspath(path))
    return place


class PrefixWriter:
    """A file that is written as its content comes: `begin`, `write` until all K and V are there, `commit`. It has
    another name until then, in the same folder: a crash leaves the file that was there, or the new one.

    All methods raise OSError. A call that is broken off by an exception may be made again.
    """

    def __init__(self, path: str | os.PathLike[str], depends_on: Mapping[str, str]) -> None:
        """depends_on: what a reader must have, too. Raises OSError where no file can be written."""
        self.path = place_of(path)
        self._metadata = {"format": FORMAT, "version": str(VERSION), **depends_on}
        self._beside = self.path.with_name(f".{self.path.name[:40]}.{secrets.token_hex(8)}")  # no other process has it
        self._process = os.getpid()
        files: list[BinaryIO] = []
        # not __del__: there Python drops an exception of a signal handler; most writers are done when they are freed
        self._abandoned = weakref.finalize(self, _take_away, files, self._beside, self._process)
        try:
            files.append(open(self._beside, "xb", buffering=0))  # noqa: SIM115  # closed by commit and discard
            (self._file,) = files
        except OSError as error:
            error.filename = os.fspath(path)  # the name that the caller knows
            raise
        with suppress(OSError):  # who may read the file that was there, may read this one
            os.fchmod(self._file.fileno(), stat.S_IMODE(os.stat(self.path).st_mode))
        self._written = _Written()
        self.n_tokens = 0  # 0 before begin()

    @property
    def n_cells(self) -> int:
        """Tokens whose K and V were written."""
        return self._written.cells

    def begin(self, tokens: Sequence[int], states: Mapping[int, Bytes], cell_bytes: int) -> None:
        """All but K and V. states: by places, the last of which is the end."""
        assert tokens
        assert max(states) == len(tokens)
        self._written = _Written()
        tensors: dict[str, NDArray[Any]] = {"tokens": np.array(tokens, dtype="<i4")}
        tensors |= {f"state.{place}": states[place] for place in sorted(states)}
        header: dict[str, Any] = {"__metadata__": self._metadata}
        end = 0

        def add(name: str, kind: str, shape: tuple[int, ...], nbytes: int) -> None:
            nonlocal end
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": (end, end + nbytes)}
            end += nbytes

        for name, array in tensors.items():
            add(name, "I32" if name == "tokens" else "U8", array.shape, array.nbytes)
        add("cells", "U8", (len(tokens), cell_bytes), len(tokens) * cell_bytes)
        add("sum", "U8", (SUM_BYTES,), SUM_BYTES)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # so that the tokens are aligned
        self._put(np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8))
        for array in tensors.values():
            self._put(array)
        self.n_tokens = len(tokens)

    def write(self, cells: Bytes) -> None:
        """K and V of the next tokens."""
        self._put(cells, len(cells))

    def commit(self) -> None:
        """Puts the file in its place, for good."""
        assert self.n_cells == self.n_tokens > 0
        whole = self._written
        self._put(np.frombuffer(whole.sum.to_bytes(SUM_BYTES, "little"), dtype=np.uint8))
        with self._named():
            os.fsync(self._file.fileno())
            self._file.close()
        os.replace(self._beside, self.path)
        self._abandoned.detach()
        _sync_folder(self.path.parent)

    def discard(self) -> None:
        """Takes away what was written. Harmless after commit()."""
        _take_away([self._file], self._beside, self._process)
        self._abandoned.detach()

    def _put(self, array: NDArray[Any], rows: int = 0) -> None:
        size, found, cells = self._written
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        found, end = zlib.crc32(left, found), size + len(left)
        with self._named():
            self._file.seek(size)  # a call that was broken off wrote some of this
            while left:
                left = left[self._file.write(left) :]
        self._written = _Written(end, found, cells + rows)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An OSError says which file, by the name that is to be."""
        try:
            yield
        except OSError as error:
            error.filename = os.fspath(self.path)
            raise


def _take_away(files: Sequence[BinaryIO], beside: Path, process: int) -> None:
    """Close the file, and remove it where this is the process that made it, and no child made by fork."""
    for file in files:
        file.close()
    if os.getpid() == process:
        with suppress(OSError):
            beside.unlink()


def _sync_folder(folder: Path) -> None:
    """So that the new name lasts, too, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
