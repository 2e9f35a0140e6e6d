"""Claims about the numbers: trunk and head compute what transformers and a reference head compute, and every mistake
that leaves the text fluent is seen (tests/reference/make_golden.py made the golden outputs)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from numpy.typing import NDArray

from pymtp import LLM, SamplingParams
from pymtp.context import Context
from pymtp.model import Model

GOLDEN = np.load(Path(__file__).parent / "reference" / "golden.npz")
PROMPTS = ("one", "line", "chat", "code")
TAPS = ("post_norm", "pre_norm")
BOUND = 2e-3  # on logits; flash attention keeps V sums in half precision, so it is off here
STEPS = 3
EXACT: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "type_k": "f32", "type_v": "f32", "flash_attn": "off"}


@pytest.fixture(scope="module")
def model(demo_f32: Path) -> Iterator[Model]:
    with Model(demo_f32) as model:
        yield model


def tokens(prompt: str) -> list[int]:
    return [int(token) for token in GOLDEN[f"{prompt}.tokens"]]


def assert_same(logits: NDArray[np.float32], golden: NDArray[np.float32]) -> None:
    assert np.abs(logits - golden).max() <= BOUND
    best = np.sort(golden, axis=-1)
    clear = best[..., -1] - best[..., -2] > BOUND
    assert np.array_equal(logits.argmax(-1)[clear], golden.argmax(-1)[clear])


def head_logits(context: Context, prompt: str, tap: str) -> NDArray[np.float32]:
    """Logits of three chained draft steps after a prompt, the golden drafts fed in: shape (3, n_vocab)."""
    context.prefill(tokens(prompt))
    fed = [int(GOLDEN[f"{prompt}.next"]), *map(int, GOLDEN[f"{prompt}.{tap}.drafts"])]
    return np.stack([context.draft(token) for token in fed[:STEPS]])


def test_golden_outputs_are_of_the_shipped_model(demo: Path) -> None:
    assert hashlib.sha256(demo.read_bytes()).hexdigest() == str(GOLDEN["model_sha256"])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("rows", [1, 4])
def test_trunk_logits_match_at_every_position(model: Model, prompt: str, rows: int) -> None:
    ids = tokens(prompt)
    with Context(model, draft_tokens=3, **EXACT) as context:
        pieces = [ids[i : i + rows] for i in range(0, len(ids), rows)]
        logits = np.concatenate([context.verify(piece) for piece in pieces])
    assert_same(logits, GOLDEN[f"{prompt}.logits"])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("batch", [{}, {"n_batch": 16, "n_ubatch": 8}, {"n_batch": 7, "n_ubatch": 7}], ids=str)
@pytest.mark.parametrize("tap", TAPS)
def test_head_logits_match_with_both_taps_across_ubatch_and_batch_borders(
    model: Model, prompt: str, batch: dict[str, int], tap: str
) -> None:
    with Context(model, draft_tokens=STEPS, tap=tap, **EXACT, **batch) as context:
        assert_same(head_logits(context, prompt, tap), GOLDEN[f"{prompt}.{tap}.logits"])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_trunk_logits_match_after_a_prefill(model: Model, prompt: str) -> None:
    with Context(model, draft_tokens=STEPS, **EXACT) as context:
        assert_same(context.prefill(tokens(prompt)), GOLDEN[f"{prompt}.logits"][-1])


@pytest.mark.parametrize("tap", TAPS)
def test_head_logits_match_after_rounds_of_verification_and_rewinding(model: Model, tap: str) -> None:
    """The prompt comes in by verified tokens, with wrong drafts made and taken back on the way."""
    ids = tokens("code")
    with Context(model, draft_tokens=STEPS, tap=tap, **EXACT) as context:
        context.prefill(ids[:5])
        while (n := context.n_past) < len(ids):
            context.draft(ids[n])
            context.draft(1)
            right = ids[n : n + 2]
            context.verify([*right, 0, 0][:4])
            context.rewind(n + len(right))
        fed = [int(GOLDEN["code.next"]), *map(int, GOLDEN[f"code.{tap}.drafts"])]
        logits = np.stack([context.draft(token) for token in fed[:STEPS]])
    assert_same(logits, GOLDEN[f"code.{tap}.logits"])


@pytest.mark.parametrize("fault", ["empty_head", "shifted_rows", "wrong_tap"])
def test_a_broken_head_fails_the_comparison(model: Model, fault: str) -> None:
    with Context(
        model, draft_tokens=STEPS, tap="pre_norm" if fault == "wrong_tap" else "post_norm", **EXACT
    ) as context:
        if fault != "wrong_tap":
            context.break_on_purpose(fault)
        with pytest.raises(AssertionError):
            assert_same(head_logits(context, "code", "post_norm"), GOLDEN["code.post_norm.logits"])


def acceptance(llm: LLM, prompts: list[str]) -> float:
    done = llm.generate(prompts, SamplingParams(max_tokens=100, ignore_eos=True))
    return sum(c.stats.accepted for c in done) / sum(c.stats.drafted for c in done)


@pytest.fixture(scope="module")
def sound_acceptance(llm: LLM, prompts: list[str]) -> float:
    return acceptance(llm, prompts)


def test_the_shipped_head_accepts_most_drafts_on_text_it_never_saw(sound_acceptance: float) -> None:
    assert sound_acceptance >= 0.60


@pytest.mark.parametrize("fault", ["empty_head", "shifted_rows", "wrong_tap"])
def test_a_broken_head_accepts_less(sound_acceptance: float, prompts: list[str], fault: str) -> None:
    with make_llm(tap="pre_norm" if fault == "wrong_tap" else "auto") as broken:
        if fault != "wrong_tap":
            broken.context.break_on_purpose(fault)
        # greedy text is the same, so is the number of tokens: a difference is the head's alone
        assert acceptance(broken, prompts) < sound_acceptance - 0.02
