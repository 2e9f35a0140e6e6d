"""Parse the hunks of a patch, and check that each can be applied at only one place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sources import LayoutError

# The default of `git diff`. With one line of context, a hunk that matches one place in this release of llama.cpp may
# match another place in the next release, and be applied there silently.
MIN_CONTEXT = 3

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Hunk:
    file: str
    header: str
    start: int  # the first line in the old file, counted from 1; 0 if the patch creates the file
    lands: int  # the first line in the new file, counted from 1
    lines: tuple[str, ...]  # each with " ", "-" or "+" before it

    @property
    def old(self) -> list[str]:
        return [line[1:] for line in self.lines if not line.startswith("+")]

    @property
    def first(self) -> int:
        """Return the first line in the old file, counted from 0."""
        return max(self.start - 1, 0)

    @property
    def changed(self) -> int:
        """Return the number of added and removed lines."""
        return sum(not line.startswith(" ") for line in self.lines)

    def is_at_its_lines(self, before: Sequence[str]) -> bool:
        return list(before[self.first : self.first + len(self.old)]) == self.old

    def places(self, before: Sequence[str]) -> list[int]:
        """Return the lines of a file, counted from 1, where the old lines of the hunk occur."""
        old = self.old
        return [at + 1 for at in range(len(before) - len(old) + 1) if before[at : at + len(old)] == old]

    def has_context(self, before: Sequence[str]) -> bool:
        """Tell whether MIN_CONTEXT lines surround the change, or the file begins or ends there."""
        begins, ends = self.first == 0, self.first + len(self.old) >= len(before)
        leading, trailing = _context(self.lines), _context(self.lines[::-1])
        return (begins or leading >= MIN_CONTEXT) and (ends or trailing >= MIN_CONTEXT)


def _context(lines: Sequence[str]) -> int:
    """Count the unchanged lines at the beginning of `lines`."""
    return next((n for n, line in enumerate(lines) if not line.startswith(" ")), len(lines))


def read_hunks(diff: str) -> Iterator[Hunk]:
    """Yield the hunks of a patch or a diff, in order."""
    lines = iter(diff.split("\n"))
    file = ""
    for line in lines:
        if line.startswith(("--- a/", "+++ b/")):
            file = line[6:]
        elif header := _HEADER.match(line):
            start, olds, lands, news = (int(number or 1) for number in header.groups())
            body: list[str] = []
            while olds > 0 or news > 0:
                line = next(lines, "") or " "  # an editor may have removed the blank of an empty line
                if line.startswith("\\"):  # "\ No newline at end of file"
                    continue
                olds -= not line.startswith("+")
                news -= not line.startswith("-")
                body.append(line)
            yield Hunk(file, header[0], start, lands, tuple(body))


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file; none for a missing file."""
    return split_lines(file.read_bytes().decode("utf-8", "surrogateescape")) if file.is_file() else []


def split_lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def refuse_moved(directory: Path, patch: Path) -> None:
    """Raise LayoutError unless the old lines of each hunk are in `directory` at the line numbers of the hunk."""
    for hunk in read_hunks(patch.read_text(encoding="utf-8")):
        before = read_lines(directory / hunk.file)
        if hunk.is_at_its_lines(before):
            continue
        where = f"patches/{patch.name} does not apply: {hunk.file}, hunk {hunk.header}"
        if places := hunk.places(before):
            raise LayoutError(
                f"{where}: its lines are at {', '.join(map(str, places))}",
                "python vendor/layout.py edit && python vendor/layout.py write, and check where it is now",
            )
        raise LayoutError(
            where, "python vendor/layout.py edit (it stops at the patch that does not apply, and says how to go on)"
        )


def refuse_thin(directory: Path, patch: Path) -> None:
    """Raise LayoutError if a hunk of `patch` has fewer lines of context than MIN_CONTEXT."""
    for hunk in read_hunks(patch.read_text(encoding="utf-8")):
        if not hunk.has_context(read_lines(directory / hunk.file)):
            raise LayoutError(
                f"patches/{patch.name} has fewer than {MIN_CONTEXT} lines of context: {hunk.file}, hunk {hunk.header}",
                "python vendor/layout.py edit && python vendor/layout.py write",
            )
