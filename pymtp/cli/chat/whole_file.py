"""Writing a text file as a whole: after a failure its old content is still there."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file in UTF-8 under another name in its folder, and rename it to `path`.

    A link stays, and its target is written. A device is written directly, since renaming would remove it.

    mode: the permissions of the file; None for those of the old file, or else those that the umask gives.

    Raises OSError if the file cannot be written, with its old content unchanged.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with open(target, "wb", buffering=0) as device:  # raises IsADirectoryError for a folder
            _write_all(device, text.encode())
        return
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, mode or 0o666)) as file:
            if mode is None:
                with suppress(OSError, AttributeError):  # the file is new; Windows has no fchmod
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
            _write_all(file, text.encode())
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:  # its message would have the temporary name, which the user does not know
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
