"""What a sequence of a context holds, saved and loaded in pieces."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np

from helpers.moments import SAMPLED
from pymtp.context.context import Context
from pymtp.context.state import Bytes

Saved = tuple[list[int], list[Bytes], Bytes]  # tokens, K and V in pieces, state


def cut(n: int, seed: float) -> list[tuple[int, int]]:
    """Places of n tokens in pieces: first and how many."""
    pick = random.Random(seed)
    places = sorted(pick.sample(range(1, n), min(n - 1, pick.randint(0, 4))))
    return [(first, end - first) for first, end in pairwise([0, *places, n])]


def save(c: Context, seq: int, seed: int = 0) -> Saved:
    """In pieces, which the sequence may be read out in by any order."""
    tokens = c.tokens(seq)
    places = cut(len(tokens), seed)
    pieces = {place: c.save_cells(seq, *place) for place in reversed(places)}
    return tokens, [pieces[place] for place in places], c.save_state(seq)


def load(c: Context, seq: int, saved: Saved, seed: int = 1) -> None:
    """In other pieces than those that were saved."""
    tokens, pieces, state = saved
    joined = np.concatenate(pieces)
    places = cut(len(tokens), seed)
    half = len(places) // 2
    for some in (places[:half], places[half:]):
        if some:
            c.load_cells(seq, some[0][0], [joined[first : first + n] for first, n in some])
    c.load_state(seq, tokens, state)


def seq_that(c: Context, seq: int, saved: Saved) -> int:
    c.clear(seq)
    c.set_sampling(SAMPLED, seq)
    load(c, seq, saved, seed=seq)
    return seq
