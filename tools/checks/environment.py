"""Makes virtual environments under build/ with special builds of pymtp."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install(place: Path, settings: Sequence[str]) -> Path:
    """Build pymtp with CMake settings ("NAME=VALUE") and return the Python of its environment.

    A second call compiles only what changed.
    """
    python = place / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(place / "venv", with_pip=True)
        needed = ["scikit-build-core", "cffi", "cmake", "ninja"]
        subprocess.run([python, "-m", "pip", "install", "-q", *needed], check=True)
    defines = [f"--config-settings=cmake.define.{setting}" for setting in settings]
    command = [python, "-m", "pip", "install", "-q", "--no-build-isolation", "-e", f"{ROOT}[test]", *defines]
    subprocess.run([*command, f"--config-settings=build-dir={place / 'build'}"], check=True)
    return python
