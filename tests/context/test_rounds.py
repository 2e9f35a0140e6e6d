"""Tests of rounds: two decodes that copy only tokens, and leave the caches of accepted tokens decoded one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.contexts import DRAFTS, EACH, EXACT, context, drafts, some_tokens, work
from makers.gguf_variants import rewrite

from pymtp import LLM, SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.sampling import Sampler

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0, seed=5, repetition_penalty=1.3)


def sampling_context(model: Model, mode: str = "fused", params: SamplingParams = GREEDY, **keywords: Any) -> Context:
    """Return a context with sampling parameters for all of its sequences."""
    c = context(model, mode, **keywords)
    for seq in range(c.n_seq_max):
        c.set_sampling(Sampler(params), seq)
    return c


def run_round(c: Context, token: int, keep: int, seq: int = 0) -> list[int]:
    """Run a round, keep `keep` drafts whatever the target samples, and return the token and the kept drafts."""
    made, _ = c.draft_chain(token, DRAFTS, seq)
    c.verify_chain([token, *made], seq)
    c.rewind(c.tokens_held(seq) - DRAFTS + keep, seq)
    return [token, *made[:keep]]


@pytest.mark.parametrize(
    ("model", "tap", "options"),
    [
        *((model, tap, {}) for model in ("dense", "moe", "qwen3next") for tap in ("post_norm", "pre_norm")),
        ("dense", "post_norm", EXACT),
        ("dense", "post_norm", {"type_k": "q8_0", "type_v": "q8_0"}),
        ("dense", "post_norm", {"type_k": "q4_0", "flash_attn": "off"}),
    ],
    ids=str,
    indirect=["model"],
)
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_draft_chain_in_one_decode_matches_single_steps(
    model: Model, tap: str, params: SamplingParams, options: dict[str, Any]
) -> None:
    prompt = some_tokens(model, 50)
    with (
        sampling_context(model, "fused", params, tap=tap, **options) as one,
        sampling_context(model, "host-copy", params, tap=tap, **options) as steps,
    ):
        for c in (one, steps):
            c.prefill(prompt)
        assert one.draft_chain(7, DRAFTS) == steps.draft_chain(7, DRAFTS)
        assert one.counters.draft_decodes == 1
        # decodes for the prompt, the first step, and two further steps
        assert steps.counters.draft_decodes == 1 + DRAFTS


@EACH
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_verification_samples_rows_until_a_rejected_draft(model: Model, params: SamplingParams) -> None:
    text, right = some_tokens(model, 20), [5]
    with sampling_context(model, params=params, **EXACT) as rounds, context(model, **EXACT) as steps:
        steps.prefill(text)
        for _ in range(DRAFTS + 1):
            row = steps.verify(right[-1:])[0]
            token, _ = Sampler(params).sample(row, steps.n_past, [*text, *right])
            assert token is not None
            right.append(token)
        for n in range(DRAFTS + 1):
            rounds.clear()
            rounds.prefill(text)
            wrong = [(token + 1) % model.n_vocab for token in right[n + 1 : -1]]
            assert rounds.verify_chain([*right[: n + 1], *wrong]) == right[1 : n + 2]


@EACH
@pytest.mark.parametrize("keep", range(DRAFTS + 1))
def test_caches_after_a_round_match_the_accepted_tokens(model: Model, keep: int) -> None:
    with sampling_context(model, **EXACT) as rounds, sampling_context(model, **EXACT) as plain:
        text = some_tokens(model, 30)
        rounds.prefill(text)
        for token in (5, 9, 11):
            text += run_round(rounds, token, keep)
        plain.prefill(text)
        assert rounds.tokens() == text
        assert rounds.inspect.head_rows() == len(text)
        one, other = (np.frombuffer(c.inspect.head_state(), np.float32) for c in (rounds, plain))
        np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-5)
        # the pending hidden state is that of the last accepted token
        np.testing.assert_allclose(rounds.draft(3), plain.draft(3), atol=1e-4, rtol=1e-5)
        np.testing.assert_allclose(rounds.verify([3]), plain.verify([3]), atol=1e-4, rtol=1e-5)


@EACH
def test_rounds_of_sequences_are_independent(model: Model) -> None:
    keeps = {0: (1, 3, 0), 1: (3, 0, 2)}
    alone = {}
    for seq, counts in keeps.items():
        with sampling_context(model, **EXACT) as c:
            c.prefill(some_tokens(model, 20, seed=seq))
            alone[seq] = [run_round(c, 5 + i, keep) for i, keep in enumerate(counts)], c.draft_chain(4, DRAFTS)[0]
    with sampling_context(model, n_seq_max=2, **EXACT) as c:
        c.prefill_batch({seq: some_tokens(model, 20, seed=seq) for seq in keeps})
        texts: dict[int, list[list[int]]] = {0: [], 1: []}
        for i in range(3):
            for seq, counts in keeps.items():
                texts[seq].append(run_round(c, 5 + i, counts[i], seq))
        for seq in keeps:
            assert (texts[seq], c.draft_chain(4, DRAFTS, seq)[0]) == alone[seq]


@EACH
def test_unverified_drafts_leave_no_trace(model: Model) -> None:
    with sampling_context(model) as c, sampling_context(model) as other:
        for each in (c, other):
            each.prefill(some_tokens(model, 20))
        c.draft_chain(3, DRAFTS)
        assert c.draft_chain(5, DRAFTS) == other.draft_chain(5, DRAFTS)
        c.draft_chain(3, 1)
        for each in (c, other):
            each.verify_chain([8])
        assert c.inspect.head_state() == other.inspect.head_state()
        c.draft_chain(3, DRAFTS)
        for each in (c, other):
            each.prefill([1, 2, 3])
        assert c.inspect.head_state() == other.inspect.head_state()
        assert c.tokens() == other.tokens()


@EACH
def test_draft_steps_and_draft_chains_can_alternate(model: Model) -> None:
    with sampling_context(model, **EXACT) as c, sampling_context(model, **EXACT) as other:
        text = some_tokens(model, 20)
        c.prefill(text)
        text += run_round(c, 5, 2)
        drafts(c, 6)
        c.verify([6, 7])
        text += [6, 7]
        drafts(c, 9)
        text += run_round(c, 9, 1)
        other.prefill(text)
        assert c.draft_chain(4, DRAFTS)[0] == other.draft_chain(4, DRAFTS)[0] == drafts(other, 4)


@EACH
def test_round_copies_only_tokens_to_the_host(model: Model) -> None:
    with sampling_context(model) as c:
        c.prefill(some_tokens(model, 20))
        before = c.counters
        for keep in (3, 0, 2):
            run_round(c, 5, keep)
        c.verify_chain([4])
        after = c.counters
    assert after.target_decodes - before.target_decodes == 4
    assert after.draft_decodes - before.draft_decodes == 3
    for name in ("hidden_bytes", "logits_bytes", "embeddings_bytes", "output_buffer_bytes"):
        assert getattr(after, name) == getattr(before, name), name


@EACH
def test_draft_chain_computes_the_head_block_once_per_step(model: Model) -> None:
    with sampling_context(model, trace=True) as c:
        c.prefill(some_tokens(model, 20))
        c.inspect.trace()
        counts = []
        for n in (1, 2, 3):
            c.draft_chain(5, n)
            nodes = c.inspect.trace()
            assert {node.graph for node in nodes} == {"draft"}
            assert {node.shape[1] for node in nodes if node.name.startswith("mtp_eh_proj")} == {1}
            counts.append(work(nodes))
        assert counts[2] - counts[1] == counts[1] - counts[0]
        assert counts[0]["CUSTOM"] == 1  # the node that samples
        c.verify_chain([5, 1, 2, 3])
        rows = {node.name.split("-")[0]: node.shape[1] for node in c.inspect.trace() if node.graph == "target"}
        # for each row, the head's block computes only K and V
        assert (rows["mtp_eh_proj"], rows["mtp_attn_norm"]) == (4, 4)
        assert "mtp_Qcur_full" not in rows


def test_graphs_are_reused_for_any_number_of_accepted_drafts(dense: Model) -> None:
    with sampling_context(dense) as c:
        c.prefill(some_tokens(dense, 20))
        before = c.counters
        for keep in (3, 0, 2, 1, 3, 3, 0, 1):
            run_round(c, 5, keep)
        after = c.counters
    decodes = after.target_decodes + after.draft_decodes - before.target_decodes - before.draft_decodes
    assert decodes == 16
    assert decodes - (after.graphs_reused - before.graphs_reused) == 2  # one graph of each kind was built


def test_draft_depth_change_builds_no_graph(dense: Model) -> None:
    with sampling_context(dense) as c:
        c.prefill(some_tokens(dense, 20))
        for depths in (
            (0, 1, 2, 3),
            (2, 0, 1, 3, 1, 0, 3, 2),
        ):  # each depth for the first time, then again in another order
            before = c.counters
            for n in depths:
                made = c.draft_chain(5, n)[0] if n else []
                c.verify_chain([5, *made])
                c.rewind(c.n_past - n)
            after = c.counters
        decodes = after.target_decodes + after.draft_decodes - before.target_decodes - before.draft_decodes
        # except the decodes in which the head catches up, which share one graph
        assert decodes - (after.graphs_reused - before.graphs_reused) <= 1


def test_graphs_are_reused_until_the_context_doubles(dense: Model) -> None:
    def built(c: Context, n_past: int) -> int:
        c.clear()
        c.prefill(some_tokens(dense, n_past))
        before = c.counters
        for n in (3, 1, 2, 3):
            made = c.draft_chain(5, n)[0]
            c.verify_chain([5, *made])
            c.rewind(c.n_past - n)
        after = c.counters
        decodes = after.target_decodes + after.draft_decodes - before.target_decodes - before.draft_decodes
        return decodes - (after.graphs_reused - before.graphs_reused)

    with sampling_context(dense, n_ctx=2048) as c:
        assert [built(c, n_past) for n_past in (20, 300, 1000, 100, 1030, 1500, 1100)] == [6, 0, 0, 0, 6, 0, 0]


def test_memory_counts_the_compute_buffers_of_cached_graphs(dense: Model) -> None:
    with sampling_context(dense) as c:
        c.prefill(some_tokens(dense, 20))
        found = []
        for n in range(DRAFTS + 1):
            made = c.draft_chain(5, n)[0] if n else []
            c.verify_chain([5, *made])
            c.rewind(c.n_past - n)
            found.append(sum(device.compute for device in c.memory()))
    assert found == sorted(set(found))


def test_context_with_cached_graphs_closes_without_a_warning(dense: Model, caplog: pytest.LogCaptureFixture) -> None:
    with sampling_context(dense) as c:
        c.prefill(some_tokens(dense, 20))
        run_round(c, 5, 2)
        with caplog.at_level(logging.WARNING, "pymtp.native"):
            c.close()
    assert not caplog.records


def test_generation_decodes_twice_per_round(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm()  # a new LLM: after cached tokens, the head may need one more decode to catch up
    before = llm.context.counters
    stats = llm.generate("def main():", SamplingParams(max_tokens=41, ignore_eos=True)).stats
    after = llm.context.counters
    assert after.target_decodes - before.target_decodes == stats.rounds + 1
    assert after.draft_decodes - before.draft_decodes == sum(n > 0 for n in stats.depths)


@EACH
def test_round_without_drafts_adds_one_stored_row_to_plain_decoding(model: Model) -> None:
    found = []
    for draft_tokens in (DRAFTS, 0):
        with sampling_context(model, draft_tokens=draft_tokens, trace=True) as c:
            c.prefill(some_tokens(model, 20))
            c.verify_chain([3])
            c.inspect.trace()
            c.verify_chain([4])
            found.append(work(c.inspect.trace()))
    assert found[0] - found[1] == {"SET_ROWS": 1}
    assert found[1] - found[0] == {}


@pytest.mark.parametrize(
    ("model", "n"),
    [*(("dense", n) for n in (1, 62, 63, 64, 65, 130)), ("moe", 64), ("qwen3next", 64)],
    indirect=["model"],
)
def test_head_catches_up_after_rounds_without_drafts(model: Model, n: int) -> None:
    with sampling_context(model, **EXACT) as plain, sampling_context(model, **EXACT) as prompt:
        text = some_tokens(model, 30 + n)
        plain.prefill(text[:30])
        for token in text[30:]:
            plain.verify_chain([token])
            assert plain.tokens_held() - plain.inspect.head_rows() <= 63
        assert plain.counters.draft_decodes == (n - 1) // 63  # the head decodes many missed tokens at once
        prompt.prefill(text)
        made, _ = plain.draft_chain(5, DRAFTS)
        assert made == prompt.draft_chain(5, DRAFTS)[0]
        plain.verify_chain([5, *made])
        prompt.verify_chain([5, *made])
        one, other = (np.frombuffer(c.inspect.head_state(), np.float32) for c in (plain, prompt))
        np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-5)


@EACH
def test_head_catches_up_for_each_sequence_separately(model: Model) -> None:
    texts = {seq: some_tokens(model, 40, seed=seq) for seq in range(2)}
    with sampling_context(model, n_seq_max=2, **EXACT) as c:
        c.prefill_batch({seq: text[:20] for seq, text in texts.items()})
        for i in range(20, 40):
            for seq, text in texts.items():
                c.verify_chain([text[i]], seq)
        found = {seq: (c.inspect.head_state(seq), c.draft_chain(5, DRAFTS, seq)[0]) for seq in texts}
    for seq, (state, chain) in found.items():
        with sampling_context(model, n_seq_max=2, **EXACT) as alone:
            alone.prefill(texts[seq], seq)
            one, other = (np.frombuffer(s, np.float32) for s in (state, alone.inspect.head_state(seq)))
            np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-5)
            assert chain == alone.draft_chain(5, DRAFTS, seq)[0]


@EACH
def test_head_uses_its_own_token_embeddings(model: Model, tmp_path: Path) -> None:
    """Check drafts after prompts, in chains, and after rounds without drafts.

    Heads of published models have no embeddings of their own: they share those of the trunk.
    """
    own = np.random.default_rng(0).normal(0, 1, (model.n_vocab, model.n_embd)).astype(np.float32)
    rewrite(model.path, tmp_path / "own.gguf", more={f"blk.{model.n_layer}.nextn.embed_tokens.weight": own})
    text = some_tokens(model, 30)
    with (
        Model(tmp_path / "own.gguf") as other,
        sampling_context(other, **EXACT) as rounds,
        sampling_context(other, "host-copy", **EXACT) as steps,
        sampling_context(model, **EXACT) as shared,
    ):
        for c in (rounds, steps, shared):
            c.prefill(text[:20])
            for token in text[20:]:
                c.verify_chain([token])
        chain, confidences = rounds.draft_chain(7, DRAFTS)
        assert (chain, pytest.approx(confidences, abs=1e-4)) == steps.draft_chain(7, DRAFTS)
        assert confidences != pytest.approx(shared.draft_chain(7, DRAFTS)[1], abs=1e-2)
        one, two, three = (np.frombuffer(c.inspect.head_state(), np.float32) for c in (rounds, steps, shared))
        np.testing.assert_allclose(one, two, atol=1e-4, rtol=1e-5)
        assert not np.allclose(one, three, atol=1e-2)
