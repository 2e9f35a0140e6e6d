"""Build this checkout and run its tests; show the compiler's errors first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from sources import LayoutError

OURS = "pymtp/native/"
LAST_LINES = 40  # lines of a build's log that are shown if no error is recognized

# gcc, clang: FILE:LINE:COLUMN: error: …   nvcc, MSVC: FILE(LINE): error …   the linker: FILE:LINE: undefined reference
_ERROR = re.compile(
    r"^\s*(?:.*: )?(\S+?)(?::(\d+)(?::\d+)?|\((\d+)(?:,\d+)?\)):\s*((?:fatal )?error\b.*|undefined .*)$", re.M
)
_CMAKE = re.compile(r"^\s*CMake Error at (\S+?):(\d+) (.*)$", re.M)


def build(root: Path) -> None:
    """Build and install the checkout incrementally. Raises LayoutError with the compiler's errors."""
    # -k0: report all files that do not compile, not only the first. --config-settings: only newer pips know it as -C
    whole = "--config-settings=build.tool-args=-k0"
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", whole, "-e", ".[test]"]
    done = subprocess.run(pip, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode == 0:
        return
    errors = find_errors(done.stdout, root) or done.stdout.splitlines()[-LAST_LINES:]
    raise LayoutError(
        "the build fails:\n  " + "\n  ".join(errors),
        "change llama.cpp's files in vendor/work, then python vendor/layout.py write; change pymtp's files in place;"
        f" then: {' '.join(pip)}",
    )


def find_errors(log: str, root: Path) -> list[str]:
    """Return 'FILE:LINE: error' for each error in a build's log, errors in pymtp's sources first."""
    found = [(file, line or other, said) for file, line, other, said in _ERROR.findall(log)]
    found += [(file, line, f"CMake error {said}") for file, line, said in _CMAKE.findall(log)]
    told = {f"{_relative(file, root)}:{line}: {said.strip()}": None for file, line, said in found}
    return sorted(told, key=lambda error: not error.startswith(OURS))


def _relative(file: str, root: Path) -> str:
    """Return a path of the log relative to `root`; a relative path in the log starts at any build directory."""
    plain = Path(os.path.normpath(file))
    if plain.is_absolute():
        return (plain.relative_to(root) if plain.is_relative_to(root) else plain).as_posix()
    return "/".join(part for part in plain.parts if part != "..")


def test(root: Path) -> None:
    """Run the tests. Raises LayoutError if any fails."""
    if subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=root).returncode != 0:
        raise LayoutError("tests fail", f"{sys.executable} -m pytest -q --last-failed")
