"""The text that the shipped model learned from: Python's standard library, split into training and held-out files.

The split is by a hash of the file's path, so that every machine and Python version holds out the same modules.
Tests take their prompts from the held-out side only.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from pymtp.bench.corpus import stdlib_files

_HELD_OUT_SHARE = 16  # one file in 16


def is_held_out(path: Path) -> bool:
    """Return whether training never saw `path`."""
    relative = path.relative_to(_stdlib()).as_posix()
    return hashlib.sha256(relative.encode()).digest()[0] % _HELD_OUT_SHARE == 0


@cache
def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def documents(*, held_out: bool) -> Iterator[str]:
    """Yield the source text of each file on one side of the split."""
    for path in stdlib_files():
        if is_held_out(path) == held_out:
            yield path.read_text(encoding="utf-8", errors="ignore")


def held_out_prompts(n: int, characters: int = 300) -> list[str]:
    """Return n pieces of held-out text, one from the middle of each file.

    For more pieces than files, a file gives several, evenly spread.
    """
    texts = _long_held_out_texts()
    if not texts:
        raise ValueError("this Python comes without the source of its standard library")
    turns = -(-n // len(texts))
    pieces = (text[len(text) * (2 * turn + 1) // (2 * turns) :][:characters] for turn in range(turns) for text in texts)
    return list(islice(pieces, n))


@cache
def _long_held_out_texts() -> list[str]:
    """Read the texts once: many tests ask for prompts."""
    return [text for text in documents(held_out=True) if len(text) > 3000]
