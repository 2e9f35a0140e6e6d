"""Carry patches to another base by three-way merges in a git repository, and report the outcome of each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from git_repo import AUTHOR, git, identity, run_git
from hunks import Hunk, read_hunks, read_lines

OLD, NEW, BEFORE = "old-base", "new-base", "before"  # branches: the two releases, and the patches on the old one
RENAME = "20%"  # similarity from which a file counts as moved in the report; git itself merges moved files from 50% on


@dataclass(frozen=True)
class Conflict:
    file: str  # the path in llama.cpp
    line: int  # the line of the conflict's first marker, counted from 1; 0 if the whole file is in conflict
    is_gone: bool  # the new release has no such file
    upstream: tuple[str, ...]  # upstream's changes there: lines of a diff from the old release to the new one

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Outcome:
    patch: str  # the number and subject of the patch
    word: str  # "clean", "merged", "conflict" or "upstream has it"
    note: str
    conflicts: tuple[Conflict, ...] = ()


def carry(work: Path) -> list[Outcome]:
    """Cherry-pick the commits from OLD to BEFORE onto NEW, one by one. HEAD is then detached at the last new
    commit.

    A conflict is resolved in favour of the patch, and a removed file stays removed, so that a conflict of one patch is
    not reported again for each patch that builds on it.
    """
    git(work, "checkout", "--quiet", "--detach", NEW)
    moves = _moves(work)
    commits = git(work, "rev-list", "--reverse", f"{OLD}..{BEFORE}").split()
    return [_carry_one(work, number, commit, moves) for number, commit in enumerate(commits, start=1)]


def _carry_one(work: Path, number: int, commit: str, moves: dict[str, str]) -> Outcome:
    patch = f"{number:04} {git(work, 'show', '--no-patch', '--format=%s', commit).strip()}"
    hunks = _hunks(work, commit)
    is_in_place = all(hunk.is_at_its_lines(read_lines(work / hunk.file)) for hunk in hunks)
    run_git(work, "cherry-pick", "--no-commit", commit)
    conflicts = tuple(found for file, gone in _unmerged(work) for found in _conflicts(work, file, gone, moves))
    if conflicts:
        git(work, "reset", "--hard", "--quiet")
        run_git(work, "cherry-pick", "--no-commit", "-Xtheirs", commit)
        for file, _ in _unmerged(work):
            git(work, "rm", "--quiet", "--force", "--", file)
    changes = run_git(work, "diff", "--cached", "--quiet", "HEAD").returncode != 0
    if changes:
        options = ("--quiet", "--no-verify", "--cleanup=verbatim", f"--reuse-message={commit}")
        git(work, "commit", *options, env=identity(AUTHOR))
    if conflicts:
        return Outcome(patch, "conflict", " ".join(conflict.place for conflict in conflicts), conflicts)
    if not changes:
        return Outcome(patch, "upstream has it", "")
    return Outcome(patch, "clean" if is_in_place else "merged", _describe_merge(hunks, _hunks(work, "HEAD")))


def _hunks(work: Path, commit: str) -> list[Hunk]:
    shape = ("-r", "-p", "--unified=3", "--no-commit-id", "--no-renames")
    return list(read_hunks(git(work, "diff-tree", *shape, commit)))


def _describe_merge(before: list[Hunk], after: list[Hunk]) -> str:
    """Describe a merge without conflicts: the places where upstream's lines changed."""
    notes = []
    has, had = (sum(hunk.changed for hunk in hunks) for hunks in (after, before))
    if has < had:
        notes.append(f"upstream has {had - has} of its {had} lines")
    known = {hunk.lines for hunk in before}
    changed = [f"{hunk.file}:{hunk.lands}" for hunk in after if hunk.lines not in known]
    if changed:
        notes.append(f"other lines around it: {' '.join(changed)}")
    elif {hunk.file for hunk in after} - {hunk.file for hunk in before}:
        notes.append("in another file")
    elif {(hunk.file, hunk.start) for hunk in after} - {(hunk.file, hunk.start) for hunk in before}:
        notes.append("at other lines")
    return "; ".join(notes)


# ── conflicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _unmerged(work: Path) -> list[tuple[str, bool]]:
    """Return the path of each file in conflict, and whether the new release has no such file."""
    stages: dict[str, set[str]] = {}
    for entry in filter(None, git(work, "ls-files", "--unmerged", "-z").split("\0")):
        facts, _, file = entry.partition("\t")
        stages.setdefault(file, set()).add(facts.split()[2])
    return [(file, found == {"1", "3"}) for file, found in stages.items()]


def _conflicts(work: Path, file: str, is_gone: bool, moves: dict[str, str]) -> Iterator[Conflict]:
    if is_gone:
        yield Conflict(file, 0, True, (moves[file],) if file in moves else ())
        return
    lines = read_lines(work / file)
    starts = [at for at, line in enumerate(lines) if line.startswith("<<<<<<< ")]
    for at in starts:
        yield Conflict(file, at + 1, False, tuple(_upstream(lines[at:])))
    if not starts:
        yield Conflict(file, 0, False, ("no lines in conflict: git status shows the reason",))


def _upstream(lines: list[str]) -> Iterator[str]:
    """Yield upstream's changes in the conflict at the start of `lines`: new, old and patched lines between markers."""
    ends = [at for at, line in enumerate(lines) if re.match(r"\|{7}|={7}$", line)]
    new, old = lines[1 : ends[0]], lines[ends[0] + 1 : ends[1]]
    for line in list(difflib.unified_diff(old, new, n=2, lineterm=""))[3:]:  # after the file names and the first "@@"
        yield "…" if line.startswith("@@") else line


def _moves(work: Path) -> dict[str, str]:
    """Map files of the old release that have moved in the new one to a sentence with the new path."""
    fields = ("diff-tree", "-r", "-z", "--name-status", f"--find-renames={RENAME}", "--diff-filter=R", OLD, NEW)
    entries = git(work, *fields).split("\0")
    moves = zip(entries[::3], entries[1::3], entries[2::3], strict=False)
    return {old: f"it is {new} now, {int(alike[1:])}% alike" for alike, old, new in moves}
