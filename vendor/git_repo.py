"""Run git without the user's settings, and make the repositories for patches."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sources import LayoutError, Tree

Env = Mapping[str, str]
NONE: Env = MappingProxyType({})

AUTHOR = "The pymtp authors <pymtp@localhost>"  # commits the pristine sources; each patch has its own author
# The date of all commits, 2000-01-01. Patches have no date; with a fixed one, equal patches make equal commits.
SECONDS = 946684800


def create(directory: Path) -> None:
    """Make an empty repository, in which conflicts also show the common base of both sides."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "--quiet", "--template=", "--initial-branch=main")
    git(directory, "config", "merge.conflictStyle", "diff3")


def commit_tree(directory: Path, branch: str, tree: Tree, message: str) -> None:
    """Make a new branch with one commit that holds `tree`; the checked-out files stay unchanged."""
    text = message.encode()
    lines = [f"commit refs/heads/{branch}", f"committer {AUTHOR} {SECONDS} +0000", f"data {len(text)}"]
    parts = ["\n".join(lines).encode(), b"\n", text]
    for path, content in tree.items():
        parts += [f"\nM 100644 inline {path}\ndata {len(content)}\n".encode(), content]
    git(directory, "fast-import", "--quiet", stdin=b"".join(parts) + b"\n")


def commit(directory: Path, author: str, message: str) -> None:
    """Commit the staged changes; without changes, make an empty commit."""
    options = ("--quiet", "--allow-empty", "--no-verify", "--cleanup=verbatim", "--file=-")
    git(directory, "commit", *options, stdin=message.encode(), env=identity(author))


def identity(author: str) -> dict[str, str]:
    """Return environment variables with which git commits as `author`, with the fixed date."""
    name, _, email = author.rstrip(">").rpartition(" <")
    facts = {"NAME": name, "EMAIL": email, "DATE": f"{SECONDS} +0000"}
    return {f"GIT_{who}_{fact}": facts[fact] for who in ("AUTHOR", "COMMITTER") for fact in facts}


def read_commit(directory: Path, revision: str) -> Tree:
    archive = run_git(directory, "archive", revision).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def git(directory: Path, *arguments: str, stdin: bytes = b"", env: Env = NONE) -> str:
    """Run a git command and return its output. Raises LayoutError if it fails."""
    done = run_git(directory, *arguments, stdin=stdin, env=env)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise LayoutError(f"git {arguments[0]} failed in {directory}: {said}", "look at the repository there with git")
    return done.stdout.decode("utf-8", "surrogateescape")


def run_git(
    directory: Path, *arguments: str, stdin: bytes = b"", env: Env = NONE
) -> subprocess.CompletedProcess[bytes]:
    """Run git without the user's settings (signing, hooks, line ends) and ignore a repository around `directory`."""
    apart = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "LC_ALL": "C",  # git's messages are parsed
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", *arguments], cwd=directory, env={**kept, **apart, **env}, input=stdin, capture_output=True
        )
    except FileNotFoundError:
        raise LayoutError("git is needed to apply patches/", "apt install git, or https://git-scm.com") from None
