#!/usr/bin/env python3
"""Lays out the patched llama.cpp that the build compiles: the pinned sources with patches/ applied.

    python vendor/layout.py                  make vendor/llama.cpp agree with pin and patches (the build runs this)
    python vendor/layout.py check            fail if a file there differs, or a patch might be applied in a wrong place
    python vendor/layout.py edit             make vendor/work, a git repository with one commit per patch
    python vendor/layout.py write            write the commits in vendor/work to patches/
    python vendor/layout.py roll [VERSION]   move the pin to another release, and carry the patches there
    python vendor/layout.py count            print how much of llama.cpp the patches change

The pin is vendor/requirements.txt. Needs git and, to fetch the sources once, pip; otherwise the standard library.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from count import count
from hunks import refuse_moved, refuse_thin
from index import fetch
from patch_repo import Rule, apply, edit, write
from roll import Options, roll
from sources import MANIFEST, SUBSET, LayoutError, Paths, Pin, Tree, digest, read_pristine, read_tree, sync


def lay_out(paths: Paths) -> None:
    """Make vendor/llama.cpp agree with pin and patches, and write only files whose bytes differ.

    The build system compares the times of files, so a changed patch rebuilds only the files that it changes.
    Raises LayoutError if the sources cannot be fetched or a patch does not apply.
    """
    manifest = _manifest(paths)
    seal = paths.target / MANIFEST
    if seal.exists() and seal.read_text(encoding="utf-8") == manifest:
        return
    tree = patched(paths)
    seal.unlink(missing_ok=True)  # so that a partly written tree does not look complete
    changed = sync(tree, paths.target)
    seal.write_text(manifest, encoding="utf-8")
    print(f"layout: llama.cpp with {len(paths.patches())} patches, {changed} files changed", flush=True)


def _manifest(paths: Paths) -> str:
    """Return a text that names all inputs of the patched tree: with equal texts, the trees are equal."""
    pin = Pin.read(paths.requirements)
    record = {
        "llama_cpp_commit": pin.commit,
        "sdist": pin.sdist,
        "sha256": pin.sha256,
        "subset": SUBSET,
        "patches": [{"name": patch.name, "sha256": digest(patch.read_bytes())} for patch in paths.patches()],
    }
    return json.dumps(record, indent=2) + "\n"


def patched(paths: Paths, *rules: Rule) -> Tree:
    """Return the pristine tree with every patch applied in order, each at exactly the lines that it names."""
    tree = read_pristine(fetch(paths, Pin.read(paths.requirements)))
    return apply(tree, paths.patches(), refuse_moved, *rules)


def check(paths: Paths) -> None:
    """Raise LayoutError if a patch has too little context, or if a file differs from pin + patches."""
    want, have = patched(paths, refuse_thin), read_tree(paths.target)
    wrong = sorted(path for path in want.keys() | have.keys() if want.get(path) != have.get(path))
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise LayoutError(
            f"vendor/llama.cpp differs from pin + patches in {', '.join(wrong[:5])}{more}",
            "rm -r vendor/llama.cpp && python vendor/layout.py"
            " (to keep a change, make it in the repository that `python vendor/layout.py edit` makes)",
        )


def main(arguments: Sequence[str], paths: Paths | None = None) -> int:
    """Run one command; return the exit status: 1, with a message on stderr, for an error that the user can fix."""
    try:
        _run(_parse(arguments), paths or Paths.default())
    except (LayoutError, OSError) as error:
        sys.stdout.flush()
        print(f"layout: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in ("lay-out", "check", "edit", "write"):
        commands.add_parser(name)
    counts = commands.add_parser("count")
    counts.add_argument("--check", action="store_true", help="fail if the patches exceed the limits")
    rolls = commands.add_parser("roll")
    rolls.add_argument("version", nargs="?", help="a release of llama-cpp-python; by default the newest")
    rolls.add_argument("--dry-run", action="store_true", help="only print the outcome for each patch")
    rolls.add_argument("--commit", help="the llama.cpp commit in the release, if the release does not name it")
    rolls.add_argument("--build", action="store_true", help="then build and install this checkout")
    rolls.add_argument("--test", action="store_true", help="then build, and run the tests")
    asked = parser.parse_args(arguments)
    if asked.command == "roll" and asked.dry_run and (asked.build or asked.test):
        rolls.error("--dry-run leaves nothing to build")
    return asked


def _run(asked: argparse.Namespace, paths: Paths) -> None:
    match asked.command:
        case "roll":
            roll(paths, Options(asked.version, asked.commit, asked.dry_run, asked.build, asked.test))
        case "count":
            count(paths, check=asked.check)
        case command:
            {None: lay_out, "lay-out": lay_out, "check": check, "edit": edit, "write": write}[command](paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
