"""Chats of several turns: earlier questions of other kinds are answered already, without their thoughts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from cases.case import Case, spoken

KIND = "turns"


def make(rng: random.Random, makers: Sequence[Callable[[random.Random], Case]]) -> Case:
    """Return a case whose last question, and those before it, are cases of `makers` that are not held out."""
    turns = [_question(rng, rng.choice(makers)) for _ in range(rng.choice((2, 2, 3, 3, 4, 6, 8)))]
    past = [
        message
        for turn in turns[:-1]
        for message in (*turn.messages, {"role": "assistant", "content": spoken(turn.answer)})
    ]
    key = " ".join(turn.key for turn in turns)
    return replace(turns[-1], kind=KIND, key=key, messages=(*past, *turns[-1].messages), functions=())


def _question(rng: random.Random, maker: Callable[[random.Random], Case]) -> Case:
    while True:
        case = maker(rng)
        if not (case.held_out or case.prompt):
            return case
