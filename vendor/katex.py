#!/usr/bin/env python3
"""Lays out KaTeX, which typesets the formulas of the chat page, in pymtp/server/static/katex.

    python vendor/katex.py

The pin is vendor/katex.txt. Needs pip, to fetch the wheel once; otherwise the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sources import LayoutError, Paths, Tree, digest, read_tree, sync

# The script, its style sheet, its fonts in the format that every browser of the last ten years reads, and the licence.
WANTED = re.compile(r"/vendor/katex/(LICENSE|katex\.min\.js|katex\.min\.css|fonts/[\w-]+\.woff2)$")
_PIN = re.compile(r"^(([\w-]+)==([\w.]+)) --hash=sha256:([0-9a-f]{64})$", re.M)


def lay_out(paths: Paths) -> None:
    """Make pymtp/server/static/katex agree with the pin, and write only files whose bytes differ.

    Raises LayoutError if the pin cannot be read, or if the wheel cannot be fetched or has no KaTeX.
    """
    pin = paths.root / "vendor" / "katex.txt"
    target = paths.root / "pymtp" / "server" / "static" / "katex"
    matched = _PIN.search(pin.read_text(encoding="utf-8"))
    if matched is None:
        raise LayoutError(f"{pin} pins no wheel", "write this line into it: 'NAME==VERSION --hash=sha256:HASH'")
    _, name, version, sha256 = matched.groups()
    wheel = paths.cache / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    if not wheel.exists() or digest(wheel.read_bytes()) != sha256:
        _fetch(wheel, matched[0])
    if changed := sync(_read(wheel), target):
        print(f"katex: {changed} of {len(read_tree(target))} files changed", flush=True)


def _fetch(wheel: Path, pinned: str) -> None:
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent) as fresh:
        lines = Path(fresh) / "requirements.txt"
        lines.write_text(pinned, encoding="utf-8")
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(lines), "--dest", fresh]
        done = subprocess.run([sys.executable, "-m", "pip", "download", *options], capture_output=True, text=True)
        if done.returncode != 0:
            last = "".join((done.stdout + done.stderr).strip().splitlines()[-1:])
            raise LayoutError(
                f"pip could not fetch {pinned.split()[0]}: {last}",
                f"check the network and the index (pip config list), or put {wheel.name} into {wheel.parent} by hand",
            )
        os.replace(Path(fresh) / wheel.name, wheel)


def _read(wheel: Path) -> Tree:
    with zipfile.ZipFile(wheel) as archive:
        found = {name: WANTED.search(name) for name in archive.namelist()}
        tree = {match[1]: archive.read(name) for name, match in found.items() if match}
    if "katex.min.js" not in tree or "katex.min.css" not in tree:
        raise LayoutError(f"{wheel} has no KaTeX", "pin a release of the wheel that has vendor/katex/katex.min.js")
    return tree


def main(paths: Paths | None = None) -> int:
    """Lay out KaTeX; return the exit status: 1, with a message on stderr, for an error that the user can fix."""
    try:
        lay_out(paths or Paths.default())
    except (LayoutError, OSError, zipfile.BadZipFile) as error:
        print(f"katex: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
