"""The file with the lines that were typed in chats: it is the user's alone, and bounded."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from prompt_toolkit.history import FileHistory

from pymtp.cli.chat.whole_file import write_whole

MAX_BYTES = 512 * 1024  # a longer file is cut to its newest half
MAX_ENTRY = 32 * 1024  # characters; a longer text is remembered by this process only


class ChatHistory(FileHistory):
    """The lines typed so far. Those of earlier chats come from a file, to which new lines are added.

    If the file cannot be read or written, the lines of this chat are kept in memory.

    problem: why the file cannot be used; None if it can.
    """

    def __init__(self, file: Path) -> None:
        """file: is made if it does not exist."""
        super().__init__(file)
        self._file = file
        self.problem: str | None = None
        self._try(self._prepare)

    def load_history_strings(self) -> list[str]:
        """Return the lines of the file, the newest first."""
        lines: list[str] = []
        self._try(lambda: lines.extend(super(ChatHistory, self).load_history_strings()))
        return lines

    def store_string(self, string: str) -> None:
        """Add a line to the file."""
        if len(string) <= MAX_ENTRY:
            self._try(lambda: super(ChatHistory, self).store_string(string))
            self._try(self._prepare)

    def _prepare(self) -> None:
        """Make the file if it does not exist, make it private, and cut it if it is too long."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o600)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self._file} is not a regular file")
            if sys.platform != "win32" and stat.S_IMODE(status.st_mode) != 0o600:
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
        if status.st_size > MAX_BYTES:
            with open(self._file, "rb") as old:
                old.seek(-MAX_BYTES // 2, os.SEEK_END)
                _, _, entries = old.read().partition(b"\n\n# ")  # an entry begins with an empty line and a comment
            write_whole(self._file, f"\n# {entries.decode(errors='replace')}", 0o600)

    def _try(self, access: Callable[[], object]) -> None:
        if self.problem is None:
            try:
                access()
            except OSError as error:
                self.problem = str(error)


def history_file() -> Path | None:
    """Return the path of the file in the folder where the system keeps a user's state; None if there is no folder."""
    try:
        folder = _state_folder(os.environ)
    except RuntimeError:  # no home folder
        return None
    return folder / "pymtp" / "chat_history"


def _state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the user's state. Raises RuntimeError if there is none."""
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or Path.home())
    given = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):  # the specification says that other paths are to be ignored
        return Path(given)
    return Path.home() / ".local" / "state"
