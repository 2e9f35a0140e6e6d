"""git, apart from the user's settings, and what the repositories of patches need of it."""

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

AUTHOR = "The pymtp authors <pymtp@localhost>"  # of pristine sources; a patch has its own
SECONDS = 946684800  # no date is written into a patch; with a fixed one, 2000-01-01, equal patches are equal commits


def create(directory: Path) -> None:
    """Makes an empty repository, whose conflicts will show the lines that both sides started from."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "--quiet", "--template=", "--initial-branch=main")
    git(directory, "config", "merge.conflictStyle", "diff3")


def commit_tree(directory: Path, branch: str, tree: Tree, message: str) -> None:
    """Makes a new branch of one commit that holds `tree`; what is checked out stays as it is."""
    text = message.encode()
    lines = [f"commit refs/heads/{branch}", f"committer {AUTHOR} {SECONDS} +0000", f"data {len(text)}"]
    parts = ["\n".join(lines).encode(), b"\n", text]
    for path, content in tree.items():
        parts += [f"\nM 100644 inline {path}\ndata {len(content)}\n".encode(), content]
    git(directory, "fast-import", "--quiet", stdin=b"".join(parts) + b"\n")


def commit(directory: Path, author: str, message: str) -> None:
    """Commits what is staged, be it nothing."""
    options = ("--quiet", "--allow-empty", "--no-verify", "--cleanup=verbatim", "--file=-")
    git(directory, "commit", *options, stdin=message.encode(), env=identity(author))


def identity(author: str) -> dict[str, str]:
    """The environment in which git commits as `author`, on the one day."""
    name, _, email = author.rstrip(">").rpartition(" <")
    facts = {"NAME": name, "EMAIL": email, "DATE": f"{SECONDS} +0000"}
    return {f"GIT_{who}_{fact}": facts[fact] for who in ("AUTHOR", "COMMITTER") for fact in facts}


def read_commit(directory: Path, revision: str) -> Tree:
    archive = run_git(directory, "archive", revision).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def git(directory: Path, *arguments: str, stdin: bytes = b"", env: Env = NONE) -> str:
    """What a git command that ought to succeed prints. Raises LayoutError when it fails."""
    done = run_git(directory, *arguments, stdin=stdin, env=env)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise LayoutError(f"git {arguments[0]} failed in {directory}: {said}", "look at it there with git")
    return done.stdout.decode("utf-8", "surrogateescape")


def run_git(
    directory: Path, *arguments: str, stdin: bytes = b"", env: Env = NONE
) -> subprocess.CompletedProcess[bytes]:
    """Runs git apart from the user's settings (signing, hooks, line ends) and from a repository around `directory`."""
    apart = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(directory.parent),
        "LC_ALL": "C",  # git's messages are read
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", *arguments], cwd=directory, env={**kept, **apart, **env}, input=stdin, capture_output=True
        )
    except FileNotFoundError:
        raise LayoutError("git is needed to apply patches/", "apt install git, or https://git-scm.com") from None
