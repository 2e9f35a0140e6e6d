"""Completion of options' values in a shell: fixed words, and GGUF files."""

from __future__ import annotations

import os
from typing import Any


def choice(*words: str, other: str = "") -> dict[str, Any]:
    """Return the keywords of typer.Option for an option whose values are fixed words: its metavar and its completion.

    other: how the help page shows further values, such as "N"; "" without them.
    """
    return {"metavar": "|".join(filter(None, [*words, other])), "autocompletion": lambda: list(words)}


def complete_gguf(incomplete: str) -> list[str]:
    """Return the folders and the GGUF files whose paths begin with `incomplete`.

    A folder that is the only match is followed by its entries: a shell would put a space after a single match.
    """
    folder, start = os.path.split(incomplete)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            names = sorted(
                entry.name + (os.sep if entry.is_dir() else "")
                for entry in entries
                if entry.name.startswith(start) and (start or not entry.name.startswith("."))
            )
    except OSError:  # there is no such folder
        return []
    found = [os.path.join(folder, name) for name in names if name.endswith((os.sep, ".gguf"))]
    return found + complete_gguf(found[0]) if len(found) == 1 and found[0].endswith(os.sep) else found
