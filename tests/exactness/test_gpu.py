"""Tests on a GPU; skipped without one (helpers/devices.py).

Mesa's lavapipe takes a hundred times as long: there the tests run with F32 only, and with fewer tokens.

Bounds on logits, whose spread is 2.6 here: products of half-precision numbers (F16 weights, and F32 ones where a kernel
takes them as TF32, which has the mantissa of a half: ggml's own kernels for a few rows, whatever cuBLAS is set to) cost
up to 9e-3 on the CPU, plus flash attention's half-precision sums. The bound for F32 is twice as large, for F16 five
times. The errors of a broken head are at least ten times the bound.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.contexts import some_tokens
from helpers.devices import GPUS, LAVAPIPE, ON_CPU
from makers.gguf_variants import rewrite
from numpy.typing import NDArray

from pymtp import LLM, Model, SamplingParams, build_info
from pymtp.context.context import Context
from pymtp.context.inspect import Counters
from pymtp.context.memory import plan_memory
from pymtp.native import lib
from pymtp.sampling import Sampler

LAYERS = 0 if ON_CPU else -1

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS and not ON_CPU, reason="needs a GPU")]

GOLDEN = np.load(Path(__file__).parent.parent / "reference" / "golden.npz")
PROMPTS = ("chat",) if LAVAPIPE else ("one", "line", "chat", "code")
WHICH = PROMPTS[-1]
TAPS = ("post_norm", "pre_norm")
BOUNDS = {"f32": 3e-2} if LAVAPIPE else {"f32": 3e-2, "f16": 1e-1}  # logits have a deviation of 3
# tokens of a prompt; few on lavapipe, which needs 15 s to compile the shader for products of seven or eight rows
LONG = 20 if LAVAPIPE else 300
STEPS = 3
DEBUG, INFO = 1, 2  # enum ggml_log_level
# The share of tokens that may differ: kernels round differently by the number of rows, which decides near ties
FLIPS = 0 if LAVAPIPE else 0.002
CUDA = any(gpu["name"].startswith("CUDA") for gpu in GPUS)

# makes cuBLAS compute in F32; cuBLAS reads the variable at its first use
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")


@pytest.fixture(scope="module", params=sorted(BOUNDS))
def weights(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(weights: str, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load the shipped model, its weights dequantized, on the GPU."""
    path = tmp_path_factory.mktemp("models") / f"{weights}.gguf"
    rewrite(demo, path, weights=weights)
    with Model(path, n_gpu_layers=LAYERS) as model:
        yield model


def make(model: Model, **keywords: Any) -> Context:
    return Context(model, **({"n_ctx": 2048, "n_threads": 1, "draft_tokens": STEPS} | keywords))


def tokens(prompt: str) -> list[int]:
    return [int(token) for token in GOLDEN[f"{prompt}.tokens"]]


def head_logits(context: Context, prompt: str, tap: str) -> NDArray[np.float32]:
    """Return the logits of chained draft steps after a prompt, fed with the golden drafts."""
    context.prefill(tokens(prompt))
    fed = [int(GOLDEN[f"{prompt}.next"]), *map(int, GOLDEN[f"{prompt}.{tap}.drafts"])]
    return np.stack([context.draft(token).copy() for token in fed[:STEPS]])


def error(logits: NDArray[np.float32], golden: NDArray[np.float32]) -> float:
    return float(np.abs(logits - golden).max())


def counter_growth(context: Context) -> Callable[[str], int]:
    """Return a function that gives the growth of a counter since this call."""
    before: Counters = context.counters
    return lambda name: int(getattr(context.counters, name) - getattr(before, name))


def decode_round(context: Context, keep: int) -> list[int]:
    """Run a round of greedy drafts, and return the accepted tokens."""
    drafts = context.draft_chain(5, STEPS)[0]
    context.verify_chain([5, *drafts])
    context.rewind(context.n_past - STEPS + keep)
    return [5, *drafts[:keep]]


def test_build_info_names_the_gpu_and_its_architectures() -> None:
    build = build_info()
    assert all(device["description"] and device["memory_total"] > 0 for device in build["devices"])
    if not ON_CPU:
        assert GPUS
        assert bool(build["cuda_architectures"]) == CUDA


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("rows", [1, 4])
def test_trunk_logits_match_at_every_position(model: Model, weights: str, prompt: str, rows: int) -> None:
    ids = tokens(prompt)
    with make(model) as context:
        pieces = [ids[i : i + rows] for i in range(0, len(ids), rows)]
        logits = np.concatenate([context.verify(piece).copy() for piece in pieces])
    assert error(logits, GOLDEN[f"{prompt}.logits"]) <= BOUNDS[weights]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("tap", TAPS)
