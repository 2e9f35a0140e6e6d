"""Moments at which tests copy or save a sequence, and a way to continue it that shows all of its state."""

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


def each_model_or_cache_type(caches: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    """Parametrize a test with each model and the first type of K and V, and the dense model with each other type."""
    first, *others = caches
    runs = [(model, first) for model in ("dense", "moe", "qwen3next")] + [("dense", name) for name in others]
    return pytest.mark.parametrize(
        ("model", "caches"),
        [(model, caches[name]) for model, name in runs],
        ids=[", ".join(run) for run in runs],
        indirect=["model"],
    )


def each_model_and_cache_type(caches: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    """Parametrize a test with each type of K and V, each model, and both modes of prefill.

    Models differ in their recurrent states and layers, which neither the type of K and V nor the mode affects: the
    dense model has each type and mode, and the others have the first type and a mode each.
    """
    first, *others = caches
    runs = [("dense", first, "fused"), ("dense", first, "host-copy"), ("moe", first, "fused")]
    runs += [("qwen3next", first, "host-copy")] + [("dense", name, "fused") for name in others]
    values = [(model, caches[name], mode) for model, name, mode in runs]
    return pytest.mark.parametrize(
        ("model", "caches", "mode"), values, ids=[", ".join(run) for run in runs], indirect=["model"]
    )


SAMPLED = Sampler(SamplingParams(temperature=1.0, seed=4, repetition_penalty=1.2))


def prefill_and_sample(c: Context, seq: int, sampler: Sampler = SAMPLED) -> int:
    """Prefill a prompt, and return the first token after it."""
    c.set_sampling(sampler, seq)
    c.prefill(some_tokens(c.model, 40, seed=7), seq)
    return c.first_token(seq)


def draft_and_verify(c: Context, seq: int, token: int, n: int) -> list[int]:
    """Run a round with n drafts, and return its tokens."""
    drafts = c.draft_chain(token, n, seq)[0] if n else []
    before = c.tokens_held(seq)
    out = c.verify_chain([token, *drafts], seq)
    if len(out) <= n:
        c.rewind(before + len(out), seq)
    return out


def after_a_prompt(c: Context, seq: int) -> int:
    return prefill_and_sample(c, seq)


def within_a_prompt(c: Context, seq: int) -> int:
    prefill_and_sample(c, seq)
    c.prefill([3, 4, 5], seq)
    return 6


def after_rounds(c: Context, seq: int) -> int:
    token = prefill_and_sample(c, seq)
    for n in (3, 0, 2, 1, 3):
        token = draft_and_verify(c, seq, token, n)[-1]
    return token


def after_plain_rounds(c: Context, seq: int) -> int:
    """Run rounds without drafts, after which the head is behind."""
    token = after_rounds(c, seq)
    for _ in range(5):
        token = draft_and_verify(c, seq, token, 0)[-1]
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
    """Draft token by token, after which the hidden states are on the host."""
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
    """Return the moment whose state a copy or a saved state has: both forget drafts."""
    return after_rounds if moment in (after_a_draft, after_steps) else moment


def head_kv(c: Context, seq: int) -> bytes:
    """Return the head's K and V of all tokens but the first.

    The head's state begins with the sequence's number and positions, and ends with a zero for each sequence above.
    """
    (memory,) = c.memory()
    state = c.inspect.head_state(seq)
    return state.rstrip(b"\0")[-memory.head_kv // (c.n_ctx * c.n_seq_max) * (c.inspect.head_rows(seq) - 1) :]


def continue_text(c: Context, seq: int, token: int) -> list[Any]:
    """Continue a sequence; return its tokens, drafts and output, and the bits of its K and V and logits."""
    record: list[Any] = [c.tokens(seq)]
    for n in (3, 0, 2):
        drafts, probabilities = c.draft_chain(token, n, seq) if n else ([], [])
        before = c.tokens_held(seq)
        out = c.verify_chain([token, *drafts], seq)
        if len(out) <= n:
            c.rewind(before + len(out), seq)
        record += [drafts, probabilities, out]
        token = out[-1]
    record.append(head_kv(c, seq))
    record.append(c.verify([5, 6, 7], seq).tobytes())
    c.rewind(c.tokens_held(seq) - 1, seq)
    record.append(c.verify([8, 9], seq).tobytes())
    return record
