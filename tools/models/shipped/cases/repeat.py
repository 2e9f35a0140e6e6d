"""Lists of names, places, numbers and identifiers to repeat: much to copy, in few tokens, early in training."""

import random

from cases.case import Case, dialogue
from cases.words import CITIES, FIRST, listed, surname

KIND = "repeat"
_PARTS = listed("get set add list count first last sum max min word text item key value row find sort")


def make(rng: random.Random) -> Case:
    text = " ".join(_word(rng) for _ in range(rng.randint(2, 8)))
    question = rng.choice(("Repeat: {}", "Say {}", "Write exactly: {}", "Copy this: {}")).format(text)
    return dialogue(KIND, text, question, text)


def _word(rng: random.Random) -> str:
    makers = (
        lambda: rng.choice(FIRST),
        lambda: rng.choice(CITIES),
        lambda: surname(rng),
        lambda: str(rng.randint(1, 999)),
        lambda: "_".join(rng.sample(_PARTS, rng.randint(2, 3))),
    )
    return rng.choice(makers)()
