"""Move the pin to another release of llama-cpp-python, and carry the patches there."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trial
from carry import BEFORE, NEW, OLD, Conflict, Outcome, carry
from git_repo import AUTHOR, commit_tree, create, git, identity, run_git
from index import fetch, fetch_release, newest
from patch_repo import commit_patches, refuse_work, rolled_message, write
from rewritten import rewritten_changes
from sources import LayoutError, Paths, Pin, Tree, missing, read_pristine

LLAMA_CPP = ["vendor", "llama.cpp"]
SHOWN_LINES = 30  # lines of upstream's changes per conflict and rewritten function


@dataclass(frozen=True)
class Options:
    version: str | None = None  # the release; None for the newest
    commit: str | None = None  # the llama.cpp commit in the release, if the release does not name it
    dry_run: bool = False  # only print the outcome of each patch
    build: bool = False  # then build and install the checkout
    test: bool = False  # then build, and run the tests


def roll(paths: Paths, options: Options) -> None:
    """Carry the patches to another release, print the outcome of each, and write patches and pin.

    Raises LayoutError, after the table, if conflicts must be resolved by hand. Patches and pin are then unchanged, and
    `paths.work` is in the middle of a rebase, which stops at each conflict.
    """
    clock = time.monotonic()
    old = Pin.read(paths.requirements)
    version = options.version or newest(old)
    if version == old.version:
        print(f"layout: {old.requirement} is the pin already")
        return
    if not options.dry_run:
        refuse_work(paths.work)
    new = fetch_release(paths, old, version, options.commit)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve() / "work"
        pristine = _prepare(paths, work, old, new)
        outcomes = carry(work)
        report(old, new, outcomes, missing(pristine), paths.cache / new.sdist)
        for sentence, diff in rewritten_changes(read_pristine(fetch(paths, old)), pristine):
            print(f"{sentence}, - {old.version}, + {new.version}\n")
            _print_lines(diff)
        words = Counter(outcome.word for outcome in outcomes)
        told = ", ".join(f"{words[word]} {word}" for word in ("clean", "merged", "conflict", "upstream has it"))
        print(
            f"{old.requirement} ({old.commit}) to {new.version} ({new.commit}): {told}; {_minutes(clock)}", flush=True
        )
        if not options.dry_run:
            shutil.move(work, paths.work)
    _finish(paths, outcomes, new, options)
    if lacks := missing(pristine):
        raise LayoutError(
            f"{new.requirement} has no {', '.join(lacks)}",
            "find the replacement, and name it in SUBSET of vendor/sources.py and in CMakeLists.txt",
        )
    if options.build or options.test:
        _try(paths, options)


def _prepare(paths: Paths, work: Path, old: Pin, new: Pin) -> Tree:
    """Make a repository with both releases, and with the patches on the old one; return the new release's files."""
    pristine = read_pristine(paths.cache / new.sdist)
    create(work)
    commit_tree(work, OLD, read_pristine(fetch(paths, old)), f"llama.cpp {old.commit}\n\nAs in {old.sdist}.\n")
    commit_tree(work, NEW, pristine, rolled_message(old, new))
    git(work, "checkout", "--quiet", "-b", BEFORE, OLD)
    commit_patches(work, paths.patches())
    return pristine


def _finish(paths: Paths, outcomes: Sequence[Outcome], new: Pin, options: Options) -> None:
    """Write patches and pin. With conflicts, start a rebase that stops at each, and raise LayoutError."""
    numbers = [outcome.patch[:4] for outcome in outcomes if outcome.conflicts]
    wrong = f"{len(numbers)} of {len(outcomes)} patches have conflicts: {' '.join(numbers)}"
    if options.dry_run:
        if numbers:
            raise LayoutError(wrong, f"python vendor/layout.py roll {new.version}, which says how to resolve them")
    elif not numbers:
        git(paths.work, "checkout", "--quiet", "-B", "main")
        write(paths)
    else:
        git(paths.work, "checkout", "--quiet", "-B", "main", BEFORE)
        run_git(paths.work, "rebase", "--quiet", "--onto", NEW, OLD, "main", env=identity(AUTHOR))
        raise LayoutError(
            f"{wrong}\n  {paths.work} is a rebase that stopped at the first of them.", _NEXT_STEPS.format(paths=paths)
        )


_NEXT_STEPS = """
    cd {paths.work}
    git status                                 # lists the files in conflict: resolve them
    git add -A && git rebase --continue        # on to the next conflict (without this patch: git rebase --skip)
    cd {paths.root}
    python vendor/layout.py write              # at the end: writes patches and pin
  To give up: rm -rf {paths.work}; patches and pin are unchanged. More: docs/developers/rolling.md"""


def _try(paths: Paths, options: Options) -> None:
    clock = time.monotonic()
    trial.build(paths.root)
    print(f"layout: it builds; {_minutes(clock)}", flush=True)
    if options.test:
        clock = time.monotonic()
        trial.test(paths.root)
        print(f"layout: the tests pass; {_minutes(clock)}", flush=True)


def _minutes(since: float) -> str:
    return f"{(time.monotonic() - since) / 60:.1f} minutes"


# ── report ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def report(old: Pin, new: Pin, outcomes: Sequence[Outcome], lacks: Sequence[str], sdist: Path) -> None:
    """Print a line for each patch, then upstream's changes for each conflict and each missing file."""
    width = max((len(outcome.patch) for outcome in outcomes), default=0)
    for outcome in outcomes:
        print(f"{outcome.patch:{width}}  {outcome.word:15}  {outcome.note}".rstrip())
    print()
    gone = [conflict for outcome in outcomes for conflict in outcome.conflicts if conflict.is_gone]
    names = _names(sdist) if gone or lacks else []
    for outcome in outcomes:
        if outcome.conflicts:
            print(f"{outcome.patch}: upstream's lines there, - {old.version}, + {new.version}\n")
        for conflict in outcome.conflicts:
            _print_conflict(conflict, new, names)
    for entry in lacks:
        print(f"{entry} is not in {new.version}, and the build reads it; {_elsewhere(entry, names)}\n")


def _print_conflict(conflict: Conflict, new: Pin, names: Sequence[str]) -> None:
    print(f"  {conflict.place}")
    told = conflict.upstream
    if conflict.is_gone:
        told = (f"is not in {new.version}", *(told or [_elsewhere(conflict.file, names)]))
    _print_lines(told)


def _print_lines(lines: Sequence[str]) -> None:
    print("\n".join(f"    {line}".rstrip() for line in lines[:SHOWN_LINES]))
    if more := lines[SHOWN_LINES:]:
        print(f"    … {len(more)} more lines")
    print()


def _elsewhere(file: str, names: Sequence[str]) -> str:
    same = [name for name in names if name.rpartition("/")[2] == file.rpartition("/")[2]]
    return f"files with that name: {' '.join(same)}" if same else "no file has that name"


def _names(sdist: Path) -> list[str]:
    """List all files of llama.cpp in a source distribution, also those that the build does not read."""
    with tarfile.open(sdist) as archive:
        parts = (member.name.split("/", 3) for member in archive)
        return [path for _, *project, path in (part for part in parts if len(part) == 4) if project == LLAMA_CPP]
