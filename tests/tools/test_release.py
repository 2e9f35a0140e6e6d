"""Tests of release.py on small packages that stand for pymtp: what it accepts, and what it finds wrong."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import release

VERSION = "9.9"
PROGRAM = "def main():\n    import sys\n    print('pymtp 9.9, fake' if '--version' in sys.argv else 'text')\n"
PACKAGE = "class Text:\n    token_ids = [1, 2, 3, 4]\ngenerate = lambda *words, **keywords: Text()\n"
FILES = {
    "pymtp/__init__.py": PACKAGE,
    "pymtp/program.py": PROGRAM,
    "pymtp/py.typed": "",
    "pymtp-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: pymtp\nVersion: 9.9\n",
    "pymtp-9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "pymtp-9.9.dist-info/entry_points.txt": "[console_scripts]\npymtp = pymtp.program:main\n",
}
# A build backend inside the sdist: it needs no packages, and so no index
BACKEND = """
import shutil
def build_wheel(folder, settings=None, metadata=None):
    shutil.copy("inner.whl", f"{folder}/pymtp-9.9-py3-none-any.whl")
    return "pymtp-9.9-py3-none-any.whl"
"""


def write_wheel(folder: Path, **changed: str | None) -> Path:
    """Write a wheel of FILES. changed: other contents by the last part of a name, without its end; None for no file."""
    path = folder / "pymtp-9.9-py3-none-any.whl"
    record = "pymtp-9.9.dist-info/RECORD"
    contents = {name: changed.get(Path(name).stem, text) for name, text in FILES.items()}
    kept = {name: text for name, text in contents.items() if text is not None}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in kept.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in [*kept, record]))
    return path


def write_sdist(folder: Path) -> Path:
    path = folder / "pymtp-9.9.tar.gz"
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "PKG-INFO": FILES["pymtp-9.9.dist-info/METADATA"].encode(),
        "pyproject.toml": backend.encode(),
        "backend.py": BACKEND.encode(),
        "inner.whl": write_wheel(folder).read_bytes(),
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"pymtp-9.9/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def twine(tmp_path: Path) -> Path:
    """Make a program that accepts every file, in place of twine, which would have to be installed."""
    path = tmp_path / "twine"
    path.write_text("#!/bin/sh\necho PASSED\n")
    path.chmod(0o755)
    return path


def failed(file: Path, twine: Path, limit: float = 60.0) -> dict[str, str]:
    """Return the checks of a file that fail, with what they found."""
    return {each.check: each.found for each in release.check(file, VERSION, twine, limit) if not each.passed}


def test_wheel_that_works_passes_all_checks(tmp_path: Path, twine: Path) -> None:
    results = list(release.check(write_wheel(tmp_path), VERSION, twine, 60.0))
    assert [(each.check, each.found) for each in results if not each.passed] == []
    assert len(results) == 9


def test_sdist_is_built_installed_and_uninstalled(tmp_path: Path, twine: Path) -> None:
    assert failed(write_sdist(tmp_path), twine) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="the environment has other folders there")
def test_each_fault_of_a_wheel_fails_the_check_that_looks_for_it(tmp_path: Path, twine: Path) -> None:
    leaves_a_file = "import pathlib\n(pathlib.Path(__file__).parent / 'written').touch()\n" + PACKAGE
    program = "def main():\n    import sys\n    sys.exit('broken' if 'generate' in sys.argv else 'pymtp 9.8, old')\n"
    found = failed(write_wheel(tmp_path, __init__=leaves_a_file, program=program, py=None), twine, limit=1e-6)
    assert set(found) == {
        "pymtp --version",
        "pymtp info",
        "pymtp generate",
        "types",
        "import",
        "pip uninstall",
    }
    assert found["pymtp generate"] == "exit code 1: broken"
    assert found["pip uninstall"].endswith("site-packages/pymtp")  # the folder of the file that it wrote


def test_wheel_that_cannot_be_installed_has_no_further_checks(tmp_path: Path, twine: Path) -> None:
    (tmp_path / "pymtp-9.9-py3-none-any.whl").write_bytes(b"no zip")
    results = list(release.check(tmp_path / "pymtp-9.9-py3-none-any.whl", VERSION, twine, 60.0))
    assert [each.passed for each in results] == [True, False]


def test_version_of_a_release_is_that_of_pyproject() -> None:
    assert release.read_version().count(".") == 2
