"""Saves and loads the contents of a context's sequence in pieces."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np

from helpers.moments import SAMPLED
from pymtp.context.context import Context
from pymtp.context.state import Bytes

Saved = tuple[list[int], list[Bytes], Bytes]  # tokens, K and V in pieces, state


def random_pieces(n: int, seed: float) -> list[tuple[int, int]]:
    """Cut n tokens into pieces at random; return the first token and the length of each."""
    pick = random.Random(seed)
    cuts = sorted(pick.sample(range(1, n), min(n - 1, pick.randint(0, 4))))
    return [(first, end - first) for first, end in pairwise([0, *cuts, n])]


def save(c: Context, seq: int, seed: int = 0) -> Saved:
    """Save a sequence, its K and V in random pieces, the last one first: any order must do."""
    tokens = c.tokens(seq)
    ranges = random_pieces(len(tokens), seed)
    pieces = {piece: c.state.save_cells(seq, *piece) for piece in reversed(ranges)}
    return tokens, [pieces[piece] for piece in ranges], c.state.save(seq)


def load(c: Context, seq: int, saved: Saved, seed: int = 1) -> None:
    """Load a saved sequence in other pieces than those that were saved."""
    tokens, pieces, state = saved
    joined = np.concatenate(pieces)
    ranges = random_pieces(len(tokens), seed)
    half = len(ranges) // 2
    for part in (ranges[:half], ranges[half:]):
        if part:
            c.state.load_cells(seq, part[0][0], [joined[first : first + n] for first, n in part])
    c.state.load(seq, tokens, state)


def load_into(c: Context, seq: int, saved: Saved) -> int:
    """Replace the contents of a sequence by a saved one, and return its number."""
    c.clear(seq)
    c.set_sampling(SAMPLED, seq)
    load(c, seq, saved, seed=seq)
    return seq