@pytest.mark.parametrize("ubatch", [512, 16 if LAVAPIPE else 8])
def test_head_logits_match_after_a_prompt(model: Model, weights: str, prompt: str, tap: str, ubatch: int) -> None:
    with make(model, tap=tap, n_ubatch=ubatch) as context:
        assert error(head_logits(context, prompt, tap), GOLDEN[f"{prompt}.{tap}.logits"]) <= BOUNDS[weights]


@pytest.mark.parametrize("fault", ["empty_head", "shifted_rows", "wrong_tap"])
def test_broken_head_fails_the_comparison_by_far(model: Model, weights: str, fault: str) -> None:
    with make(model, tap="pre_norm" if fault == "wrong_tap" else "post_norm") as context:
        if fault != "wrong_tap":
            context.inspect.break_on_purpose(fault)
        assert (
            error(head_logits(context, WHICH, "post_norm"), GOLDEN[f"{WHICH}.post_norm.logits"]) > 10 * BOUNDS[weights]
        )


def test_draft_chain_in_one_graph_equals_single_steps(model: Model) -> None:
    with make(model) as one, make(model, prefill="host-copy") as steps:
        found = []
        for c in (one, steps):
            c.set_sampling(Sampler(SamplingParams()))
            c.prefill(tokens(WHICH))
            found.append(c.draft_chain(int(GOLDEN[f"{WHICH}.next"]), STEPS)[0])
    assert found[0] == found[1] == [int(token) for token in GOLDEN[f"{WHICH}.post_norm.drafts"]][:STEPS]


def test_caches_after_rounds_match_the_accepted_tokens(model: Model, weights: str) -> None:
    with make(model) as rounds, make(model) as plain:
        for c in (rounds, plain):
            c.set_sampling(Sampler(SamplingParams()))
        text = some_tokens(model, LONG)
        rounds.prefill(text)
        for keep in (3, 0, 2, 1):
            text += decode_round(rounds, keep)
        plain.prefill(text)
        assert rounds.tokens() == text
        assert error(rounds.draft(9).copy(), plain.draft(9).copy()) <= BOUNDS[weights]
        assert error(rounds.verify([9])[0].copy(), plain.verify([9])[0].copy()) <= BOUNDS[weights]


def test_fused_prefill_gives_the_drafts_of_host_copies(model: Model, weights: str) -> None:
    prompt = some_tokens(model, LONG)
    with make(model) as fused, make(model, prefill="host-copy") as host:
        logits = [c.prefill(prompt).copy() for c in (fused, host)]
        assert error(*logits) <= BOUNDS[weights]
        assert fused.counters.hidden_bytes == 0
        assert host.counters.hidden_bytes == len(prompt) * model.n_embd * 4
        assert error(fused.draft(9).copy(), host.draft(9).copy()) <= BOUNDS[weights]


def test_batched_sequences_have_the_logits_and_drafts_of_single_ones(model: Model, weights: str) -> None:
    prompts = {seq: some_tokens(model, n, seed=seq) for seq, n in enumerate((12, 1, 3))}
    with make(model, n_seq_max=len(prompts)) as together:
        logits = together.prefill_batch(prompts).copy()
        for seq, prompt in prompts.items():
            with make(model) as alone:
                assert error(logits[seq], alone.prefill(prompt)) <= BOUNDS[weights]
                assert error(together.draft(9, seq).copy(), alone.draft(9).copy()) <= BOUNDS[weights]


def test_cached_prompt_gives_the_same_text(model: Model) -> None:
    params, texts = SamplingParams(4 if LAVAPIPE else 6, ignore_eos=True), []
    for cache in (True, False):
        with LLM(model, n_ctx=512, n_threads=1, draft_tokens=STEPS, cache_prompt=cache) as llm:
            first = llm.generate(some_tokens(model, LONG), params)
            second = llm.generate([*some_tokens(model, LONG), *first.token_ids, 5, 6, 7], params)
            assert (second.stats.cached_tokens >= LONG) == cache
            texts.append(first.token_ids + second.token_ids)
    assert texts[0] == texts[1]


def first_differences(plain: list[list[int]], others: list[list[int]]) -> tuple[int, int]:
    """Return how many texts differ, and how many tokens were compared: up to the first that differs in each text."""
    compared = differing = 0
    for one, other in zip(plain, others, strict=True):
        same = next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))
        compared += min(same + 1, len(one))
        differing += same < len(one)
    return differing, compared


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_change_no_more_tokens_than_company_does(
    prompts: list[str], demo: Path, demo_f32: Path, temperature: float, record_property: Callable[[str, object], None]
) -> None:
    """Plain decoding of four sequences has as many rows in a product as the verification of three drafts."""
    if LAVAPIPE:
        prompts = [prompts[0][:20]]
    params = SamplingParams(12 if LAVAPIPE else 150, temperature=temperature, seed=7, ignore_eos=True)
    texts = {}
    with Model(demo_f32 if LAVAPIPE else demo, n_gpu_layers=LAYERS) as model:
        for name, drafts, n_seq_max in (("alone", 0, 1), ("drafts", STEPS, 1), ("company", 0, STEPS + 1)):
            with LLM(model, n_ctx=1024, n_threads=1, draft_tokens=drafts, n_seq_max=n_seq_max) as llm:
                texts[name] = [done.token_ids for done in llm.generate(prompts, params)]
    found = {name: first_differences(texts["alone"], texts[name]) for name in ("drafts", "company")}
    record_property("tokens", told := f"first differences, tokens compared at T = {temperature}: {found}")
    print(told)
    rates = {name: differing / compared for name, (differing, compared) in found.items()}
    assert rates["drafts"] <= max(FLIPS, 2 * rates["company"])


