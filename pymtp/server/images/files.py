"""Images in files of the server's machine: read from the folder that an option names, and from nowhere else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote

from pymtp.errors import InvalidRequestError
from pymtp.validation import is_path, shown

FILE = "file:"


def read_media_file(url: str, folder: Path | None, max_bytes: int) -> bytes:
    """Return the bytes of a file.

    url: file:///PATH or file://PATH. The path is absolute, and within `folder`; or else it is relative to `folder`, as
        for llama.cpp's server, whether it begins with slashes or not.
    folder: the folder that may be read; None for none.

    Raises InvalidRequestError for a file that is not within the folder once links are followed, that cannot be read,
    that is too large, and that is no regular file.
    """
    about = f"the image {shown(url)}"
    if folder is None:
        raise InvalidRequestError(
            f"{about} is not read: send its bytes as a data URL, or start the server with --media-path DIR"
        )
    name = unquote(url[len(FILE) :].removeprefix("//"))
    if not is_path(name):
        raise InvalidRequestError(f"{about} has no valid path")
    root = os.path.realpath(folder)
    real = os.path.realpath(name) if os.path.isabs(name) else root
    if not _is_within(real, root):
        real = os.path.realpath(os.path.join(root, name.lstrip("/")))
    # a file elsewhere gets the same message whether it exists or not
    not_there = InvalidRequestError(
        f"{about} is not read: it is no file within the folder of --media-path. Only those are read: move it there, "
        "start the server with another --media-path, or send its bytes as a data URL"
    )
    if not _is_within(real, root):
        raise not_there
    try:
        with open(real, "rb", opener=_open) as file:
            about_file = os.fstat(file.fileno())
            if not stat.S_ISREG(about_file.st_mode):
                raise InvalidRequestError(f"{about} is not read: it is no regular file")
            data = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise not_there from error
    except OSError as error:
        raise InvalidRequestError(f"{about} cannot be read: {error.strerror or error}") from error
    if len(data) > max_bytes:
        raise InvalidRequestError(
            f"{about} has {max(about_file.st_size, len(data))} bytes; at most {max_bytes} are allowed"
        )
    return data


def _is_within(path: str, root: str) -> bool:
    return Path(path).is_relative_to(root) and path != root


def _open(path: str, flags: int) -> int:
    """Open a file: not a link that has taken its place meanwhile, and without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
