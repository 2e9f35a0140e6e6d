"""Tests of images in files: only those within the folder that the operator names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pymtp.errors import InvalidRequestError
from pymtp.server.images.files import read_media_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with files and links, beside a secret file."""
    folder = tmp_path / "media"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a b.png").write_bytes(b"image")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "link.png").symlink_to(folder / "in" / "a b.png")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize(
    "url", ["file://in/a%20b.png", "file:////in//a b.png", "file:///{}/in/a b.png", "FILE:link.png"]
)
def test_file_within_the_folder_is_read(folder: Path, url: str) -> None:
    assert read_media_file(url.format(str(folder)[1:]), folder, 5) == b"image"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://../secret.png", "no file within the folder"),
        ("file://in/../../secret.png", "no file within the folder"),
        ("file://%2e%2e/secret.png", "no file within the folder"),
        ("file://../none.png", "no file within the folder"),
        ("file://out.png", "no file within the folder"),
        ("file://up/secret.png", "no file within the folder"),
        ("file://", "no valid path"),
        ("file:///", "no file within the folder"),
        ("file://a%00b", "no valid path"),
        ("file:///etc/passwd", "no file within the folder"),
        ("file://none.png", "no file within the folder"),
        ("file://in", "no regular file|directory"),
        ("file://pipe", "no regular file"),
        ("file://in/a b.png", "5 bytes; at most 4"),
    ],
)
def test_other_files_are_refused(folder: Path, url: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_media_file(url, folder, 4)


def test_refusal_is_the_same_whether_another_file_exists_and_says_what_is_read(folder: Path) -> None:
    def refusal(name: str) -> str:
        with pytest.raises(InvalidRequestError) as failure:
            read_media_file(f"file://{folder.parent}/{name}.png", folder, 100)
        return str(failure.value).replace(name, "…")

    assert refusal("secret") == refusal("nothing")
    assert "start the server with another --media-path, or send its bytes as a data URL" in refusal("secret")
    assert str(folder) not in refusal("secret")


def test_no_file_is_read_without_a_folder(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="start the server with --media-path"):
        read_media_file(f"file://{folder}/in/a b.png", None, 100)
