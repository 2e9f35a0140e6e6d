"""The files of a model as they are on disk: whether they can be loaded, and which they are."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from pymtp.errors import ModelLoadError
from pymtp.native import ffi, last_error, lib

SAMPLES, SAMPLE_BYTES = 64, 4096  # of the weights of each file


def inspect(path: Path, head: str | None = None) -> Any:
    """Read what a model says of itself, with the head of a file of its own where one is given.

    Returns a struct pymtp_file_info. Raises ModelLoadError for what is wrong with a file, or with any part of it, for
    weights that are not all there, and for a head that is not for this model.
    """
    info = ffi.new("struct pymtp_file_info *")
    if lib.pymtp_inspect(os.fsencode(path), ffi.NULL if head is None else os.fsencode(head), info) != lib.PYMTP_OK:
        raise ModelLoadError(f"{path}: {last_error()}")
    return info


def digest_of(path: Path) -> str:
    """A hash of a model's headers, of the sizes of its files and of samples of the weights, in hexadecimal. Reads a few
    MiB. Raises ModelLoadError where a part cannot be read."""
    found = sha256()
    try:
        for part, header_bytes in _parts(path):
            with open(part, "rb") as file:
                found.update(file.read(header_bytes))
                size = os.fstat(file.fileno()).st_size
                found.update(size.to_bytes(8, "little"))
                for i in range(SAMPLES):  # to the last bytes
                    file.seek(header_bytes + max(0, size - header_bytes - SAMPLE_BYTES) * i // (SAMPLES - 1))
                    found.update(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror}") from error
    return found.hexdigest()


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
