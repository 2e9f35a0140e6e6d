#!/usr/bin/env python3
"""Lays out a CUDA toolkit from the nvidia-* wheels of the package index, for machines without a toolkit.

    python vendor/cuda_wheels.py DIRECTORY     (vendor/cuda.cmake runs this)

The wheels install their parts into nvidia/cu13 of site-packages, in the layout of a toolkit, but nvcc and CMake cannot
use them there: lib64, where nvcc looks for libraries, is missing, and so are the library names without a version that
linkers need. Needs only the standard library.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from sources import LayoutError

CUDA = "cu13"  # each major version has its own directory
WHEELS = "cuda-toolkit[cccl,cublas,cudart,nvcc]==13.0.*"  # as in pyproject.toml; it depends on all wheels of PARTS
PARTS = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "bin/ptxas": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "lib/libcudart.so.13": "nvidia-cuda-runtime",
    "include/cublas_v2.h": "nvidia-cublas",
    "lib/libcublas.so.13": "nvidia-cublas",
    "include/cccl/cub/cub.cuh": "nvidia-cuda-cccl",
}


def find(path: Sequence[str]) -> list[Path]:
    """Find the wheels' parts in the directories of Python's import path; a toolkit's parts may be in several of them.

    Raises LayoutError with the names of missing wheels.
    """
    places = [place for entry in path if (place := Path(entry) / "nvidia" / CUDA).is_dir()]
    missing = {wheel: None for part, wheel in PARTS.items() if not any((place / part).exists() for place in places)}
    if missing:
        raise LayoutError(
            f"{sys.executable} finds no {', no '.join(missing)}, which a build for CUDA needs",
            f"PYMTP_CUDA_WHEELS=1 pip install '.[cuda]' brings them; without build isolation: pip install '{WHEELS}'",
        )
    return places


def lay_out(places: Sequence[Path], target: Path) -> None:
    """Make `target` a toolkit with the parts in `places`.

    Headers are copied only if their bytes differ, because the build system compares the times of files, and pip unpacks
    the wheels again for each isolated build. All other files are links: nvcc looks for its parts beside the link
    by which it was called.
    """
    for directory in ("bin", "lib", "nvvm"):
        shutil.rmtree(target / directory, ignore_errors=True)
        (target / directory).mkdir(parents=True)
        for place in reversed(places):  # the first place with a file wins, as in an import
            for file in (place / directory).glob("*"):
                _link(file, target / directory / file.name)
    for library in list((target / "lib").glob("lib*.so.*")):
        _link(library.resolve(), library.with_name(library.name.partition(".so.")[0] + ".so"))
    _link(Path("lib"), target / "lib64")
    _copy_headers(places, target / "include")


def _link(to: Path, link: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(to)


def _copy_headers(places: Sequence[Path], target: Path) -> None:
    wanted: set[Path] = set()
    for place in places:
        for folder, _, files in os.walk(place / "include"):
            for name in files:
                file = Path(folder, name)
                copy = target / file.relative_to(place / "include")
                if copy in wanted:
                    continue
                wanted.add(copy)
                if not (copy.exists() and filecmp.cmp(file, copy, shallow=False)):
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(file, copy)
    for copy in [Path(folder, name) for folder, _, files in os.walk(target) for name in files]:
        if copy not in wanted:
            copy.unlink()  # a header of another CUDA version


def main(arguments: Sequence[str]) -> int:
    """Lay out the toolkit; return the exit status: 1 with a message on stderr for an error that the user can fix."""
    try:
        lay_out(find(sys.path), Path(*arguments))
    except (LayoutError, OSError) as error:
        print(f"cuda_wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
