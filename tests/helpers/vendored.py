"""Small source distributions, and a checkout whose pin is one of them."""

from __future__ import annotations

import difflib
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from sources import Paths

SDIST = "llama_cpp_python-0.3.36.tar.gz"
NUMBERED = "".join(f"line {n}\n" for n in range(1, 41))
REPEATED = "void f() {\n" + "if (a) {\n    b();\n}\n" * 5 + "}\n"
SOURCES = {
    "CMakeLists.txt": "project(llama)\n",
    "LICENSE": "MIT\n",
    "src/llama.cpp": NUMBERED,
    "src/graph.cpp": REPEATED,
    "ggml/ggml.c": NUMBERED,
    "docs/manual.md": "not needed\n",
}
# pip asks even a source distribution that it only downloads for its metadata; this backend answers without a build
BACKEND = """
import os
def prepare_metadata_for_build_wheel(directory, settings=None):
    name = "llama_cpp_python-VERSION.dist-info"
    os.mkdir(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: llama-cpp-python\\nVersion: VERSION\\n")
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def make_sdist(path: Path, sources: dict[str, str], **more: str) -> str:
    """Write a source distribution with `sources` of llama.cpp and `more` beside them; return its sha256."""
    directory = path.name.removesuffix(".tar.gz")
    version = directory.rpartition("-")[2]
    files = {f"vendor/llama.cpp/{name}": text for name, text in sources.items()}
    files |= {"pyproject.toml": PYPROJECT, "backend.py": BACKEND.replace("VERSION", version)}
    files |= {"PKG-INFO": "Name: llama-cpp-python\n", **more}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{directory}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_checkout(directory: Path) -> Paths:
    """Make a checkout without patches, and put the pinned source distribution into the cache."""
    paths = Paths(directory / "checkout", directory / "cache")
    sha256 = make_sdist(paths.cache / SDIST, SOURCES)
    (paths.root / "patches").mkdir(parents=True)
    paths.requirements.parent.mkdir()
    pin = f"# llama.cpp commit: 0c1e57098\nllama-cpp-python==0.3.36 --hash=sha256:{sha256}\n"
    paths.requirements.write_text(pin, encoding="utf-8")
    return paths


def add_patch(paths: Paths, name: str, file: str, old: str, new: str, before: str = NUMBERED, context: int = 3) -> Path:
    """Add a patch that replaces `old` by `new` in `file`; `before` is the file's text before this patch."""
    after = before.replace(old, new, 1).splitlines(keepends=True)
    diff = difflib.unified_diff(before.splitlines(keepends=True), after, f"a/{file}", f"b/{file}", n=context)
    head = f"From: A Person <a@example.org>\nSubject: {name[5:]}\n\nWhy: a test.\n\n"
    path = paths.root / "patches" / f"{name}.patch"
    path.write_text(f"{head}diff --git a/{file} b/{file}\n{''.join(diff)}", encoding="utf-8")
    return path


def commit(work: Path, file: str, content: str, message: str = "a change\n\nWhy: a test.\n") -> None:
    (work / file).write_text(content, encoding="utf-8")
    git = ["git", "-c", "user.name=A Person", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "add", "--all"], cwd=work, check=True)
    subprocess.run([*git, "commit", "--quiet", f"--message={message}"], cwd=work, check=True)


def read_patches(paths: Paths) -> dict[str, bytes]:
    return {patch.name: patch.read_bytes() for patch in paths.patches()}
