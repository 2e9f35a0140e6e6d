"""Programs of llama.cpp, built from the pinned sources with the options that pymtp's native module is built with."""

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

# without these patches nothing runs on a processor with AMX
MENDS = ("keep-the-AMX-tile-configuration", "multiply-several-batches-on-AMX")


class BuildError(Exception):
    """The program cannot be built: what is wrong, and what mends it."""


def lay_out(program: str, more: tuple[str, ...], *, patched: bool) -> Path:
    """The sources that a program is built from; returns their folder. See `build`."""
    paths, place = Paths.default(), ROOT / "build" / (f"{program}-patched" if patched else program) / "llama.cpp"
    try:
        tree = _read(fetch(paths, Pin.read(paths.requirements)), more)
        patches = [p for p in paths.patches() if patched or any(mend in p.name for mend in MENDS)]
        sync(apply(tree, patches), place)
    except LayoutError as error:
        raise BuildError(str(error)) from error
    return place


def build(program: str, more: tuple[str, ...], *, patched: bool) -> Path:
    """Builds a program below build/<program>, or build/<program>-patched, as far as anything changed; returns its path.

    program: the name of the target, and of the folder beside this file that configures it.
    more: how the paths begin that it is built from beside what the build of pymtp needs.
    patched: with all of pymtp's patches on the sources, not only those that they need to run.

    Raises BuildError when the sources cannot be had, a tool is missing, or a step fails. Takes several minutes the
    first time. CMAKE_ARGS in the environment means what it means to `pip install`: give it what pymtp was built with.
    """
    sources = lay_out(program, more, patched=patched)
    pin, place = Pin.read(Paths.default().requirements), sources.parent
    cmake, ninja = _tool("cmake"), _tool("ninja")
    options = [
        f"-DLLAMA_CPP={sources}",
        f"-DLLAMA_BUILD_COMMIT={pin.commit}",
        f"-DPATCHED={'ON' if patched else 'OFF'}",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
    ]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    source, target = str(Path(__file__).with_name(program)), str(place / "build")
    configure = [cmake, "-G", "Ninja", "-S", source, "-B", target, *options]
    done = subprocess.run(configure, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(f"{program} cannot be configured:\n{done.stdout}")
    # its output is the progress of several minutes
    if subprocess.run([cmake, "--build", target, "--target", program], stdout=sys.stderr).returncode != 0:
        raise BuildError(f"{program} cannot be compiled, see above")
    return place / "build" / "bin" / program


def _read(sdist: Path, more: tuple[str, ...]) -> Tree:
    tree: Tree = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, vendor, project, path = [*member.name.split("/", 3), "", "", ""][:4]
            wanted = path.startswith(more) or path.split("/")[0] in SUBSET
            if member.isfile() and (vendor, project) == ("vendor", "llama.cpp") and wanted:
                content = archive.extractfile(member)
                assert content is not None  # isfile() was true
                tree[path] = content.read()
    return tree


def _tool(name: str) -> str:
    """A program beside the interpreter, where pip installs it, or on the path."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        raise BuildError(f"{name} is needed to build this: {sys.executable} -m pip install {name}")
    return found
