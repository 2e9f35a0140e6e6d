"""Functions with a gap, in the form of Qwen's tokens for filling in the middle."""

import random

from cases.case import Case
from cases.functions import draw

KIND = "infill"


def make(rng: random.Random) -> Case:
    """Return a case whose answer are some lines of a body, between those before and those after them."""
    written = draw(rng)
    lines = written.source.splitlines(keepends=True)
    first = rng.randint(1, len(lines) - 1)
    after = rng.randint(first + 1, min(first + 2, len(lines)))
    prefix, middle, suffix = ("".join(part) for part in (lines[:first], lines[first:after], lines[after:]))
    prompt = f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"

    def is_right(text: str) -> bool:
        return written.is_right(f"{prefix}{text}{suffix}")

    return Case(KIND, prompt, middle, is_right, prompt=prompt, functions=(written.head,))
