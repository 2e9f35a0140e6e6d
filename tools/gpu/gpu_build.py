"""Builds pymtp and llama-bench from the pack, for the GPU of this machine, without a network.

Everything goes below the working folder, and packages into one folder for PYTHONPATH: whatever Python environment is
there stays as it is, and is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_pack import SOURCES, Place, native_digest, restore_build, save_build, unpack

DEFAULT_NVCC = "/usr/local/cuda/bin/nvcc"
CUDA = "13"  # the major version, which libraries and Python packages are named by
LIBRARIES = ("libcudart", "libcublas", "libcublasLt")
# of a build for another machine: what every processor beside such a GPU has
PORTABLE = ("-DGGML_NATIVE=off", *(f"-DGGML_{name}=on" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")))


class BuildError(Exception):
    """What is wrong, and what mends it."""


def environment(place: Place) -> dict[str, str]:
    """Of processes that are to find what was built, and the CUDA libraries that it was linked with."""
    first = {"PYTHONPATH": place.site, "LD_LIBRARY_PATH": place.libraries}
    return os.environ | {
        name: os.pathsep.join(filter(None, [str(folder), os.environ.get(name, "")])) for name, folder in first.items()
    }


def build(place: Place, options: Sequence[str], *, out: Path, seconds: float) -> str:
    """Brings pymtp into place.site and llama-bench beside it, built from the sources of this checkout; a new build is
    also written to `out`, in parts. Returns how, in a few words. options: of CMake.

    Raises BuildError when the pack is missing or stale, or the build fails or takes longer than `seconds`.
    """
    started = time.monotonic()
    if not (place.pack / SOURCES).is_file():
        raise BuildError(f"there is no {place.pack / SOURCES}: tools/gpu/gpu_bench.sh pack, where there is a network")
    _install(place, sorted((place.pack / "wheels").glob("*.whl")))
    cublas = link_libraries(place)
    if restore_build(place):
        how = "unpacked a build of these sources"
    else:
        unpack(place.pack / SOURCES, place.source)
        if native_digest(place.source) != native_digest(place.root):
            raise BuildError("the pack holds other sources than this checkout: tools/gpu/gpu_bench.sh pack")
        _compile(place, options, cublas, seconds - (time.monotonic() - started))
        how = "compiled"
        for part in save_build(place, out):
            print(f"  {part.name}: {part.stat().st_size / 2**20:.1f} MiB")
    overlay(place)
    place.stamp.write_text(native_digest(place.root))
    return f"{how} in {time.monotonic() - started:.0f} s"


def is_built(place: Place) -> bool:
    """Whether what is there was built from the sources of this checkout."""
    return place.stamp.is_file() and place.stamp.read_text() == native_digest(place.root)


def overlay(place: Place) -> None:
    """The Python code of this checkout over that of the build: only the native module takes long to make."""
    for file in (place.root / "pymtp").rglob("*.py"):
        inside = place.site / file.relative_to(place.root)
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, inside)


def this_gpu() -> str:
    """The architecture of the GPU that is here, "90" for an H100 or H200. Raises BuildError where there is none."""
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"no GPU to build for: {error}") from error
    return told[0].replace(".", "")


def cuda_options(architecture: str) -> list[str]:
    """What CMake is told to build for one architecture."""
    options = ["-DGGML_CUDA=on", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real"]
    if shutil.which("nvcc") is None:
        options.append(f"-DCMAKE_CUDA_COMPILER={DEFAULT_NVCC}")
    return options


def link_libraries(place: Place, path: Sequence[str] = sys.path) -> dict[str, str]:
    """Links that CUDA's libraries are found by, those of the toolkit or else of Python packages, wherever the build was
    made. Returns what the environment of a build needs where the toolkit has no cuBLAS."""
    # the first may be a script that calls the second
    toolkits = [Path(nvcc).resolve().parent.parent for nvcc in (shutil.which("nvcc"), DEFAULT_NVCC) if nvcc]
    patterns = ("lib64", "lib", "targets/*/lib")
    of_toolkit = [folder for toolkit in toolkits for pattern in patterns for folder in toolkit.glob(pattern)]
    packages = [Path(entry) / "nvidia" / f"cu{CUDA}" for entry in path]
    place.libraries.mkdir(parents=True, exist_ok=True)
    more: dict[str, str] = {}
    for name in LIBRARIES:
        folders = [*of_toolkit, *(package / "lib" for package in packages)]
        folder = next((folder for folder in folders if (folder / f"{name}.so.{CUDA}").exists()), None)
        if folder is None:
            continue  # CMake says what is missing
        for link in (f"{name}.so", f"{name}.so.{CUDA}"):
            (place.libraries / link).unlink(missing_ok=True)
            (place.libraries / link).symlink_to(folder / f"{name}.so.{CUDA}")
        if name == "libcublas" and folder not in of_toolkit:
            # headers that the toolkit has, too, are the toolkit's: CPATH comes after what is named to the compiler
            more = {"CMAKE_LIBRARY_PATH": str(place.libraries), "CPATH": str(folder.parent / "include")}
    return more


def _install(place: Place, wheels: list[Path]) -> None:
    if not wheels:
        return
    options = ["--quiet", "--no-index", "--no-deps", "--upgrade", "--no-compile", "--target", str(place.site)]
    command = [sys.executable, "-m", "pip", "install", *options, *map(str, wheels)]
    if subprocess.run(command, stderr=subprocess.STDOUT).returncode != 0:
        raise BuildError(f"pip cannot install {', '.join(wheel.name for wheel in wheels)}: see above")


def _compile(place: Place, options: Sequence[str], more: dict[str, str], seconds: float) -> None:
    bench = place.source / "llama-bench"
    arguments = [*options, f"-DPYMTP_LLAMA_BENCH={bench}"]
    given = os.environ.get("CMAKE_ARGS", "")
    env = environment(place) | more | {"CMAKE_ARGS": " ".join([*arguments, given]).strip()}
    wheels = place.work / "dist"
    shutil.rmtree(wheels, ignore_errors=True)
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--verbose", "--wheel-dir", str(wheels)]
    log = place.work / "build.log"
    with log.open("w") as out:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", *flags, str(place.source)],
                env=env, stdout=out, stderr=subprocess.STDOUT, timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"not built after {seconds:.0f} s\n{_tail(log)}") from error
    if done.returncode != 0:
        raise BuildError(f"pip cannot build pymtp\n{_tail(log)}")
    _install(place, list(wheels.glob("*.whl")))
    programs = [file for file in (place.source / "build").rglob("llama-bench") if file.is_file()]
    if not programs:
        raise BuildError(f"no llama-bench was built\n{_tail(log)}")
    place.llama_bench.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs[0], place.llama_bench)
    if shutil.which("strip"):
        subprocess.run(["strip", str(place.llama_bench)], check=True)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-60:])
