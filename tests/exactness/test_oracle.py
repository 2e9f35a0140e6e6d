"""Tests of logits: trunk and head compute the same as transformers and a reference head.

They detect also mistakes that leave the text fluent. tests/reference/make_golden.py and make_golden_next.py made the
golden outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chats import prompt_of
from conftest import make_llm
from makers.next_oracle import make_next_oracle, weights_sha256
from numpy.typing import NDArray
from stream import held_out_cases

from pymtp import LLM, SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model

REFERENCE = Path(__file__).parent.parent / "reference"
GOLDEN = {"qwen35": np.load(REFERENCE / "golden.npz"), "qwen3next": np.load(REFERENCE / "golden_next.npz")}
PROMPTS = ("one", "line", "chat", "code")
TAPS = ("post_norm", "pre_norm")
BOUND = 2e-3  # bound on the error of logits; flash attention is off, because it sums V in half precision
STEPS = 3
EXACT: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "type_k": "f32", "type_v": "f32", "flash_attn": "off"}


@dataclass
class Oracle:
    """A model in F32 and its golden outputs."""

    model: Model
    golden: Mapping[str, Any]

    def tokens(self, prompt: str) -> list[int]:
        return [int(token) for token in self.golden[f"{prompt}.tokens"]]

    def drafts(self, prompt: str, tap: str) -> list[int]:
        """Return the tokens that are fed to the head in three chained steps after a prompt."""
        return [int(self.golden[f"{prompt}.next"]), *map(int, self.golden[f"{prompt}.{tap}.drafts"])][:STEPS]


@pytest.fixture(scope="module")
def next_f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "next.gguf"
    make_next_oracle(path)
    return path


@pytest.fixture(scope="module", params=GOLDEN)
def oracle(request: pytest.FixtureRequest, demo_f32: Path, next_f32: Path) -> Iterator[Oracle]:
    with Model(demo_f32 if request.param == "qwen35" else next_f32) as model:
        assert model.architecture == request.param
        yield Oracle(model, GOLDEN[request.param])


def assert_same(logits: NDArray[np.float32], golden: NDArray[np.float32]) -> None:
    assert np.abs(logits - golden).max() <= BOUND
    best = np.sort(golden, axis=-1)
    clear = best[..., -1] - best[..., -2] > BOUND
    assert np.array_equal(logits.argmax(-1)[clear], golden.argmax(-1)[clear])


def head_logits(context: Context, oracle: Oracle, prompt: str, tap: str) -> NDArray[np.float32]:
    """Return logits of shape (3, n_vocab): three chained draft steps after a prompt, fed with the golden drafts."""
    context.prefill(oracle.tokens(prompt))
    return np.stack([context.draft(token) for token in oracle.drafts(prompt, tap)])


def test_golden_outputs_belong_to_the_compared_models(demo: Path, next_f32: Path) -> None:
    assert weights_sha256(demo) == str(GOLDEN["qwen35"]["model_sha256"])
    assert weights_sha256(next_f32) == str(GOLDEN["qwen3next"]["model_sha256"])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("rows", [1, 4])
def test_trunk_logits_match_at_every_position(oracle: Oracle, prompt: str, rows: int) -> None:
    ids = oracle.tokens(prompt)
    with Context(oracle.model, draft_tokens=3, **EXACT) as context:
        pieces = [ids[i : i + rows] for i in range(0, len(ids), rows)]
        logits = np.concatenate([context.verify(piece) for piece in pieces])
    assert_same(logits, oracle.golden[f"{prompt}.logits"])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("batch", [{}, {"n_batch": 16, "n_ubatch": 8}, {"n_batch": 7, "n_ubatch": 7}], ids=str)
@pytest.mark.parametrize("tap", TAPS)
def test_head_logits_match_with_both_taps_across_ubatch_and_batch_borders(
    oracle: Oracle, prompt: str, batch: dict[str, int], tap: str
) -> None:
    with Context(oracle.model, draft_tokens=STEPS, tap=tap, **EXACT, **batch) as context:
        assert_same(head_logits(context, oracle, prompt, tap), oracle.golden[f"{prompt}.{tap}.logits"])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_trunk_logits_match_after_a_prefill(oracle: Oracle, prompt: str) -> None:
    with Context(oracle.model, draft_tokens=STEPS, **EXACT) as context:
        assert_same(context.prefill(oracle.tokens(prompt)), oracle.golden[f"{prompt}.logits"][-1])


@pytest.mark.parametrize("tap", TAPS)
def test_head_logits_match_after_rounds_of_verification_and_rewinding(oracle: Oracle, tap: str) -> None:
    # The prompt is decoded by verifications; between them, wrong drafts are made and rewound
    ids = oracle.tokens("code")
    with Context(oracle.model, draft_tokens=STEPS, tap=tap, **EXACT) as context:
        context.prefill(ids[:5])
        while (n := context.n_past) < len(ids):
            context.draft(ids[n])
            context.draft(1)
            right = ids[n : n + 2]
            context.verify([*right, 0, 0][:4])
            context.rewind(n + len(right))
        logits = np.stack([context.draft(token) for token in oracle.drafts("code", tap)])
    assert_same(logits, oracle.golden[f"code.{tap}.logits"])


@pytest.mark.parametrize("fault", ["empty_head", "shifted_rows", "wrong_tap"])
def test_broken_head_fails_the_comparison(oracle: Oracle, fault: str) -> None:
    with Context(
        oracle.model, draft_tokens=STEPS, tap="pre_norm" if fault == "wrong_tap" else "post_norm", **EXACT
    ) as context:
        if fault != "wrong_tap":
            context.inspect.break_on_purpose(fault)
        with pytest.raises(AssertionError):
            assert_same(head_logits(context, oracle, "code", "post_norm"), oracle.golden["code.post_norm.logits"])


def acceptance(llm: LLM) -> float:
    """Return the share of drafts that are accepted in answers to held-out prompts."""
    kinds = ("functions", "arithmetic", "extraction")
    prompts = [prompt_of(case) for kind in kinds for case in held_out_cases(kind, 20)]
    # an answer goes no further than its end, since what would come after it was not trained
    done = llm.generate(prompts, SamplingParams(max_tokens=60))
    return sum(c.stats.accepted for c in done) / sum(c.stats.drafted for c in done)


@pytest.fixture(scope="module")
def sound_acceptance(llm: LLM) -> float:
    return acceptance(llm)


def test_shipped_head_has_most_drafts_accepted(sound_acceptance: float) -> None:
    assert sound_acceptance >= 0.8


@pytest.mark.parametrize("fault", ["empty_head", "shifted_rows", "wrong_tap"])
def test_broken_head_has_fewer_drafts_accepted(sound_acceptance: float, fault: str) -> None:
    with make_llm(tap="pre_norm" if fault == "wrong_tap" else "auto") as broken:
        if fault != "wrong_tap":
            broken.context.inspect.break_on_purpose(fault)
        # the greedy text is the same with any head, so only the head can change the acceptance
        assert acceptance(broken) < sound_acceptance - 0.02
