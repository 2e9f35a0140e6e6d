"""Tests of vendor/katex.py: only the files of the pinned wheel are laid out."""

from __future__ import annotations

import zipfile
from pathlib import Path

import katex
import pytest
from sources import Paths, digest

FOLDER = "some/static/vendor/katex"
FILES = {
    f"{FOLDER}/katex.min.js": "script",
    f"{FOLDER}/katex.min.css": "style",
    f"{FOLDER}/fonts/KaTeX_Main-Bold.woff2": "font",
    f"{FOLDER}/fonts/KaTeX_Main-Bold.ttf": "other font",
    f"{FOLDER}/LICENSE": "MIT",
    "some/LICENSE": "another",
    f"{FOLDER}/../../evil.js": "evil",
}


def pinned(root: Path, files: dict[str, str], sha256: str | None = None) -> Paths:
    """Write a wheel with the files to a cache, and its pin."""
    paths = Paths(root / "checkout", root / "cache")
    wheel = paths.cache / "some_wheel-1.0-py3-none-any.whl"
    for folder in (paths.cache, paths.root / "vendor"):
        folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    pin = f"some-wheel==1.0 --hash=sha256:{sha256 or digest(wheel.read_bytes())}\n"
    (paths.root / "vendor" / "katex.txt").write_text(pin, encoding="utf-8")
    return paths


def test_katex_is_laid_out_without_other_files_of_the_wheel(tmp_path: Path) -> None:
    paths = pinned(tmp_path, FILES)
    target = paths.root / "pymtp/server/static/katex"
    target.mkdir(parents=True)
    (target / "old.js").write_text("old")
    assert katex.main(paths) == 0
    found = {file.relative_to(target).as_posix(): file.read_text() for file in target.rglob("*") if file.is_file()}
    assert found == {
        "katex.min.js": "script",
        "katex.min.css": "style",
        "fonts/KaTeX_Main-Bold.woff2": "font",
        "LICENSE": "MIT",
    }


def test_wheel_without_katex_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert katex.main(pinned(tmp_path, {"some/LICENSE": "another"})) == 1
    assert "has no KaTeX\n  Mend it: pin a release" in capsys.readouterr().err


def test_wheel_with_another_hash_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no network: pip finds nothing
    paths = pinned(tmp_path, FILES, sha256="0" * 64)
    assert katex.main(paths) == 1
    assert "pip could not fetch some-wheel==1.0" in capsys.readouterr().err
    assert not (paths.root / "pymtp").exists()
