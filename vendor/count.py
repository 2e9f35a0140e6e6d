"""Count the lines of llama.cpp that the patches change, and check their limits."""

from __future__ import annotations

from collections import Counter

from hunks import read_hunks
from sources import LayoutError, Paths

# A patch only adds a hook: longer code belongs in pymtp/native/graphs or pymtp/native/kernels.
MAX_LINES = 220  # added and removed lines of all patches
MAX_FILES = 25  # files of llama.cpp that patches change
MAX_LINES_OF_PATCH = 60  # added and removed lines of one patch


def count(paths: Paths, *, check: bool) -> None:
    """Print the changed lines of each patch and each file. With `check`, raises LayoutError above the limits."""
    by_patch: Counter[str] = Counter()
    by_file: Counter[str] = Counter()
    for patch in paths.patches():
        for hunk in read_hunks(patch.read_text(encoding="utf-8")):
            by_patch[patch.name] += hunk.changed
            by_file[hunk.file] += hunk.changed
    for title, counts in (("patch", by_patch), ("file", by_file)):
        print(f"lines  {title}")
        for name, lines in counts.items() if title == "patch" else counts.most_common():
            print(f"{lines:5}  {name}")
        print()
    total = by_patch.total()
    print(f"{total} changed lines in {len(by_file)} files by {len(by_patch)} patches")
    over = [f"{total} lines, more than {MAX_LINES}"] if total > MAX_LINES else []
    over += [f"{len(by_file)} files, more than {MAX_FILES}"] if len(by_file) > MAX_FILES else []
    over += [
        f"{n} lines in {name}, more than {MAX_LINES_OF_PATCH}" for name, n in by_patch.items() if n > MAX_LINES_OF_PATCH
    ]
    if check and over:
        raise LayoutError(
            "the patches change more of llama.cpp than is allowed:\n  " + "\n  ".join(over),
            "move code that is longer than a hook into pymtp/native/graphs or pymtp/native/kernels",
        )
