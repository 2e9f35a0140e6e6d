"""The pinned sources of llama.cpp: read the pin, read the archive, write the files."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

# Of tools/mtmd, only the vision encoder is built, with the graphs of the projectors that pymtp's models have.
_MTMD = (
    "clip.cpp",
    "clip.h",
    "clip-graph.h",
    "clip-impl.h",
    "clip-model.h",
    "mtmd-image.cpp",
    "mtmd-image.h",
    "mtmd.h",
)
_MTMD_MODELS = ("models.h", "qwen2vl.cpp", "qwen3vl.cpp")
# The files of llama.cpp that the build and the tests read: 5 MB packed. Its other tools, models and docs, another
# 120 MB, are not extracted.
SUBSET = (
    *("CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "models/templates", "src", "vendor"),
    *(f"tools/mtmd/{name}" for name in _MTMD),
    *(f"tools/mtmd/models/{name}" for name in _MTMD_MODELS),
)
MANIFEST = "pymtp-layout.json"

Tree = dict[str, bytes]  # path with "/" inside llama.cpp → content


class LayoutError(Exception):
    """An error that the user can fix: a description, and the command that fixes it."""

    def __init__(self, wrong: str, mend: str) -> None:
        super().__init__(f"{wrong}\n  Mend it: {mend}")
        self.wrong = wrong


@dataclass(frozen=True)
class Paths:
    """The paths of the layout. Tests set another `root` and `cache`."""

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
        """Return the patches in the order in which they are applied."""
        return sorted((self.root / "patches").glob("*.patch"))


@dataclass(frozen=True)
class Pin:
    """The pinned source distribution, and the llama.cpp commit in it."""

    requirement: str
    sdist: str
    sha256: str
    commit: str

    @classmethod
    def read(cls, requirements: Path) -> Pin:
        """Read the pin. Raises LayoutError if the file does not pin one hash and name one commit."""
        if pin := cls.parse(requirements.read_text(encoding="utf-8")):
            return pin
        raise LayoutError(
            f"{requirements} does not pin one source distribution",
            "write these lines into it: 'NAME==VERSION --hash=sha256:HASH' and '# llama.cpp commit: ID'",
        )

    @classmethod
    def parse(cls, text: str) -> Pin | None:
        pin, commit = _PIN.search(text), _COMMIT.search(text)
        if not pin or not commit:
            return None
        name, version, sha256 = pin.groups()
        return cls(f"{name}=={version}", sdist_name(name, version), sha256, commit[1])

    def write(self, requirements: Path) -> None:
        """Replace the pin in `requirements` by this one."""
        commit, pin = self.text.splitlines()
        text = _COMMIT.sub(commit, requirements.read_text(encoding="utf-8"))
        requirements.write_text(_PIN.sub(pin, text), encoding="utf-8")

    @property
    def text(self) -> str:
        return f"# llama.cpp commit: {self.commit}\n{self.requirement} --hash=sha256:{self.sha256}"

    @property
    def name(self) -> str:
        return self.requirement.split("==")[0]

    @property
    def version(self) -> str:
        return self.requirement.split("==")[1]


_PIN = re.compile(r"^([\w-]+)==([\w.]+) --hash=sha256:([0-9a-f]{64})$", re.M)
_COMMIT = re.compile(r"^# llama\.cpp commit: (\w+)$", re.M)


def sdist_name(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}.tar.gz"


def read_pristine(sdist: Path) -> Tree:
    """Return the needed part of llama.cpp, unchanged, from the source distribution."""
    tree: Tree = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, vendor, project, path = [*member.name.split("/", 3), "", "", ""][:4]
            wanted = any(path == entry or path.startswith(f"{entry}/") for entry in SUBSET)
            if member.isfile() and (vendor, project) == ("vendor", "llama.cpp") and wanted:
                content = archive.extractfile(member)
                assert content is not None  # isfile() was true
                tree[path] = content.read()
    if not tree:
        raise LayoutError(f"{sdist} has no vendor/llama.cpp", "pin a release of llama-cpp-python that has it")
    return tree


def missing(tree: Tree) -> list[str]:
    """Return the entries of SUBSET that a release does not have."""
    return [entry for entry in SUBSET if not any(path == entry or path.startswith(f"{entry}/") for path in tree)]


def commit_of(sdist: Path) -> str | None:
    """Return the first nine digits of the llama.cpp commit that a source distribution names; None if it names none.

    The commit is in the git folder of the checkout, if that was packed too, or else in the change log.
    """
    changes = ""
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if path in (".git/modules/vendor/llama.cpp/HEAD", "CHANGELOG.md") and (file := archive.extractfile(member)):
                text = file.read().decode("utf-8", "replace")
                if re.fullmatch(r"[0-9a-f]{40}\s*", text):
                    return text[:9]
                changes = text if path == "CHANGELOG.md" else changes
    version = sdist.name.removesuffix(".tar.gz").rpartition("-")[2]
    section = changes.partition(f"\n## [{version}]")[2].partition("\n## ")[0]
    said = re.search(r"update llama\.cpp to \S+@([0-9a-f]{9,40})", section)
    return said[1][:9] if said else None


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sync(tree: Tree, directory: Path) -> int:
    """Make `directory` hold exactly `tree`, and return the number of written and removed files."""
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
    """Read all files below `directory`, except the manifest."""
    files = (file for file in directory.rglob("*") if file.is_file() and file != directory / MANIFEST)
    return {file.relative_to(directory).as_posix(): file.read_bytes() for file in files}
