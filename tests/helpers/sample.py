"""A reference of sampling in NumPy: pymtp/native/runtime/sampler.cpp is tested against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.sampling import Logits, SamplingParams

# Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and Random123
_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: Sequence[Any], key: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """Return four words: Philox4x32-10 of four counter words (ints or uint64 arrays below 2**32) and two key words."""
    c = [np.asarray(word, dtype=np.uint64) for word in counter]
    k = list(key)
    for _ in range(_ROUNDS):
        a, b = c[0] * _MULTIPLIER[0], c[2] * _MULTIPLIER[1]
        c = [
            (b >> _HALF) ^ c[1] ^ np.uint64(k[0]),
            b & _LOW,
            (a >> _HALF) ^ c[3] ^ np.uint64(k[1]),
            a & _LOW,
        ]
        k = [(word + weyl) & 0xFFFFFFFF for word, weyl in zip(k, _WEYL, strict=True)]
    return tuple(c)


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return standard Gumbel noise for each token id at a position, from a stateless generator."""
    words = philox((tokens, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    # 52 bits plus a half, so that the result is neither 0 nor 1
    uniform = ((words[0] << np.uint64(20)) + (words[1] >> np.uint64(12)) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def filter_candidates(logits: Logits, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the token ids and logits that top-k, top-p and min-p keep, most likely first, ties by the lower id."""
    if 0 < params.top_k < len(logits):
        # all tokens that tie with the k-th stay until the sort
        least = np.partition(logits, -params.top_k)[-params.top_k]
        tokens = np.flatnonzero(logits >= least)
    else:
        tokens = np.arange(len(logits))
    kept = logits[tokens].astype(np.float64)
    order = np.argsort(-kept, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    tokens, kept = tokens[order], kept[order]

    weights = np.exp(kept - kept[0])
    n = len(kept)
    if params.top_p < 1:
        total = weights.cumsum()
        n = int(np.searchsorted(total, params.top_p * total[-1])) + 1
    if params.min_p > 0:
        n = min(n, int(np.count_nonzero(weights >= params.min_p)))
    return tokens[:n].astype(np.int64), kept[:n]


def penalize(logits: Logits, params: SamplingParams, before: Sequence[int]) -> Logits:
    """Return the logits after bias and penalties, as llama.cpp defines them."""
    out = logits.astype(np.float32).copy()
    for token, bias in params.logit_bias.items():
        out[token] += np.float32(bias)
    last = len(before) if params.penalty_last_n < 0 else params.penalty_last_n
    for token, count in Counter(before[len(before) - min(last, len(before)) :]).items():
        repetition = np.float32(params.repetition_penalty)
        out[token] = out[token] * repetition if out[token] <= 0 else out[token] / repetition
        out[token] -= np.float32(count) * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)
    return out


def sample(logits: Logits, position: int, params: SamplingParams, before: Sequence[int] = ()) -> int:
    """Return the token at `position`."""
    logits = penalize(logits, params, before)
    if params.temperature == 0:
        return int(logits.argmax())
    tokens, kept = filter_candidates(logits, params)
    assert params.seed is not None
    scores = kept / params.temperature + gumbel(params.seed, position, tokens)
    return int(tokens[scores.argmax()])
