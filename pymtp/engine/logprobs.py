"""Log-probabilities of tokens that are given, not sampled: those of prompts, and those that close the thinking."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np

from pymtp.sampling import Logits, TokenLogprobs


def echo_logprobs(prompt: Sequence[int], logprobs: Sequence[TokenLogprobs | None] | None) -> list[TokenLogprobs]:
    """Return the log-probabilities of a prompt that a response repeats: NaN for the first token. Empty without them."""
    pairs = zip(prompt, logprobs or (), strict=False)
    return [TokenLogprobs(token, nan, ()) if one is None else one for token, one in pairs]


def logprobs_of(row: Logits, token: int, n_top: int) -> TokenLogprobs:
    """Return the log-probabilities of a row of logits, in the format of the native sampler, for a given token."""
    largest = row.max()
    normalizer = np.float64(largest) + np.log(np.exp(row.astype(np.float64) - largest).sum())
    top: list[int] = []
    if n_top := min(n_top, len(row)):
        candidates = np.flatnonzero(row >= np.partition(row, -n_top)[-n_top])  # in the order of their ids
        top = candidates[np.argsort(-row[candidates], kind="stable")][:n_top].tolist()
    return TokenLogprobs(token, float(row[token] - normalizer), tuple((i, float(row[i] - normalizer)) for i in top))
