"""The pinned sources of llama.cpp: named, read out of their archive, and written out file by file."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

# What configuring and building ggml + llama reads, and what tests do, 5 MB packed; llama.cpp's tools, models and docs
# are 120 MB.
SUBSET = ("CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "models/templates", "src", "vendor")
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
        if pin := cls.parse(requirements.read_text(encoding="utf-8")):
            return pin
        raise LayoutError(
            f"{requirements} does not pin one source distribution",
            "give it the lines 'NAME==VERSION --hash=sha256:HASH' and '# llama.cpp commit: ID'",
        )

    @classmethod
    def parse(cls, text: str) -> Pin | None:
        pin, commit = _PIN.search(text), _COMMIT.search(text)
        if not pin or not commit:
            return None
        name, version, sha256 = pin.groups()
        return cls(f"{name}=={version}", sdist_name(name, version), sha256, commit[1])

    def write(self, requirements: Path) -> None:
        """Puts this pin in the place of the one that `requirements` holds."""
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
    """The needed part of llama.cpp as it stands in the source distribution."""
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
        raise LayoutError(f"{sdist} holds no vendor/llama.cpp", "pin a llama-cpp-python that does")
    return tree


def missing(tree: Tree) -> list[str]:
    """The entries of SUBSET of which a release has nothing."""
    return [entry for entry in SUBSET if not any(path == entry or path.startswith(f"{entry}/") for path in tree)]


def commit_of(sdist: Path) -> str | None:
    """The llama.cpp commit that a source distribution says it holds, nine digits; None if it does not say.

    It says so in the checkout that it was packed from, which is packed with it, or else in its change log.
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
