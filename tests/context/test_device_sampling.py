"""Tests of device sampling: it gives the tokens of host sampling, and copies no row of logits to the host.

Without a GPU, `draws="device"` makes the CPU's graphs compute the same nodes as a GPU's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from gguf import GGUFReader
from helpers.contexts import BOTH, DRAFTS, context, some_tokens
from helpers.devices import GPUS, LAVAPIPE

from pymtp import Model, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.context.inspect import Counters, Node
from pymtp.sampling import Sampler

GREEDY = SamplingParams(24, ignore_eos=True)
SAMPLED = [replace(GREEDY, temperature=warmth, top_k=top_k, seed=4) for warmth in (0.7, 1.0) for top_k in (1, 40, 128)]
# further samplers that need only the candidates for top_k
CHAINED = [
    replace(SAMPLED[1], xtc_probability=0.5, xtc_threshold=0.02),
    replace(SAMPLED[1], samplers="kyt", typical_p=0.7, dynatemp_range=0.3),
]
# parameters with which the host needs whole rows of logits
ROWS = [
    replace(SAMPLED[1], dry_multiplier=2.0, dry_allowed_length=1),
    replace(SAMPLED[1], samplers="ytk", typical_p=0.9),
    replace(GREEDY, temperature=0.7, top_k=0),
    replace(GREEDY, temperature=0.7, top_k=129),
    replace(GREEDY, repetition_penalty=5.0),
    replace(GREEDY, logit_bias={5: 9.0}),
    replace(GREEDY, grammar="root ::= [^\\x00]*"),
]
PICKED = {1: 1, 40: 48, 128: 136}  # number of candidates that are copied, by top_k
BYTES = 8  # bytes of a candidate: its token and its logit
PROMPT, ROUNDS = (16, 2) if LAVAPIPE else (30, 4)  # numbers of prompt tokens, and of rounds after the prompt


def device(model: Model, params: SamplingParams = GREEDY, draws: str = "device", **keywords: Any) -> Context:
    """Return a context with a prompt and sampling parameters."""
    c = context(model, draws=draws, **keywords)
    c.prefill(some_tokens(model, PROMPT))
    c.set_sampling(Sampler(params))
    return c


def rounds(c: Context, n: int = ROUNDS, token: int | None = None) -> list[int]:
    """Return the tokens of `n` rounds that start with `token`, or with the first token after the prompt."""
    out = [c.first_token() if token is None else token]
    for _ in range(n):
        sampled = c.verify_chain([out[-1], *c.draft_chain(out[-1], DRAFTS)[0]])
        c.rewind(c.n_past - 1 - DRAFTS + len(sampled))
        out += sampled
    return out


def copied_bytes(c: Context, call: Callable[[], object]) -> int:
    """Return the bytes that a call copies to the host for sampling; check that it copies nothing else."""
    before = c.counters
    call()
    after = c.counters
    for name in ("hidden_bytes", "logits_bytes", "embeddings_bytes", "output_buffer_bytes"):
        assert getattr(after, name) == getattr(before, name), name
    return after.draw_bytes - before.draw_bytes


def custom_node_reads(nodes: list[Node]) -> list[int]:
    """Return the number of values that each custom node, which samples on the host, reads."""
    return [node.reads for node in nodes if node.op == "CUSTOM"]


# ── The same tokens ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [1, 2, 8])  # test_device_rounds_match_host_rounds has 3, and the other models
def test_device_sampling_matches_host_sampling(demo: Path, prompts: list[str], depth: int) -> None:
    with (
        Model(demo) as model,
        make_llm(model, draft_tokens=depth, draws="host") as host,
        make_llm(model, draft_tokens=depth, draws="device") as device,
    ):
        for params, prompt in zip((GREEDY, *SAMPLED), prompts, strict=False):
            expected, found = (llm.generate(prompt, params) for llm in (host, device))
            assert found.token_ids == expected.token_ids
            assert found.stats.accepted == expected.stats.accepted


KINDS = [GREEDY, *SAMPLED, *CHAINED, *ROWS]


@BOTH
@pytest.mark.parametrize(
    ("params", "mode"),
    [*((params, "fused") for params in KINDS), *((params, "host-copy") for params in (GREEDY, SAMPLED[1], ROWS[0]))],
    ids=range(len(KINDS) + 3),
)
def test_device_rounds_match_host_rounds(model: Model, mode: str, params: SamplingParams) -> None:
    found = []
    for draws in ("host", "device"):
        with device(model, params, draws, mode=mode) as c:
            found.append((rounds(c), c.draft_chain(5, DRAFTS)[0], c.tokens()))
    assert found[0] == found[1]


@BOTH
def test_candidates_give_the_same_confidence_as_rows(model: Model) -> None:
    for params in SAMPLED:
        if params.top_k > 1:
            with device(model, params) as c, device(model, params, "host") as host:
                assert c.draft_chain(5, DRAFTS) == host.draft_chain(5, DRAFTS)


@BOTH
def test_confidence_of_a_greedy_draft_is_its_probability(model: Model) -> None:
    with device(model) as c, device(model) as steps:
        found, confidences = c.draft_chain(5, DRAFTS)
        token = 5
        for draft, confidence in zip(found, confidences, strict=True):
            logits = steps.draft(token).astype(np.float64)
            weights = np.exp(logits - logits.max())
            assert confidence == pytest.approx(weights[draft] / weights.sum(), rel=1e-4)
            token = draft


def test_context_switches_between_kinds_of_sampling(dense: Model) -> None:
    with device(dense) as c:
        for params in (GREEDY, SAMPLED[1], SAMPLED[2], ROWS[0], SAMPLED[1], GREEDY, ROWS[2]):
            c.clear()
            c.prefill(some_tokens(dense, 30))
            c.set_sampling(Sampler(params))
            with device(dense, params, "host") as fresh:
                assert rounds(c) == rounds(fresh)


def test_sequences_with_different_sampling_take_turns(dense: Model) -> None:
    kinds = dict(enumerate((GREEDY, SAMPLED[1], SAMPLED[2], ROWS[0])))
    alone = {}
    for seq, params in kinds.items():
        with device(dense, params, "host") as c:
            alone[seq] = [c.draft_chain(token, DRAFTS)[0] + c.verify_chain([token]) for token in (3, 4)]
    with context(dense, draws="device", n_seq_max=len(kinds)) as c:
        c.prefill_batch({seq: some_tokens(dense, 30) for seq in kinds})
        for seq, params in kinds.items():
            c.set_sampling(Sampler(params), seq)
        found: dict[int, list[list[int]]] = {seq: [] for seq in kinds}
        for token in (3, 4):
            for seq in kinds:
                found[seq].append(c.draft_chain(token, DRAFTS, seq)[0] + c.verify_chain([token], seq))
    assert found == alone


# ── Copies to the host ───────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
@pytest.mark.parametrize("params", [GREEDY, *SAMPLED, *CHAINED], ids=range(9))
def test_device_round_copies_tokens_or_candidates_but_no_row(model: Model, params: SamplingParams) -> None:
    each = BYTES * (1 if params.temperature == 0 else PICKED[params.top_k])
    with device(model, params) as c:
        for n in range(1, 1 + DRAFTS):
            assert copied_bytes(c, lambda n=n: c.draft_chain(5, n)) == n * each
            assert copied_bytes(c, lambda n=n: c.verify_chain([5, *range(n)])) == (1 + n) * each
            c.rewind(c.n_past - n)


@pytest.mark.gpu
@pytest.mark.skipif(not GPUS, reason="needs a GPU")
@pytest.mark.parametrize("params", [GREEDY, SAMPLED[4]] if LAVAPIPE else [GREEDY, *SAMPLED], ids=str)
def test_gpu_sampling_matches_the_host_and_copies_no_row(demo_f32: Path, params: SamplingParams) -> None:
    each = BYTES * (1 if params.temperature == 0 else PICKED[params.top_k])
    with Model(demo_f32, n_gpu_layers=-1) as model:
        with device(model, params, "auto") as c, device(model, params, "host") as host:
            assert rounds(c) == rounds(host)
        with device(model, params, "auto") as c:
            assert copied_bytes(c, lambda: c.draft_chain(5, DRAFTS)) == DRAFTS * each
            assert copied_bytes(c, lambda: c.verify_chain([5, *range(DRAFTS)])) == (1 + DRAFTS) * each


@BOTH
def test_rows_of_logits_are_copied_if_candidates_are_not_enough(model: Model) -> None:
    row = 4 * model.n_vocab
    for params in ROWS:
        with device(model, params) as c:
            token = c.first_token()
            assert copied_bytes(c, lambda c=c, token=token: c.draft_chain(token, DRAFTS)) == DRAFTS * row
            assert copied_bytes(c, lambda c=c, token=token: c.verify_chain([token, token])) == 2 * row
    with device(model, replace(GREEDY, logprobs=2)) as c:  # rows are copied for tokens of the target, not for drafts
        assert copied_bytes(c, lambda: c.draft_chain(5, DRAFTS)) == DRAFTS * BYTES
        assert copied_bytes(c, lambda: c.verify_chain([5, 6])) == 2 * row
        assert len(c.logprobs()) >= 1


@BOTH
@pytest.mark.parametrize("draws", ["auto", "host"])
def test_host_logits_are_sampled_in_place(model: Model, draws: str) -> None:
    with device(model, draws=draws) as c:
        assert copied_bytes(c, lambda: c.verify_chain([5, 6])) == 2 * 4 * model.n_vocab


@BOTH
def test_host_part_of_device_sampling_reads_only_candidates(model: Model) -> None:
    with device(model, GREEDY, trace=True) as c:
        c.inspect.trace()
        rounds(c, 1)
        assert custom_node_reads(c.inspect.trace()) == []
    for top_k in (40, 128):
        with device(model, replace(GREEDY, temperature=1.0, top_k=top_k), trace=True) as c:
            c.inspect.trace()
            c.draft_chain(5, DRAFTS)
            assert custom_node_reads(c.inspect.trace()) == [PICKED[top_k]] * DRAFTS
            c.verify_chain([5, 6, 7])
            assert custom_node_reads(c.inspect.trace()) == [3 * PICKED[top_k]]
    with device(model, GREEDY, "host", trace=True) as c:
        c.inspect.trace()
        c.verify_chain([5, 6, 7])
        assert custom_node_reads(c.inspect.trace()) == [3 * model.n_vocab]


# ── Decodes and graphs ────────────────────────────────────────────────────────────────────────────────────────────────


def decodes_and_graphs(before: Counters, after: Counters) -> tuple[int, int]:
    """Return the number of decodes, and of graphs that were built for them."""
    n = after.target_decodes + after.draft_decodes - before.target_decodes - before.draft_decodes
    return n, n - (after.graphs_reused - before.graphs_reused)


@pytest.mark.parametrize("params", [GREEDY, *SAMPLED[:3]], ids=range(4))
def test_device_round_takes_two_decodes_and_reuses_their_graphs(dense: Model, params: SamplingParams) -> None:
    with device(dense, params) as c:
        before = c.counters
        rounds(c, 8)
        assert decodes_and_graphs(before, c.counters) == (16, 2)


def test_graph_is_reused_while_the_kind_of_sampling_stays_the_same(dense: Model) -> None:
    with device(dense) as c:
        rounds(c)
        for params in (SAMPLED[1], SAMPLED[2], replace(GREEDY, temperature=0.5, top_k=128), ROWS[0], GREEDY):
            c.set_sampling(Sampler(params))
            before = c.counters
            rounds(c, 2, token=3)
            # the graph does not depend on the seed or the temperature
            assert decodes_and_graphs(before, c.counters) == (4, 0 if params.temperature == 0.5 else 2)


# ── Nonfinite and equal logits ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def changed(
    demo_f32: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Callable[[Any], None]], Model]]:
    """Return a function that loads the shipped F32 model with changed output weights of shape (n_vocab, n_embd).

    With long=True, the hidden states before the output layer are a thousand times longer.
    """
    made: dict[Callable[[Any], None], Model] = {}

    def change(how: Callable[[Any], None], long: bool = False) -> Model:
        if how in made:
            return made[how]
        path = tmp_path_factory.mktemp("changed") / "changed.gguf"
        shutil.copy(demo_f32, path)
        tensors = {tensor.name: tensor.data for tensor in GGUFReader(path, "r+").tensors}
        how(tensors["output.weight" if "output.weight" in tensors else "token_embd.weight"])
        for name in tensors:
            if long and name.endswith(("output_norm.weight", "shared_head_norm.weight")):
                tensors[name] *= 1000
        made[how] = Model(path)
        return made[how]

    yield change
    for model in made.values():
        model.close()


def nan(rows: slice) -> Callable[[Any], None]:
    def how(weights: Any) -> None:
        weights[rows] = np.copysign(
            np.nan, -1
        )  # the NaN that x86 makes: as integers, its bits are below those of all numbers

    return how


def infinite(weights: Any) -> None:
    # whatever the sign of a hidden value, one of these two logits overflows
    n = weights.shape[1]
    weights[: 2 * n] = 0
    weights[:n] = np.diag(np.full(n, 3e38))
    weights[n : 2 * n] = -weights[:n]


def alike(weights: Any) -> None:
    # blocks of eight equal rows: of threads that each take every eighth token, the last has the first of the block
    weights[:] = weights[np.maximum((np.arange(len(weights)) + 1) // 8 * 8 - 1, 0)]


NO_NUMBERS = {"one": nan(slice(300, 301)), "all": nan(slice(None)), "first": nan(slice(0, 1)), "infinite": infinite}


@pytest.mark.gpu
@pytest.mark.parametrize("draws", ["device"] if LAVAPIPE else ["host", "device"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED[1]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", list(NO_NUMBERS)[: 1 if LAVAPIPE else None])
def test_device_sampling_reports_nonfinite_logits(
    changed: Callable[..., Model], draws: str, params: SamplingParams, name: str
) -> None:
    how = NO_NUMBERS[name]
    with device(changed(how, long=how is infinite), params, draws) as c:
        c.clear()
        # only unchanged tokens: the embeddings share the changed weights of the output layer
        c.prefill(range(1000, 1000 + PROMPT))
        assert c.draft_chain(1005, DRAFTS) == ([], [])
        assert c.n_past == PROMPT  # drafts add no tokens
        with pytest.raises(NativeError, match=f"no finite logits at position {PROMPT + 1}"):
            c.verify_chain([1005, 1006])
        assert c.n_past == 0


@pytest.mark.gpu
@pytest.mark.parametrize("params", [GREEDY, SAMPLED[1]], ids=["greedy", "sampled"])
def test_device_sampling_takes_the_first_of_equal_logits(changed: Callable[..., Model], params: SamplingParams) -> None:
    found = []
    for draws in ("host", "device"):
        with device(changed(alike), params, draws) as c:
            found.append(rounds(c))
    assert found[0] == found[1]
    if params is GREEDY:
        assert all(token % 8 == 7 or token == 0 for token in found[0][1:])
