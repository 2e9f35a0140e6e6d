"""Moments in the life of a sequence at which it is copied or saved, and all that it does from there on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.contexts import EXACT, some_tokens
from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.sampling import Sampler

CACHES: dict[str, dict[str, Any]] = {
    "f16": {},
    "f16, no flash": {"flash_attn": "off"},
    "f32, no flash": EXACT,
    "q8_0": {"type_k": "q8_0", "type_v": "q8_0"},
}
BOTH_MODES = pytest.mark.parametrize("mode", ["fused", "host-copy"])


def each_cache(caches: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    """Each with the fused mode, and the first with the other."""
    pairs = [(name, its, "fused") for name, its in caches.items()]
    pairs += [(name, its, "host-copy") for name, its in list(caches.items())[:1]]
    ids = [f"{name}, {mode}" for name, _, mode in pairs]
    return pytest.mark.parametrize(("caches", "mode"), [(its, mode) for _, its, mode in pairs], ids=ids)


SAMPLED = Sampler(SamplingParams(temperature=1.0, seed=4, repetition_penalty=1.2))


def begin(c: Context, seq: int, sampler: Sampler = SAMPLED) -> int:
    c.set_sampling(sampler, seq)
    c.prefill(some_tokens(c.model, 40, seed=7), seq)
    return c.first_token(seq)


def play(c: Context, seq: int, token: int, n: int) -> list[int]:
    """A round of n drafts."""
    drafts = c.draft_chain(token, n, seq)[0] if n else []
    before = c.tokens_held(seq)
    out = c.verify_chain([token, *drafts], seq)
    if len(out) <= n:
        c.rewind(before + len(out), seq)
    return out


def after_a_prompt(c: Context, seq: int) -> int:
    return begin(c, seq)


def within_a_prompt(c: Context, seq: int) -> int:
    begin(c, seq)
    c.prefill([3, 4, 5], seq)
    return 6


def after_rounds(c: Context, seq: int) -> int:
    token = begin(c, seq)
    for n in (3, 0, 2, 1, 3):
        token = play(c, seq, token, n)[-1]
    return token


def after_plain_rounds(c: Context, seq: int) -> int:
    """The head is behind."""
    token = after_rounds(c, seq)
    for _ in range(5):
        token = play(c, seq, token, 0)[-1]
    return token


def after_a_rewind(c: Context, seq: int) -> int:
    after_rounds(c, seq)
    c.verify([1, 2, 3, 4], seq)
    c.rewind(c.tokens_held(seq) - 2, seq)
    return 9


def before_a_rewind(c: Context, seq: int) -> int:
    after_rounds(c, seq)
    c.verify([1, 2, 3, 4], seq)
    return 9


def after_a_draft(c: Context, seq: int) -> int:
    token = after_rounds(c, seq)
    c.draft_chain(token, 3, seq)
    return token


def after_steps(c: Context, seq: int) -> int:
    """Its hidden states are on the host."""
    token = after_rounds(c, seq)
    c.draft(int(c.draft(token, seq).argmax()), seq)
    return token


MOMENTS = [
    after_a_prompt,
    within_a_prompt,
    after_rounds,
    after_plain_rounds,
    after_a_rewind,
    before_a_rewind,
    after_a_draft,
    after_steps,
]


def without_drafts(moment: Callable[[Context, int], int]) -> Callable[[Context, int], int]:
    """What was drafted is forgotten by copies and saves."""
    return after_rounds if moment in (after_a_draft, after_steps) else moment


def head_rows(c: Context, seq: int) -> bytes:
    """K and V of the head, but for the first token: its state begins with the sequence's number and positions, and ends
    with a count of zero for each sequence above."""
    (memory,) = c.memory()
    state = c.head_state(seq)
    return state.rstrip(b"\0")[-memory.head_kv // (c.n_ctx * c.n_seq_max) * (c.rows_held(seq) - 1) :]


def goes_on(c: Context, seq: int, token: int) -> list[Any]:
    """What a sequence holds, drafts and writes, and the bits of its logits."""
    found: list[Any] = [c.tokens(seq)]
    for n in (3, 0, 2):
        drafts, sure = c.draft_chain(token, n, seq) if n else ([], [])
        before = c.tokens_held(seq)
        out = c.verify_chain([token, *drafts], seq)
        if len(out) <= n:
            c.rewind(before + len(out), seq)
        found += [drafts, sure, out]
        token = out[-1]
    found.append(head_rows(c, seq))
    found.append(c.verify([5, 6, 7], seq).tobytes())
    c.rewind(c.tokens_held(seq) - 1, seq)
    found.append(c.verify([8, 9], seq).tobytes())
    return found
