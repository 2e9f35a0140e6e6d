"""llama-bench, llama.cpp's own benchmark, from the patched sources that pymtp is built from: built, and run.

It is what a loop without Python does with the same kernels, so it is the bound for pymtp's plain decoding.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "vendor"))

from patch_repo import apply  # noqa: E402
from sources import SUBSET, LayoutError, Paths, Pin, Tree, fetch, sync  # noqa: E402

MORE = ("common/", "tools/llama-bench/")  # beside what the build of pymtp needs


class BuildError(Exception):
    """The benchmark cannot be built: what is wrong, and what mends it."""


def build() -> Path:
    """Builds llama-bench below build/llama-bench, as far as anything changed; returns the program.

    Raises BuildError when the sources cannot be had, a tool is missing, or a step fails. Takes several minutes the
    first time. CMAKE_ARGS in the environment means what it means to `pip install`: give it what pymtp was built with.
    """
    paths, place = Paths.default(), ROOT / "build" / "llama-bench"
    pin = Pin.read(paths.requirements)
    try:
        sync(apply(_read(fetch(paths, pin)), paths.patches()), place / "llama.cpp")
    except LayoutError as error:
        raise BuildError(str(error)) from error
    cmake, ninja = _tool("cmake"), _tool("ninja")
    options = [
        f"-DLLAMA_CPP={place / 'llama.cpp'}",
        f"-DLLAMA_BUILD_COMMIT={pin.commit}",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
    ]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    source, target = str(ROOT / "tools" / "llama-bench"), str(place / "build")
    configure = [cmake, "-G", "Ninja", "-S", source, "-B", target, *options]
    done = subprocess.run(configure, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(f"llama-bench cannot be configured:\n{done.stdout}")
    # its output is the progress of several minutes
    if subprocess.run([cmake, "--build", target, "--target", "llama-bench"], stdout=sys.stderr).returncode != 0:
        raise BuildError("llama-bench cannot be compiled, see above")
    return place / "build" / "bin" / "llama-bench"


def run(program: Path, model: Path, **options: str | int) -> dict[str, Any]:
    """One measurement in a process of its own; returns the record that llama-bench prints.

    options: its long options, "_" for "-". Raises subprocess.CalledProcessError when it fails.
    """
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [str(program), "--model", str(model), "--repetitions", "1", "--output", "json", *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    (record,) = json.loads(done.stdout)
    return dict(record)


def _read(sdist: Path) -> Tree:
    tree: Tree = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, vendor, project, path = [*member.name.split("/", 3), "", "", ""][:4]
            wanted = path.startswith(MORE) or path.split("/")[0] in SUBSET
            if member.isfile() and (vendor, project) == ("vendor", "llama.cpp") and wanted:
                content = archive.extractfile(member)
                assert content is not None  # isfile() was true
                tree[path] = content.read()
    return tree


def _tool(name: str) -> str:
    """A program beside the interpreter, where pip installs it, or on the path."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        raise BuildError(f"{name} is needed to build llama-bench: {sys.executable} -m pip install {name}")
    return found
