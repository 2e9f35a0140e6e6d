"""The files of a model on disk: their checks and their digests."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from pymtp.errors import ModelLoadError
from pymtp.native import ffi, last_error, lib

SAMPLES, SAMPLE_BYTES = 64, 4096  # a digest reads this many samples of the weights of each file


def read_file_info(path: Path, head: str | None = None) -> Any:
    """Read and check the headers of a model's files, and return a struct pymtp_file_info.

    head: the path of a head in a file of its own; None for none.

    Raises ModelLoadError for a damaged file or part, missing weights, and a head that does not belong to this model.
    """
    info = ffi.new("struct pymtp_file_info *")
    if lib.pymtp_inspect(os.fsencode(path), ffi.NULL if head is None else os.fsencode(head), info) != lib.PYMTP_OK:
        raise ModelLoadError(f"{path}: {last_error()}")
    return info


def file_digest(path: Path) -> str:
    """Return a SHA-256 in hexadecimal of a model's headers, the sizes of its files and samples of its weights.

    Reads a few MiB. Raises ModelLoadError for a part that cannot be read.
    """
    digest = sha256()
    try:
        for part, header_bytes in model_parts(path):
            with open(part, "rb") as file:
                digest.update(file.read(header_bytes))
                size = os.fstat(file.fileno()).st_size
                digest.update(size.to_bytes(8, "little"))
                for i in range(SAMPLES):  # the last sample is the end of the file
                    file.seek(header_bytes + max(0, size - header_bytes - SAMPLE_BYTES) * i // (SAMPLES - 1))
                    digest.update(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise ModelLoadError(f"{path}: {error.strerror}") from error
    return digest.hexdigest()


def model_parts(path: Path) -> list[tuple[bytes, int]]:
    """Return the paths of the model's files, with the sizes of their headers in bytes.

    Raises ModelLoadError for a file that is damaged or cannot be read.
    """
    capacity = 1
    while True:
        parts = ffi.new("struct pymtp_file_part[]", capacity)
        n = lib.pymtp_file_parts(os.fsencode(path), parts, capacity)
        if n < 0:
            raise ModelLoadError(f"{path}: {last_error()}")
        if n <= capacity:
            return [(ffi.string(parts[i].path), parts[i].header_bytes) for i in range(n)]
        capacity = n
