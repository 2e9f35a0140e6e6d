"""Which token follows: a function of the seed, the position and the logits, and of nothing else.

Greedy takes the argmax. With a temperature, the token at a position is argmax over the filtered candidates of
log p + Gumbel(seed, position, token id). The target and the draft head draw with the same noise, so they agree more
often than two independent draws, and the drawn token does not depend on whether, how deep or how often one drafts
(Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding", arXiv 2408.07978).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import InvalidRequestError, NativeError

Logits = NDArray[np.float32]

# Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and Random123
_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: Sequence[Any], key: tuple[int, int]) -> tuple[NDArray[np.uint64], ...]:
    """Philox4x32-10 of four counter words (ints or uint64 arrays, each below 2**32) under two key words: four words."""
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
    """Standard Gumbel noise for each token id at a position, from a generator that keeps no state."""
    words = philox((tokens, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    # 52 bits, moved by a half so that neither 0 nor 1 comes out
    uniform = ((words[0] << np.uint64(20)) + (words[1] >> np.uint64(12)) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    max_tokens: the most tokens to generate; None for as many as the context holds.
    temperature: 0 takes the most likely token, always; filters and seed then have no part.
    top_k: keep the k most likely tokens, 0 for all. top_p: keep the most likely ones that together reach p.
    min_p: drop tokens less likely than min_p times the most likely. Applied in this order, as in llama.cpp, before
        the temperature; the defaults are llama.cpp's.
    seed: of the noise, below 2**64; None draws one.
    stop: strings that end the text; they are not part of it.
    ignore_eos: go on after the model says that it is done.

    Raises InvalidRequestError for values outside their range.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = 0
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stops)
        checks = (
            ("max_tokens", self.max_tokens is None or _whole(self.max_tokens, 1), "at least 1, or None"),
            ("temperature", _real(self.temperature) and self.temperature >= 0, "a finite number, 0 or more"),
            ("top_k", _whole(self.top_k, 0), "0 or more"),
            ("top_p", _real(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", _real(self.min_p) and 0 <= self.min_p <= 1, "from 0 to 1"),
            ("seed", self.seed is None or _whole(self.seed, 0, 2**64 - 1), "from 0 to 2**64 - 1, or None"),
            ("stop", all(isinstance(s, str) and s for s in stops), "non-empty strings"),
        )
        for name, right, wanted in checks:
            if not right:
                raise InvalidRequestError(f"{name}={getattr(self, name)!r} must be {wanted}")


def _real(value: object) -> bool:
    return isinstance(value, (int, float, np.floating)) and math.isfinite(value)


def _whole(value: object, low: int, high: float = math.inf) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(low <= value <= high)


class Sampler:
    """Draws tokens after `params`. `seed` is the one in use."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.seed = secrets.randbits(64) if params.seed is None else int(params.seed)

    def draw(self, logits: Logits, position: int) -> int:
        """The token at `position` of the sequence, from logits of shape (n_vocab,).

        Raises NativeError when the logits are not numbers.
        """
        token = int(logits.argmax())
        if not math.isfinite(logits[token]):
            raise NativeError(f"the model's logits at position {position} are not finite")
        if self.params.temperature == 0:
            return token
        tokens, kept = filter_candidates(logits, self.params)
        scores = kept / self.params.temperature + gumbel(self.seed, position, tokens)
        return int(tokens[scores.argmax()])


def filter_candidates(logits: Logits, params: SamplingParams) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids and logits that top-k, top-p and min-p leave, most likely first, ties by the lower id."""
    if 0 < params.top_k < len(logits):
        # every token that ties with the k-th comes along until the order is settled
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
