"""Writes a prefix file in chunks; file.py describes the format."""

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
from pymtp.prefix_cache.file import CHECKSUM_BYTES, FORMAT, VERSION
from pymtp.validation import read_path


class _Progress(NamedTuple):
    """The part of the file that has been written so far."""

    size: int = 0  # number of bytes written
    checksum: int = 0  # the CRC-32 of the bytes written
    n_cells: int = 0  # number of tokens whose K and V were written


def target_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file to write, with links resolved.

    Raises InvalidRequestError if `path` is not a path, and OSError if no file can be written there.
    """
    target = Path(os.path.realpath(read_path("a prefix", path)))  # writes the target of a link, and keeps the link
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    if target.exists() and not target.is_file():  # a device, for example, which os.replace would remove
        raise OSError(f"{path} is not a regular file")
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", os.fspath(path))
    return target


class PrefixWriter:
    """A prefix file that is written in chunks: call `begin`, `write_cells` until all K and V are written, and `commit`.

    Before `commit` the file has a temporary name in the same folder, so that after a crash its path has either the old
    file or the complete new one. All methods raise OSError. A call that an exception interrupted may be repeated.
    """

    def __init__(self, path: str | os.PathLike[str], made_with: Mapping[str, str]) -> None:
        """Create the temporary file.

        made_with: the settings that a context must have to load the file.

        Raises OSError if no file can be written there.
        """
        self.path = target_path(path)
        self._metadata = {"format": FORMAT, "version": str(VERSION), **made_with}
        # a random name, so that no other process writes to this file
        self._temporary = self.path.with_name(f".{self.path.name[:40]}.{secrets.token_hex(8)}")
        self._process = os.getpid()
        files: list[BinaryIO] = []
        # not __del__, in which Python drops an exception that a signal handler raises. The finalizer rarely runs:
        # commit() and discard() detach it
        self._finalizer = weakref.finalize(self, _remove, files, self._temporary, self._process)
        try:
            files.append(open(self._temporary, "xb", buffering=0))  # noqa: SIM115  # closed by commit and discard
            (self._file,) = files
        except OSError as error:
            error.filename = os.fspath(path)  # the caller does not know the temporary name
            raise
        with suppress(OSError):  # gives the new file the permissions of the old one
            os.fchmod(self._file.fileno(), stat.S_IMODE(os.stat(self.path).st_mode))
        self._progress = _Progress()
        self.n_tokens = 0  # number of tokens of the prompt; 0 before begin()

    @property
    def n_cells(self) -> int:
        """Return the number of tokens whose K and V have been written."""
        return self._progress.n_cells

    def begin(self, tokens: Sequence[int], states: Mapping[int, Bytes], cell_bytes: int) -> None:
        """Write everything that comes before K and V in the file.

        states: the states by their positions in the prompt; the last position is the end of the prompt.
        """
        assert tokens
        assert max(states) == len(tokens)
        self._progress = _Progress()
        tensors: dict[str, NDArray[Any]] = {"tokens": np.array(tokens, dtype="<i4")}
        tensors |= {f"state.{position}": states[position] for position in sorted(states)}
        header: dict[str, Any] = {"__metadata__": self._metadata}
        end = 0

        def add(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
            nonlocal end
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + nbytes)}
            end += nbytes

        for name, array in tensors.items():
            add(name, "I32" if name == "tokens" else "U8", array.shape, array.nbytes)
        add("cells", "U8", (len(tokens), cell_bytes), len(tokens) * cell_bytes)
        add("sum", "U8", (CHECKSUM_BYTES,), CHECKSUM_BYTES)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # pads the header, to align the tokens
        self._append(np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8))
        for array in tensors.values():
            self._append(array)
        self.n_tokens = len(tokens)

    def write_cells(self, cells: Bytes) -> None:
        """Write the K and V of the next tokens."""
        self._append(cells, len(cells))

    def commit(self) -> None:
        """Write the checksum, rename the file to its path, and sync both to disk."""
        assert self.n_cells == self.n_tokens > 0
        checksum = self._progress.checksum
        self._append(np.frombuffer(checksum.to_bytes(CHECKSUM_BYTES, "little"), dtype=np.uint8))
        with self._named_errors():
            os.fsync(self._file.fileno())
            self._file.close()
        os.replace(self._temporary, self.path)
        self._finalizer.detach()
        _sync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove the temporary file. Does nothing after commit()."""
        _remove([self._file], self._temporary, self._process)
        self._finalizer.detach()

    def _append(self, array: NDArray[Any], n_cells: int = 0) -> None:
        start, checksum, cells_before = self._progress
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        checksum, end = zlib.crc32(left, checksum), start + len(left)
        with self._named_errors():
            self._file.seek(start)  # an interrupted call may have written some of these bytes
            while left:
                left = left[self._file.write(left) :]
        self._progress = _Progress(end, checksum, cells_before + n_cells)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Replace the temporary name in an OSError by the path of the file."""
        try:
            yield
        except OSError as error:
            error.filename = os.fspath(self.path)
            raise


def _remove(files: Sequence[BinaryIO], temporary: Path, process: int) -> None:
    """Close the temporary file, and remove it, but only in the process that created it: a forked child must not."""
    for file in files:
        file.close()
    if os.getpid() == process:
        with suppress(OSError):
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that a renamed file keeps its new name after a crash, if the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
