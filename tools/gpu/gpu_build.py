"""The build of pymtp and llama-bench from the pack, for the GPU of this machine, without a network.

All files go below the working folder, and packages into one folder for PYTHONPATH: the machine's Python environment is
used, but not changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_pack import SOURCES, Folders, native_digest, restore_build, save_build, unpack

DEFAULT_NVCC = "/usr/local/cuda/bin/nvcc"
CUDA = "13"  # the major version in the names of libraries and Python packages
LIBRARIES = ("libcudart", "libcublas", "libcublasLt")
# options of a build for another machine: every processor beside such a GPU has these instructions
PORTABLE = ("-DGGML_NATIVE=off", *(f"-DGGML_{name}=on" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")))


class BuildError(Exception):
    """The build failed. The message says why, and what to do."""


def environment(folders: Folders) -> dict[str, str]:
    """Return the environment for processes that use the build and its CUDA libraries."""
    paths = {"PYTHONPATH": folders.site, "LD_LIBRARY_PATH": folders.libraries}
    return os.environ | {
        name: os.pathsep.join(filter(None, [str(folder), os.environ.get(name, "")])) for name, folder in paths.items()
    }


def build(folders: Folders, options: Sequence[str], *, out: Path, seconds: float, runs_here: bool = True) -> str:
    """Install pymtp and llama-bench, built from the sources of this checkout. Return a description for the user.

    A build in the pack is used if there is one. A new build is also written to `out`, in parts. options: of CMake.
    runs_here: install the pack's wheels, which are for the Python of the machine with the GPU.

    Raises BuildError if the pack is missing or stale, or if the build fails or takes longer than `seconds`.
    """
    started = time.monotonic()
    if not (folders.pack / SOURCES).is_file():
        raise BuildError(f"there is no {folders.pack / SOURCES}: tools/gpu/gpu_bench.sh pack, where there is a network")
    if runs_here:
        _install(folders, sorted((folders.pack / "wheels").glob("*.whl")))
    cublas = link_libraries(folders)
    if restore_build(folders):
        action = "unpacked a build of these sources"
    else:
        unpack(folders.pack / SOURCES, folders.source)
        if native_digest(folders.source) != native_digest(folders.root):
            raise BuildError("the pack holds other sources than this checkout: tools/gpu/gpu_bench.sh pack")
        _compile(folders, options, cublas, seconds - (time.monotonic() - started))
        action = "compiled"
        for part in save_build(folders, out):
            print(f"  {part.name}: {part.stat().st_size / 2**20:.1f} MiB")
    overlay(folders)
    folders.stamp.write_text(native_digest(folders.root))
    return f"{action} in {time.monotonic() - started:.0f} s"


def is_built(folders: Folders) -> bool:
    """Tell whether the installed build is of the sources of this checkout."""
    return folders.stamp.is_file() and folders.stamp.read_text() == native_digest(folders.root)


def overlay(folders: Folders) -> None:
    """Copy the Python code of this checkout over that of the build: only the native module needs a build."""
    for file in (folders.root / "pymtp").rglob("*.py"):
        target = folders.site / file.relative_to(folders.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def this_gpu() -> str:
    """Return the architecture of this machine's GPU, "90" for an H100 or H200. Raises BuildError if there is none."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"no GPU to build for: {error}") from error
    return output[0].replace(".", "")


def cuda_options(architecture: str) -> list[str]:
    """Return the options of CMake for one architecture."""
    options = ["-DGGML_CUDA=on", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real"]
    if shutil.which("nvcc") is None:
        options.append(f"-DCMAKE_CUDA_COMPILER={DEFAULT_NVCC}")
    return options


def link_libraries(folders: Folders, path: Sequence[str] = sys.path) -> dict[str, str]:
    """Link CUDA's libraries into one folder, from the toolkit or else from Python packages.

    So a build finds them on any machine. Return variables for the environment of a build if the toolkit has no cuBLAS.
    """
    # nvcc on the path may be a script that calls the default one
    toolkits = [Path(nvcc).resolve().parent.parent for nvcc in (shutil.which("nvcc"), DEFAULT_NVCC) if nvcc]
    patterns = ("lib64", "lib", "targets/*/lib")
    toolkit_folders = [folder for toolkit in toolkits for pattern in patterns for folder in toolkit.glob(pattern)]
    packages = [Path(entry) / "nvidia" / f"cu{CUDA}" for entry in path]
    folders.libraries.mkdir(parents=True, exist_ok=True)
    variables: dict[str, str] = {}
    for name in LIBRARIES:
        candidates = [*toolkit_folders, *(package / "lib" for package in packages)]
        folder = next((folder for folder in candidates if (folder / f"{name}.so.{CUDA}").exists()), None)
        if folder is None:
            continue  # CMake names the missing library
        for link in (f"{name}.so", f"{name}.so.{CUDA}"):
            (folders.libraries / link).unlink(missing_ok=True)
            (folders.libraries / link).symlink_to(folder / f"{name}.so.{CUDA}")
        if name == "libcublas" and folder not in toolkit_folders:
            # the toolkit's own headers win: compilers search CPATH after the folders of their options
            variables = {"CMAKE_LIBRARY_PATH": str(folders.libraries), "CPATH": str(folder.parent / "include")}
    return variables


def _install(folders: Folders, wheels: list[Path]) -> None:
    if not wheels:
        return
    options = ["--quiet", "--no-index", "--no-deps", "--upgrade", "--no-compile", "--target", str(folders.site)]
    command = [sys.executable, "-m", "pip", "install", *options, *map(str, wheels)]
    if subprocess.run(command, stderr=subprocess.STDOUT).returncode != 0:
        raise BuildError(f"pip cannot install {', '.join(wheel.name for wheel in wheels)}: see above")


def _compile(folders: Folders, options: Sequence[str], more: dict[str, str], seconds: float) -> None:
    bench = folders.source / "llama-bench"
    arguments = [*options, f"-DPYMTP_LLAMA_BENCH={bench}"]
    user_arguments = os.environ.get("CMAKE_ARGS", "")
    env = environment(folders) | more | {"CMAKE_ARGS": " ".join([*arguments, user_arguments]).strip()}
    wheels = folders.work / "dist"
    shutil.rmtree(wheels, ignore_errors=True)
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--verbose", "--wheel-dir", str(wheels)]
    log = folders.work / "build.log"
    with log.open("w") as out:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", *flags, str(folders.source)],
                env=env, stdout=out, stderr=subprocess.STDOUT, timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"not built after {seconds:.0f} s\n{_tail(log)}") from error
    if done.returncode != 0:
        raise BuildError(f"pip cannot build pymtp\n{_tail(log)}")
    _install(folders, list(wheels.glob("*.whl")))
    programs = [file for file in (folders.source / "build").rglob("llama-bench") if file.is_file()]
    if not programs:
        raise BuildError(f"no llama-bench was built\n{_tail(log)}")
    folders.llama_bench.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs[0], folders.llama_bench)
    if shutil.which("strip"):
        subprocess.run(["strip", str(folders.llama_bench)], check=True)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-60:])
