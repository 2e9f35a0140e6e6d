"""Tests of the folder of a front's sockets. No server runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pymtp.server.front.folder import PREFIX, socket_folder

HOLD = "import sys; from pymtp.server.front.folder import socket_folder\n"
HOLD += "with socket_folder() as folder: print(folder, flush=True); sys.stdin.read()"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def add_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "0.sock"))


def test_folder_goes_with_its_server_and_only_this_user_can_enter_it(parent: Path) -> None:
    with socket_folder() as name:
        folder = Path(name)
        add_socket(folder)
        assert (folder.parent, folder.stat().st_mode & 0o777) == (parent, 0o700)
    assert list(parent.iterdir()) == []


def test_folder_of_a_killed_server_is_removed_by_the_next_one_and_that_of_a_living_one_stays(parent: Path) -> None:
    pipe = subprocess.PIPE
    env = {**os.environ, "TMPDIR": str(parent)}
    with subprocess.Popen([sys.executable, "-I", "-c", HOLD], stdin=pipe, stdout=pipe, text=True, env=env) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        add_socket(theirs)
        with socket_folder() as ours:
            assert {str(path) for path in parent.iterdir()} == {str(theirs), ours}
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert theirs.exists()
        with socket_folder() as ours:
            assert [str(path) for path in parent.iterdir()] == [ours]


def test_foreign_folders_links_and_files_stay(parent: Path) -> None:
    elsewhere = parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    add_socket(elsewhere)
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}file").touch()
    begins = parent / f"{PREFIX}begins"  # a server that has not locked its folder yet
    begins.mkdir()
    mixed = parent / f"{PREFIX}mixed"
    mixed.mkdir()
    (mixed / "lock").touch()
    (mixed / "work.txt").touch()
    with socket_folder():
        pass
    assert len(list(parent.iterdir())) == 5
    assert (elsewhere / "0.sock").exists()
    assert {path.name for path in mixed.iterdir()} == {"lock", "work.txt"}
