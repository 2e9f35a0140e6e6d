"""The files of a model as they are on disk: whether they can be loaded, and which they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pymtp.errors import ModelLoadError
from pymtp.native import ffi, last_error, lib

SAMPLES, SAMPLE_BYTES = 64, 4096  # of the weights of each file


def inspect(path: Path) -> Any:
    """What a model says of itself, a struct pymtp_file_info. Raises ModelLoadError for what is wrong with the file, or
    with any part of it; of the weights, whether they are all there."""
    info = ffi.new("struct pymtp_file_info *")
    if lib.pymtp_inspect(os.fsencode(path), info) != lib.PYMTP_OK:
        raise ModelLoadError(f"{path}: {last_error()}")
    return info


@dataclass(frozen=True)
class Seen:
    """The files of a model at some time.

    digest: a hash of headers, sizes and samples of the weights, in hexadecimal.
    states: of each part, by its path, bytes and the time of the last change. No number of the file: some network file
        systems give another one each time.
    """

    path: Path
    digest: str
    states: Mapping[bytes, tuple[int, int]]

    def check(self) -> None:
        """Raises ModelLoadError where a path means another file by now, or none. A time alone tells nothing: network
        file systems set it late."""
        with _told(self.path):
            now = {path: _state(os.stat(path)) for path in self.states}
        if now != self.states and look_at(self.path).digest != self.digest:
            raise ModelLoadError(f"{self.path}: the file was replaced, or written to, while it was loaded")


def look_at(path: Path) -> Seen:
    """Reads a few MiB. Raises ModelLoadError where a part cannot be read."""
    found = sha256()
    states = {}
    with _told(path):
        for part, header_bytes in _parts(path):
            with open(part, "rb") as file:
                states[part] = size, _ = _state(os.fstat(file.fileno()))
                found.update(file.read(header_bytes))
                found.update(size.to_bytes(8, "little"))
                for i in range(SAMPLES):  # to the last bytes
                    file.seek(header_bytes + max(0, size - header_bytes - SAMPLE_BYTES) * i // (SAMPLES - 1))
                    found.update(file.read(SAMPLE_BYTES))
    return Seen(path, found.hexdigest(), states)


def _parts(path: Path) -> list[tuple[bytes, int]]:
    """The paths of the model's files, and where their weights begin."""
    most = 1
    while True:
        parts = ffi.new("struct pymtp_file_part[]", most)
        n = lib.pymtp_file_parts(os.fsencode(path), parts, most)
        if n < 0:
            raise ModelLoadError(f"{path}: {last_error()}")
        if n <= most:
            return [(ffi.string(parts[i].path), parts[i].header_bytes) for i in range(n)]
        most = n


def _state(file: os.stat_result) -> tuple[int, int]:
    return file.st_size, file.st_mtime_ns


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """An OSError becomes a ModelLoadError."""
    try:
        yield
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror}") from error
