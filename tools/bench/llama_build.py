"""The build of llama.cpp's own programs, from the pinned sources and with the options of pymtp's native module."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "vendor"))

from index import fetch  # noqa: E402
from patch_repo import apply  # noqa: E402
from sources import SUBSET, LayoutError, Paths, Pin, Tree, sync  # noqa: E402

# names of the patches without which llama.cpp does not run on a processor with AMX
REQUIRED_PATCHES = ("keep-the-AMX-tile-configuration", "multiply-several-batches-on-AMX")


class BuildError(Exception):
    """The program cannot be built. The message says why, and what to do."""


def lay_out(program: str, extra_paths: tuple[str, ...], *, patched: bool) -> Path:
    """Lay out the sources of a program. Return their folder. See `build`."""
    paths, folder = Paths.default(), ROOT / "build" / (f"{program}-patched" if patched else program) / "llama.cpp"
    try:
        tree = _read(fetch(paths, Pin.read(paths.requirements)), extra_paths)
        patches = [p for p in paths.patches() if patched or any(name in p.name for name in REQUIRED_PATCHES)]
        sync(apply(tree, patches), folder)
    except LayoutError as error:
        raise BuildError(str(error)) from error
    return folder


def build(program: str, extra_paths: tuple[str, ...], *, patched: bool) -> Path:
    """Build a program below build/<program>, or build/<program>-patched, if anything changed. Return its path.

    program: the name of the target, and of the folder beside this file that configures it.
    extra_paths: beginnings of the paths that it needs beside those of pymtp's build.
    patched: with all of pymtp's patches, not only REQUIRED_PATCHES.

    Raises BuildError if the sources cannot be fetched, a tool is missing, or a step fails. The first build takes
    several minutes. CMAKE_ARGS in the environment is used as by `pip install`: set it as for the build of pymtp.
    """
    sources = lay_out(program, extra_paths, patched=patched)
    pin, folder = Pin.read(Paths.default().requirements), sources.parent
    cmake, ninja = _tool("cmake"), _tool("ninja")
    options = [
        f"-DLLAMA_CPP={sources}",
        f"-DLLAMA_BUILD_COMMIT={pin.commit}",
        f"-DPATCHED={'ON' if patched else 'OFF'}",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
    ]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    source, target = str(Path(__file__).with_name(program)), str(folder / "build")
    configure = [cmake, "-G", "Ninja", "-S", source, "-B", target, *options]
    done = subprocess.run(configure, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(f"{program} cannot be configured:\n{done.stdout}")
    # show the output: the build takes several minutes
    if subprocess.run([cmake, "--build", target, "--target", program], stdout=sys.stderr).returncode != 0:
        raise BuildError(f"{program} cannot be compiled, see above")
    return folder / "build" / "bin" / program


def _read(sdist: Path, extra_paths: tuple[str, ...]) -> Tree:
    tree: Tree = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, vendor, project, path = [*member.name.split("/", 3), "", "", ""][:4]
            needed = path.startswith(extra_paths) or path.split("/")[0] in SUBSET
            if member.isfile() and (vendor, project) == ("vendor", "llama.cpp") and needed:
                content = archive.extractfile(member)
                assert content is not None  # isfile() was true
                tree[path] = content.read()
    return tree


def _tool(name: str) -> str:
    """Find a program beside the interpreter, where pip installs it, or on the path."""
    path = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if path is None:
        raise BuildError(f"{name} is needed to build this: {sys.executable} -m pip install {name}")
    return path