def test_prefill_copies_one_row_of_logits_and_no_hidden_state_to_the_host(model: Model) -> None:
    with make(model) as context:
        grown = counter_growth(context)
        context.prefill(some_tokens(model, LONG if LAVAPIPE else 1500))
        assert grown("hidden_bytes") == grown("embeddings_bytes") == 0
        assert grown("logits_bytes") == model.n_vocab * 4
        assert grown("draft_decodes") == 0


def test_round_reuses_two_graphs_and_copies_tokens_only(model: Model) -> None:
    with make(model) as context:
        context.set_sampling(Sampler(SamplingParams()))
        context.prefill(some_tokens(model, 20))
        grown = counter_growth(context)
        for keep in (3, 0, 2, 1, 3, 3, 0, 1):
            decode_round(context, keep)
        assert grown("target_decodes") == grown("draft_decodes") == 8
        assert 16 - grown("graphs_reused") == 2  # one graph of each kind was built
        assert grown("hidden_bytes") == grown("logits_bytes") == grown("embeddings_bytes") == 0


@pytest.fixture
def native_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture all log lines of llama.cpp; without DEBUG at the import of pymtp, it would log no more than INFO."""
    lib.pymtp_set_log(lib.pymtp_on_log, DEBUG)
    with caplog.at_level(logging.DEBUG, "pymtp.native"):
        yield caplog
    lib.pymtp_set_log(lib.pymtp_on_log, INFO)


@pytest.mark.skipif(not CUDA and not ON_CPU, reason="of CUDA")
def test_cuda_graphs_are_reused_after_a_few_rounds(model: Model, native_log: pytest.LogCaptureFixture) -> None:
    """Read the log, where ggml-cuda names each graph that it reuses, captures, or finds changed."""
    with make(model) as context:
        context.set_sampling(Sampler(SamplingParams()))
        context.prefill(some_tokens(model, 20))
        for keep in (3, 0, 2):
            decode_round(context, keep)
        first = native_log.messages
        native_log.clear()
        for keep in (3, 0, 2, 1, 3, 3, 0, 1):
            decode_round(context, keep)
    said = native_log.messages
    assert said, "llama.cpp is heard"
    assert ON_CPU or any("CUDA graph warmup complete" in line for line in first)
    assert not any("CUDA graph warmup" in line for line in said)
    assert ON_CPU or sum("CUDA Graph id" in line for line in said) >= 2 * 8


@pytest.mark.parametrize("draft_tokens", [0, STEPS])
def test_device_memory_matches_the_plan(model: Model, draft_tokens: int) -> None:
    with Model(model.path, vocab_only=True) as looked_at:
        plan = plan_memory(looked_at, n_gpu_layers=LAYERS, n_ctx=2048, draft_tokens=draft_tokens)
    with make(model, draft_tokens=draft_tokens) as context:
        real = {device.device: device for device in context.memory()}
    for planned in plan:
        held = real[planned.device]
        for name in ("kv", "states", "head_kv", "kept_rows"):
            assert getattr(planned, name) == getattr(held, name)
        if not planned.host:
            assert planned.weights == pytest.approx(held.weights, rel=0.01)
            assert held.compute <= planned.compute
    assert ON_CPU or any(planned.kv > 0 for planned in plan if not planned.host)


@pytest.mark.parametrize("flash_attn", ["on"] if LAVAPIPE else ["on", "off"])
@pytest.mark.parametrize("type_k", ["f16"] if LAVAPIPE else ["f16", "q8_0"])
def test_copied_sequence_continues_with_the_same_bits(model: Model, flash_attn: str, type_k: str) -> None:
    with make(model, n_seq_max=3, flash_attn=flash_attn, type_k=type_k) as context:
        context.set_sampling(Sampler(SamplingParams()))
        context.prefill(some_tokens(model, LONG))
        for keep in (3, 0, 2):
            decode_round(context, keep)
        context.copy(0, 2)
        for seq in (0, 2):
            context.set_sampling(Sampler(SamplingParams()), seq)
        found = [
            (context.draft_chain(5, STEPS, seq), context.verify([5, 6], seq).tobytes(), context.tokens(seq))
            for seq in (0, 2)
        ]
        assert found[0] == found[1]
