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
    """The part of the file that is written."""

    size: int = 0  # bytes
    checksum: int = 0  # the CRC-32 of these bytes
    n_cells: int = 0  # rows of K and V among them


def target_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file to write, with links resolved.

    Raises InvalidRequestError if `path` is no path, and OSError where no file can be written.
    """
    target = Path(os.path.realpath(read_path("a prefix", path)))  # a link stays a link
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    if target.exists() and not target.is_file():  # such as a device, which os.replace would remove
        raise OSError(f"{path} is no regular file")
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", os.fspath(path))
    return target


class PrefixWriter:
    """A prefix file that is written in chunks: `begin`, `write_cells` until all K and V are there, `commit`.

    Until then it has a temporary name in the same folder: a crash leaves the old file or the new one. All methods raise
    OSError. A call that an exception interrupts may be repeated.
    """

    def __init__(self, path: str | os.PathLike[str], made_with: Mapping[str, str]) -> None:
        """Create the temporary file.

        made_with: the settings that a context must have to load it.

        Raises OSError where no file can be written.
        """
        self.path = target_path(path)
        self._metadata = {"format": FORMAT, "version": str(VERSION), **made_with}
        # a random name: no other process writes to it
        self._temporary = self.path.with_name(f".{self.path.name[:40]}.{secrets.token_hex(8)}")
        self._process = os.getpid()
        files: list[BinaryIO] = []
        # not __del__: Python drops an exception that a signal handler raises there, and most writers are freed after
        # commit() or discard(), where this does not run
        self._finalizer = weakref.finalize(self, _remove, files, self._temporary, self._process)
        try:
            files.append(open(self._temporary, "xb", buffering=0))  # noqa: SIM115  # closed by commit and discard
            (self._file,) = files
        except OSError as error:
            error.filename = os.fspath(path)  # the caller does not know the temporary name
            raise
        with suppress(OSError):  # whoever may read the old file may read the new one
            os.fchmod(self._file.fileno(), stat.S_IMODE(os.stat(self.path).st_mode))
        self._progress = _Progress()
        self.n_tokens = 0  # 0 before begin()

    @property
    def n_cells(self) -> int:
        """Return the number of tokens whose K and V are written."""
        return self._progress.n_cells

    def begin(self, tokens: Sequence[int], states: Mapping[int, Bytes], cell_bytes: int) -> None:
        """Write everything that comes before K and V.

        states: by their positions, the last of which is the end.
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
        text += b" " * (-len(text) % 8)  # aligns the tokens
        self._append(np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8))
        for array in tensors.values():
            self._append(array)
        self.n_tokens = len(tokens)

    def write_cells(self, cells: Bytes) -> None:
        """Write the K and V of the next tokens."""
        self._append(cells, len(cells))

    def commit(self) -> None:
        """Write the checksum, and move the file to its path durably."""
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
        """Remove the temporary file; harmless after commit()."""
        _remove([self._file], self._temporary, self._process)
        self._finalizer.detach()

    def _append(self, array: NDArray[Any], n_cells: int = 0) -> None:
        start, checksum, cells_before = self._progress
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        checksum, end = zlib.crc32(left, checksum), start + len(left)
        with self._named_errors():
            self._file.seek(start)  # an interrupted call may have written a part
            while left:
                left = left[self._file.write(left) :]
        self._progress = _Progress(end, checksum, cells_before + n_cells)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Name the file in an OSError by its path, not by its temporary name."""
        try:
            yield
        except OSError as error:
            error.filename = os.fspath(self.path)
            raise


def _remove(files: Sequence[BinaryIO], temporary: Path, process: int) -> None:
    """Close the file, and remove it if this process created it: a child made by fork must not."""
    for file in files:
        file.close()
    if os.getpid() == process:
        with suppress(OSError):
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
