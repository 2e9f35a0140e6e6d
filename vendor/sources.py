"""The pinned sources of llama.cpp: fetched once, checked, read, and written out file by file."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

# What configuring and building ggml + llama reads, 5 MB packed; llama.cpp's tools, models and docs are 120 MB.
SUBSET = ("CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "src", "vendor")
MANIFEST = "pymtp-layout.json"

Tree = dict[str, bytes]  # path with "/" inside llama.cpp → content


class LayoutError(Exception):
    """Something the reader can mend: what is wrong, and the command that mends it."""

    def __init__(self, wrong: str, mend: str) -> None:
        super().__init__(f"{wrong}\n  Mend it: {mend}")
        self.wrong = wrong


@dataclass(frozen=True)
class Paths:
    """Where everything is. Tests point `root` and `cache` elsewhere."""

    root: Path
    cache: Path

    @classmethod
    def default(cls) -> Paths:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(__file__).resolve().parent.parent, Path(cache) / "pymtp")

    @property
    def requirements(self) -> Path:
        return self.root / "vendor" / "requirements.txt"

    @property
    def target(self) -> Path:
        return self.root / "vendor" / "llama.cpp"

    @property
    def work(self) -> Path:
        return self.root / "vendor" / "work"

    def patches(self) -> list[Path]:
        """The patches in the order they apply."""
        return sorted((self.root / "patches").glob("*.patch"))


@dataclass(frozen=True)
class Pin:
    """The one source distribution that is used, and the llama.cpp commit inside it."""

    requirement: str
    sdist: str
    sha256: str
    commit: str

    @classmethod
    def read(cls, requirements: Path) -> Pin:
        """Raises LayoutError when the file does not pin one hash and name one commit."""
        text = requirements.read_text(encoding="utf-8")
        pin = re.search(r"^([\w-]+)==([\w.]+) --hash=sha256:([0-9a-f]{64})$", text, re.M)
        commit = re.search(r"^# llama\.cpp commit: (\w+)$", text, re.M)
        if not pin or not commit:
            raise LayoutError(
                f"{requirements} does not pin one source distribution",
                "give it the lines 'NAME==VERSION --hash=sha256:HASH' and '# llama.cpp commit: ID'",
            )
        name, version, sha256 = pin.groups()
        return cls(f"{name}=={version}", f"{name.replace('-', '_')}-{version}.tar.gz", sha256, commit[1])


def fetch(paths: Paths, pin: Pin) -> Path:
    """The pinned source distribution, from the cache or, once, from pip's index.

    Raises LayoutError when pip is missing, reaches no index, or is given a file with another hash.
    """
    cached = paths.cache / pin.sdist
    if cached.exists():
        if digest(cached.read_bytes()) == pin.sha256:
            return cached
        print(f"layout: {cached} is damaged; fetching it again", flush=True)
    print(f"layout: fetching {pin.sdist} with pip, once, into {paths.cache}", flush=True)
    paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache) as fresh:
        # --no-build-isolation: pip asks a source distribution for its metadata even when it is only downloaded.
        # The backend that answers, scikit-build-core, is here already: it is our own build requirement.
        options = ["--no-deps", "--no-build-isolation", "--no-binary", pin.requirement.split("==")[0]]
        command = [sys.executable, "-m", "pip", "download", *options, "--require-hashes", "-r", str(paths.requirements)]
        done = subprocess.run([*command, "--dest", fresh], capture_output=True, text=True)
        if done.returncode != 0:
            raise _explain_pip(done.stdout + done.stderr, pin, paths)
        os.replace(Path(fresh) / pin.sdist, cached)
    return cached


def _explain_pip(output: str, pin: Pin, paths: Paths) -> LayoutError:
    if "No module named pip" in output:
        return LayoutError(f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip, or apt install python3-pip")
    if "DO NOT MATCH THE HASHES" in output:
        got = re.search(r"Got\s+([0-9a-f]{64})", output)
        return LayoutError(
            f"the index gave another {pin.sdist} than the pinned one; it is not used.\n"
            f"  pinned sha256 {pin.sha256}\n  got           {got[1] if got else '?'}",
            f"use another index (pip config list), or change the pin in {paths.requirements}",
        )
    if "scikit_build_core" in output:
        return LayoutError("pip needs scikit-build-core here", f"{sys.executable} -m pip install scikit-build-core")
    if "(from versions: none)" in output:
        return LayoutError(
            f"pip reached no index that has {pin.requirement}",
            f"check the network and the index (pip config list), or put {pin.sdist} into {paths.cache} by hand",
        )
    last = "".join(output.strip().splitlines()[-1:])
    return LayoutError(f"pip could not fetch {pin.requirement}: {last}", f"see why: pip download {pin.requirement}")


def read_pristine(sdist: Path) -> Tree:
    """The needed part of llama.cpp as it stands in the source distribution."""
    tree: Tree = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, vendor, project, path = [*member.name.split("/", 3), "", "", ""][:4]
            wanted = path in SUBSET or path.split("/")[0] in SUBSET
            if member.isfile() and (vendor, project) == ("vendor", "llama.cpp") and wanted:
                content = archive.extractfile(member)
                assert content is not None  # isfile() was true
                tree[path] = content.read()
    if not tree:
        raise LayoutError(f"{sdist} holds no vendor/llama.cpp", "pin a llama-cpp-python that does")
    return tree


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sync(tree: Tree, directory: Path) -> int:
    """Makes `directory` hold exactly `tree`; returns how many files had to be written or removed."""
    changed = 0
    for path, content in tree.items():
        file = directory / path
        if not file.is_file() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            changed += 1
    for path in read_tree(directory).keys() - tree.keys():
        (directory / path).unlink()
        changed += 1
    return changed


def read_tree(directory: Path) -> Tree:
    """Every file below `directory` but the manifest."""
    files = (file for file in directory.rglob("*") if file.is_file() and file != directory / MANIFEST)
    return {file.relative_to(directory).as_posix(): file.read_bytes() for file in files}
