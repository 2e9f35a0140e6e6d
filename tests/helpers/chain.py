"""A reference of orders of samplers in NumPy: pymtp/native/runtime/sampler_chain.cpp is tested against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.sample import gumbel, penalize, philox
from pymtp.samplers import SAMPLERS
from pymtp.sampling import Logits, SamplingParams

Row = NDArray[np.float64]  # a logit for each token, -inf for those that were dropped


def softmax(row: Row) -> Row:
    weights = np.exp(row - row.max())
    return np.asarray(weights / weights.sum())


def entropy(row: Row) -> float:
    p = softmax(row)
    return -float(np.sum(p[p > 0] * np.log(p[p > 0])))


def likeliest(row: Row) -> NDArray[np.int64]:
    """Return the tokens that remain, most likely first, ties by the lower id."""
    order = np.argsort(-row, kind="stable")
    return order[row[order] > -np.inf]


def keep(row: Row, tokens: Any) -> Row:
    out = np.full_like(row, -np.inf)
    out[tokens] = row[tokens]
    return out


def dry(row: Row, params: SamplingParams, before: Sequence[int]) -> Row:
    """Penalize by comparing the end of the text with the text before each token, one token after the other."""
    n = len(before) if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
    text = list(before[max(0, len(before) - n) :])
    longest: dict[int, int] = {}
    for i in range(1, len(text)):
        length = 0
        while length < i and text[i - 1 - length] == text[-1 - length]:
            length += 1
        if length >= params.dry_allowed_length:
            longest[text[i]] = max(longest.get(text[i], 0), length)
    out = row.copy()
    if len(text) > params.dry_allowed_length:
        for token, length in longest.items():
            out[token] -= params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
    return out


def top_n_sigma(row: Row, params: SamplingParams) -> Row:
    known = row[row > -np.inf]
    return keep(row, row >= known.max() - params.top_n_sigma * known.std())


def typical_p(row: Row, params: SamplingParams) -> Row:
    tokens = likeliest(row)
    p = softmax(row)[tokens]
    order = np.argsort(np.abs(-np.log(p) - entropy(row)), kind="stable")
    n = int(np.count_nonzero(p[order].cumsum() <= params.typical_p)) + 1
    return keep(row, tokens[order[:n]])


def top_p(row: Row, params: SamplingParams) -> Row:
    tokens = likeliest(row)
    n = int(np.count_nonzero(softmax(row)[tokens].cumsum() < params.top_p)) + 1
    return keep(row, tokens[:n])


def xtc(row: Row, params: SamplingParams, position: int) -> Row:
    seed = params.seed or 0
    words = philox((0, position, 1, 0), (seed & 0xFFFFFFFF, seed >> 32))
    draw = ((int(words[0]) << 20) + (int(words[1]) >> 12) + 0.5) * 2.0**-52
    choices = [token for token in likeliest(row) if softmax(row)[token] >= params.xtc_threshold]
    out = row.copy()
    if draw < params.xtc_probability:
        out[choices[:-1]] = -np.inf
    return out


def temperature(row: Row, params: SamplingParams) -> Row:
    value, n = params.temperature, len(likeliest(row))
    if params.dynatemp_range > 0:
        low, high = max(0.0, value - params.dynatemp_range), value + params.dynatemp_range
        value = 1.0 if n == 1 else low + (high - low) * (entropy(row) / np.log(n)) ** params.dynatemp_exponent
    return row / value if value > 0 else keep(row, likeliest(row)[:1])


def chain(logits: Logits, position: int, params: SamplingParams, before: Sequence[int] = ()) -> Row:
    """Return the logits after all samplers, the temperature included."""
    steps: dict[str, Callable[[Row], Row]] = {
        "penalties": lambda row: penalize(row.astype(np.float32), params, before).astype(np.float64),
        "dry": lambda row: dry(row, params, before) if params.dry_multiplier and params.dry_penalty_last_n else row,
        "top_n_sigma": lambda row: top_n_sigma(row, params) if params.top_n_sigma else row,
        "top_k": lambda row: keep(row, likeliest(row)[: params.top_k]) if params.top_k else row,
        "typ_p": lambda row: typical_p(row, params) if params.typical_p < 1 else row,
        "top_p": lambda row: top_p(row, params) if params.top_p < 1 else row,
        "min_p": lambda row: keep(row, softmax(row) >= params.min_p * softmax(row).max() * (1 - 1e-12)),
        "xtc": lambda row: xtc(row, params, position) if params.xtc_threshold <= 0.5 else row,
        "temperature": lambda row: temperature(row, params),
    }
    row = logits.astype(np.float64)
    for name in SAMPLERS if params.samplers is None else params.samplers:
        row = steps[name](row)
    return row


def pick(row: Row, position: int, seed: int) -> int:
    """Return the token that the noise of a position chooses."""
    scores = row + gumbel(seed, position, np.arange(len(row)))
    return int(scores.argmax())
