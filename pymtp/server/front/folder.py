"""The folder of a front's sockets, which is removed with its server: at the latest by the next one."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is served
    fcntl = None  # type: ignore[assignment]

PREFIX = "pymtp-front-"
LOCK = "lock"  # a file in the folder, which the process that owns the folder has locked as long as it lives
SOCKETS = "*.sock"


@contextmanager
def socket_folder() -> Iterator[str]:
    """Make a folder that only this user can enter, for the life of the context; also remove those of killed servers."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it was removed meanwhile, belongs to somebody else, or has other files in it
            _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    unlocked = folder / f"{LOCK}.new"
    # the file gets its name when it is locked: no other server can take the folder for one that was left
    with open(unlocked, "xb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(folder / LOCK)
        try:
            yield str(folder)
        finally:
            with suppress(OSError):
                _remove(folder)


def remove_sockets(folder: Path) -> None:
    """Remove the sockets of a front that has ended."""
    for left in folder.glob(SOCKETS):
        left.unlink()


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user that no process has locked. Raises OSError for any other."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    with os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if all(path.name == LOCK or path.is_socket() for path in folder.iterdir()):
            _remove(folder)


def _remove(folder: Path) -> None:
    remove_sockets(folder)
    (folder / LOCK).unlink()
    folder.rmdir()
