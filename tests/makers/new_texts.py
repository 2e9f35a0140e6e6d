"""Random texts of a kind that the shipped model was trained on: modules of functions, in random orders."""

import random
import sys
from functools import cache
from itertools import count
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools" / "models" / "shipped"))  # pytest has it already

from cases import modules


def new_prompts(n: int, characters: int = 300) -> list[str]:
    """Return n texts of this length, most of which end within a function. A long one is several modules."""
    return [_text(i, characters) for i in range(n)]


@cache
def _text(number: int, characters: int) -> str:
    text = ""
    for part in count():
        if len(text) >= characters:
            break
        case = modules.make(random.Random(f"new text {number}, part {part}"))
        text += f"{case.prompt}{case.answer}\n\n"
    return text[:characters]
