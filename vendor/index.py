"""Download source distributions from pip's index, each only once: the pinned one, and releases to roll to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from sources import LayoutError, Paths, Pin, commit_of, digest, sdist_name


def fetch(paths: Paths, pin: Pin) -> Path:
    """Return the pinned source distribution, from the cache or, once, from pip's index.

    Raises LayoutError if pip is missing, reaches no index, or gets a file with another hash.
    """
    cached = paths.cache / pin.sdist
    if cached.exists():
        if digest(cached.read_bytes()) == pin.sha256:
            return cached
        print(f"layout: {cached} is damaged; fetching it again", flush=True)
    with tempfile.TemporaryDirectory() as name:
        lines = Path(name) / "requirements.txt"
        lines.write_text(pin.text, encoding="utf-8")
        _download(paths, pin, "--require-hashes", "-r", str(lines))
    return cached


def fetch_release(paths: Paths, old: Pin, version: str, commit: str | None) -> Pin:
    """Fetch another release into the cache, and return its pin.

    commit: the llama.cpp commit in the release, if the release does not name it; otherwise None.

    Raises LayoutError if the index has no such release, or if its commit is unknown or contradicts `commit`.
    """
    pin = Pin(f"{old.name}=={version}", sdist_name(old.name, version), "", "")
    cached = paths.cache / pin.sdist
    if not cached.exists():
        _download(paths, pin, pin.requirement)
    said = commit_of(cached)
    if said and commit and not commit.startswith(said) and not said.startswith(commit):
        raise LayoutError(f"{pin.sdist} says that it holds llama.cpp {said}, not {commit}", "leave out --commit")
    if known := said or commit:
        return replace(pin, sha256=digest(cached.read_bytes()), commit=known)
    raise LayoutError(
        f"{pin.sdist} does not say which llama.cpp it holds",
        "look at vendor/llama.cpp in the tree of that release, and name the commit: --commit ID",
    )


def newest(pin: Pin) -> str:
    """Return the version of the newest release on the index. Raises LayoutError if pip reaches no index."""
    done = _pip("index", "versions", "--no-binary", pin.name, pin.name)
    found = re.search(rf"^{re.escape(pin.name)} \(([\w.]+)\)", done.stdout, re.M)
    if done.returncode != 0 or not found:
        last = "".join((done.stdout + done.stderr).strip().splitlines()[-1:])
        raise LayoutError(f"pip does not say which release is the newest: {last}", "name it: roll VERSION")
    return found[1]


def _download(paths: Paths, pin: Pin, *what: str) -> None:
    print(f"layout: fetching {pin.sdist} with pip, once, into {paths.cache}", flush=True)
    paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache) as fresh:
        # --no-build-isolation: pip asks a source distribution for its metadata even when it is only downloaded.
        # The backend that answers, scikit-build-core, is installed: it is a build requirement of pymtp.
        options = ["--no-deps", "--no-build-isolation", "--no-binary", pin.name]
        done = _pip("download", *options, *what, "--dest", fresh)
        if done.returncode != 0:
            raise _explain(done.stdout + done.stderr, pin, paths)
        os.replace(Path(fresh) / pin.sdist, paths.cache / pin.sdist)


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)


def _explain(output: str, pin: Pin, paths: Paths) -> LayoutError:
    if "No module named pip" in output:
        return LayoutError(f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip, or apt install python3-pip")
    if "DO NOT MATCH THE HASHES" in output:
        got = re.search(r"Got\s+([0-9a-f]{64})", output)
        return LayoutError(
            f"the index gave another {pin.sdist} than the pinned one, and it is not used.\n"
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
    if "(from versions: " in output:
        return LayoutError(f"the index has no {pin.requirement}", f"see its versions: pip index versions {pin.name}")
    last = "".join(output.strip().splitlines()[-1:])
    return LayoutError(f"pip could not fetch {pin.requirement}: {last}", f"see why: pip download {pin.requirement}")
