"""Tests of prefill: the target's graph fills the head's cache bit for bit, and computes and copies nothing else.

The reference is the "host-copy" mode of the same binary: it copies hidden states to the host and back, and computes the
whole block in the draft context.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.bits import assert_same
from helpers.contexts import BOTH, DRAFTS, EACH, EXACT, context, drafts, some_tokens, work

from pymtp import InvalidRequestError
from pymtp.context.context import Context
from pymtp.context.options import PREFILL_MODES
from pymtp.model.model import Model

# The operations for K and V of the head's only block: two norms, their concatenation and the matmul with it, the
# block's first norm, K and V, the norm and rotation of K, two stores. Then the operations that shift the hidden states
# by one token, and that keep the last hidden state
SYNC = {"RMS_NORM": 4, "MUL": 4, "MUL_MAT": 3, "ROPE": 1, "SET_ROWS": 3, "CONCAT": 2, "GET_ROWS": 1}


def prefill_all(context: Context, *prompts: list[int]) -> tuple[bytes, bytes, list[int]]:
    """Prefill the prompts, and return the last logits, the head's state, and drafts."""
    for prompt in prompts:
        logits = context.prefill(prompt)
    return logits.tobytes(), context.inspect.head_state(), drafts(context, int(logits.argmax()))


def results_agree(one: tuple[bytes, bytes, list[int]], other: tuple[bytes, bytes, list[int]]) -> bool:
    """Return whether two results of `prefill_all` agree, within the rounding of other batch sizes with an F32 cache."""
    for a, b in zip(one[:2], other[:2], strict=True):
        assert_same(np.frombuffer(a, np.float32), np.frombuffer(b, np.float32), atol=1e-4)
    return one[2] == other[2]


@EACH
@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 163])
def test_fused_prefill_fills_the_head_cache_as_host_copy_does(model: Model, n: int) -> None:
    prompt = some_tokens(model, n)
    with context(model) as fused, context(model, "host-copy") as host:
        assert prefill_all(fused, prompt) == prefill_all(host, prompt)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("dense", {"n_ubatch": 16, "n_batch": 48}),
        ("dense", {"type_k": "f32", "type_v": "f32"}),
        ("dense", {"type_k": "q8_0", "type_v": "q8_0"}),
        ("dense", {"type_k": "q4_0", "type_v": "f16"}),
        ("dense", {"flash_attn": "off"}),
        ("dense", {"flash_attn": "on"}),
        *((model, {"tap": "pre_norm"}) for model in ("dense", "moe", "qwen3next")),
        *((model, {"draft_tokens": 8}) for model in ("dense", "moe", "qwen3next")),
    ],
    ids=str,
    indirect=["model"],
)
def test_fused_prefill_matches_host_copy_with_any_options(model: Model, options: dict[str, Any]) -> None:
    prompt = some_tokens(model, 270)  # more than 256 cells, from where more of the cache is read
    with context(model, **options) as fused, context(model, "host-copy", **options) as host:
        assert prefill_all(fused, prompt) == prefill_all(host, prompt)


@EACH
@pytest.mark.parametrize("options", [{"n_ubatch": 64}, {"n_ubatch": 7, "n_batch": 50}, {"n_ubatch": 16}], ids=str)
def test_prefill_splits_a_batch_into_full_ubatches(model: Model, options: dict[str, Any]) -> None:
    # llama.cpp splits 65 tokens into 61 and 4, so that it can rewind; with replay, ubatches may be 64 and 1
    prompt = some_tokens(model, 65)
    options = options | EXACT
    with context(model, trace=True, **options) as fused, context(model, "host-copy", **options) as host:
        assert results_agree(prefill_all(fused, prompt), prefill_all(host, prompt))
        rows = [node.shape[1] for node in fused.inspect.trace() if node.name.startswith("mtp_h_shifted")]
    n_batch, n_ubatch = options.get("n_batch", 2048), options["n_ubatch"]
    batches = [min(n_batch, 65 - start) for start in range(0, 65, n_batch)]
    assert rows == [min(n_ubatch, n - start) for n in batches for start in range(0, n, n_ubatch)]


@EACH
def test_prefill_in_pieces_matches_one_call(model: Model) -> None:
    prompt = some_tokens(model, 150)
    pieces = [prompt[:1], prompt[1:2], prompt[2:72], prompt[72:]]
    with context(model) as fused, context(model, "host-copy") as host:
        assert prefill_all(fused, *pieces) == prefill_all(host, *pieces)


@EACH
def test_prefill_with_outputs_for_all_tokens_fills_the_same_cache(model: Model) -> None:
    prompt = some_tokens(model, 100)
    with context(model) as fused, context(model, "all-outputs") as every:
        (_, state, chain), (_, other_state, other_chain) = prefill_all(fused, prompt), prefill_all(every, prompt)
    # for all 100 tokens, one more matmul of the head is computed
    values, other = (np.frombuffer(s, np.float16).astype(np.float32) for s in (state, other_state))
    assert_same(values, other, atol=1e-2)
    assert chain == other_chain


@EACH
@pytest.mark.parametrize("n_keep", [1, 2, 4])
@pytest.mark.parametrize("drafted", [True, False])
def test_prefill_continues_after_a_rewound_round(model: Model, n_keep: int, drafted: bool) -> None:
    first, round_, second = some_tokens(model, 50), some_tokens(model, 4, seed=1), some_tokens(model, 90, seed=2)
    results = []
    for mode in ("fused", "host-copy"):
        with context(model, mode, **EXACT) as c:
            c.prefill(first)
            for token in round_[:DRAFTS] if drafted else []:
                c.draft(token)
            c.verify(round_)
            c.rewind(50 + n_keep)
            results.append(prefill_all(c, second))
            assert (c.n_past, c.inspect.head_rows()) == (140 + n_keep, 141 + n_keep)
    assert results_agree(results[0], results[1])


def test_prefill_drops_unverified_drafts(dense: Model) -> None:
    first, second = some_tokens(dense, 50), some_tokens(dense, 60, seed=1)
    with context(dense) as c, context(dense) as other:
        c.prefill(first)
        drafts(c, 7)
        assert prefill_all(c, second) == prefill_all(other, first, second)


def test_cleared_context_prefills_from_zero(dense: Model) -> None:
    prompt = some_tokens(dense, 70)
    with context(dense) as c, context(dense) as fresh:
        c.prefill(some_tokens(dense, 90, seed=1))
        c.clear()
        assert prefill_all(c, prompt) == prefill_all(fresh, prompt)


@EACH
@pytest.mark.parametrize("lengths", [(40, 40, 40), (200, 3, 64), (1, 2, 1), (280, 30, 1)], ids=str)
@pytest.mark.parametrize("mode", ["fused", "host-copy"])
def test_prefill_batch_matches_each_sequence_alone(model: Model, lengths: tuple[int, ...], mode: str) -> None:
    prompts = {seq: some_tokens(model, n, seed=seq) for seq, n in enumerate(lengths)}
    options: dict[str, Any] = {"n_batch": 256, "n_ubatch": 128} | EXACT
    with context(model, mode, n_seq_max=3, **options) as together:
        logits = together.prefill_batch(prompts)
        for seq, prompt in prompts.items():
            with context(model, **options) as alone:
                expected = alone.prefill(prompt)
                assert_same(logits[seq], expected, atol=2e-4)
                ours, theirs = (
                    np.frombuffer(c, np.float32) for c in (together.inspect.head_state(seq), alone.inspect.head_state())
                )
                ours = ours[seq:][: theirs.size]  # a state of a batch has one more word for each other sequence
                floats = np.abs(theirs) > 1e-9  # the other words are integers: a magic number, positions, sizes
                assert_same(ours[floats], theirs[floats], atol=1e-5)
                assert floats.sum() > 100 * len(prompt)
                token = int(expected.argmax())
                assert drafts(together, token, seq) == drafts(alone, token)


def test_prefill_of_one_sequence_leaves_the_others(dense: Model) -> None:
    first, second, third = (some_tokens(dense, 30, seed) for seed in range(3))
    with context(dense, n_seq_max=2) as c, context(dense) as alone:
        c.prefill_batch({0: first, 1: second})
        state = c.inspect.head_state(0)
        c.prefill(third, seq=1)
        assert (c.tokens_held(0), c.tokens_held(1)) == (30, 60)
        assert c.inspect.head_state(0) == state
        alone.prefill(first)
        assert drafts(c, 9) == drafts(alone, 9)
        c.clear(0)
        assert (c.tokens_held(0), c.inspect.head_rows(0), c.tokens_held(1)) == (0, 0, 60)


def test_invalid_sequences_are_refused_and_the_others_continue(dense: Model) -> None:
    with context(dense, n_seq_max=2) as c:
        for call in (c.tokens_held, c.inspect.head_rows, c.inspect.head_state, c.clear):
            with pytest.raises(InvalidRequestError):
                call(2)
        with pytest.raises(InvalidRequestError, match="seq=2"):
            c.prefill_batch({0: [1], 2: [1]})
        with pytest.raises(InvalidRequestError, match="no sequence 5"):
            c.draft(1, seq=5)
        with pytest.raises(InvalidRequestError, match="a sequence is needed"):
            c.prefill_batch({})
        c.prefill([1, 2, 3], seq=1)
        assert (c.tokens_held(0), c.tokens_held(1)) == (0, 3)


# ── Computed nodes ────────────────────────────────────────────────────────────────────────────────────────────────────


@EACH
def test_fused_prefill_only_adds_k_and_v_of_the_head(model: Model) -> None:
    prompt = some_tokens(model, 40)
    with (
        context(model, trace=True, n_batch=20) as fused,
        context(model, draft_tokens=0, trace=True, n_batch=20) as none,
    ):
        fused.prefill(prompt)
        none.prefill(prompt)
        assert fused.counters.draft_decodes == 0
        with_mtp, without = work(fused.inspect.trace()), work(none.inspect.trace())
    # two ubatches: no second norm, no query, no feed-forward part or experts, no logits
    assert with_mtp - without == {op: 2 * n for op, n in SYNC.items()}
    assert without - with_mtp == {}


@EACH
def test_prefill_ubatch_without_outputs_skips_the_output_layer(model: Model) -> None:
    for draft_tokens in (0, DRAFTS):
        with context(model, draft_tokens=draft_tokens, trace=True, n_batch=20) as c:
            c.prefill(some_tokens(model, 40))
            nodes = c.inspect.trace()
        assert [node.shape[1] for node in nodes if node.name == "result_output"] == [1]
        assert [node.shape[1] for node in nodes if node.name == "result_norm"] == [1]


def test_pre_norm_tap_computes_the_final_norm_only_for_output_rows(dense: Model) -> None:
    with context(dense, tap="pre_norm", trace=True, n_batch=20) as c:
        c.prefill(some_tokens(dense, 40))
        norms = [node.shape for node in c.inspect.trace() if node.name == "norm"]
    assert norms == [(dense.n_embd, 1, 1, 1)]


@BOTH  # for qwen3next, llama.cpp computes the FFN only for rows with outputs
def test_host_copy_prefill_computes_the_whole_head_block(model: Model) -> None:
    with context(model, "host-copy", trace=True) as c:
        c.prefill(some_tokens(model, 20))
        rows = {node.name.split("-")[0]: node.shape[1] for node in c.inspect.trace() if node.graph == "draft"}
    assert rows["mtp_attn_out"] == rows["mtp_post_ffn"] == 20


@EACH
def test_computed_tensors_are_aligned_to_cache_lines(model: Model) -> None:
    # a gated delta net whose tensors are unaligned can take 40% longer
    with context(model, trace=True) as c:
        c.prefill(some_tokens(model, 33))
        drafts(c, 1)
        assert [
            node for node in c.inspect.trace() if node.op in ("GATED_DELTA_NET", "MUL_MAT") and not node.aligned
        ] == []


def test_fused_prefill_copies_one_row_of_logits_and_no_hidden_states(dense: Model) -> None:
    n = 200
    row = dense.n_embd * 4
    with context(dense) as fused, context(dense, "host-copy") as host, context(dense, "all-outputs") as every:
        for c in (fused, host, every):
            c.prefill(some_tokens(dense, n))
        assert fused.counters.hidden_bytes == 0
        assert fused.counters.logits_bytes == dense.n_vocab * 4
        assert host.counters.hidden_bytes == n * row
        assert every.counters.embeddings_bytes == n * row
        assert every.counters.logits_bytes == n * dense.n_vocab * 4
        fused.draft(1)
        assert fused.counters.hidden_bytes == 2 * row  # one hidden state for the draft, and one for the next draft


def test_host_buffer_grows_with_outputs_not_with_tokens(dense: Model) -> None:
    with context(dense) as fused, context(dense, draft_tokens=0) as none, context(dense, "all-outputs") as every:
        for c in (fused, none, every):
            c.prefill(some_tokens(dense, 300))
        assert none.counters.output_buffer_bytes == dense.n_vocab * 4
        assert (
            fused.counters.output_buffer_bytes == 2 * dense.n_vocab * 4
        )  # the draft context has its own output buffer
        assert every.counters.output_buffer_bytes > 300 * dense.n_vocab * 4


@EACH
def test_draft_context_reserves_memory_for_a_round_not_for_a_prompt(model: Model) -> None:
    def compute(**options: Any) -> int:
        with context(model, n_ubatch=512, **options) as c:
            c.prefill(some_tokens(model, 600))
            return sum(device.compute + device.head_compute for device in c.memory())

    none, fused, host = compute(draft_tokens=0), compute(), compute(mode="host-copy")
    assert fused - none < (host - none) / 4


# ── Logits and embeddings for users ───────────────────────────────────────────────────────────────────────────────────


@EACH
@pytest.mark.parametrize("mode", PREFILL_MODES)
def test_prefill_logits_leave_drafts_unchanged(model: Model, mode: str) -> None:
    prompt = some_tokens(model, 60)
    options: dict[str, Any] = {"max_outputs": 25}
    with context(model, mode, **options) as requested, context(model, draft_tokens=0, **options) as plain:
        logits = requested.prefill_logits(prompt)
        assert logits.shape == (60, model.n_vocab)
        assert_same(logits, plain.prefill_logits(prompt), atol=1e-4)
        with context(model, mode) as other:
            assert_same(logits[-1], other.prefill(prompt), atol=1e-4)
            assert drafts(requested, 3) == drafts(other, 3)


def test_prefill_logits_give_code_a_lower_perplexity_than_noise(shipped_f32: Model, prompts: list[str]) -> None:
    def perplexity(tokens: list[int]) -> float:
        with context(shipped_f32, max_outputs=64) as c:
            logits = c.prefill_logits(tokens)[:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return float(np.exp(-log_p[np.arange(len(tokens) - 1), tokens[1:]].mean()))

    assert perplexity(shipped_f32.tokenize(prompts[0])) < 60 < perplexity(some_tokens(shipped_f32, 100))


@EACH
@pytest.mark.parametrize("mode", PREFILL_MODES)
def test_embeddings_leave_drafts_unchanged(model: Model, mode: str) -> None:
    prompt = some_tokens(model, 60)
    with context(model, mode, embeddings=True) as requested, context(model, draft_tokens=0, embeddings=True) as plain:
        requested.prefill(prompt)
        plain.prefill(prompt)
        embeddings = requested.embeddings()
        assert embeddings.shape == (60, model.n_embd)
        assert_same(embeddings, plain.embeddings(), atol=1e-4)
        copied = requested.counters.embeddings_bytes
        with context(model, mode) as other:
            other.prefill(prompt)
            assert drafts(requested, 3) == drafts(other, 3)
            requested.verify([3, 4])
            assert requested.counters.embeddings_bytes == copied, "a round copies none"
            with pytest.raises(InvalidRequestError, match="embeddings=True"):
                other.embeddings()


def test_prefill_refuses_unsupported_calls(dense: Model) -> None:
    for option in ({"prefill": "teleport"}, {"n_seq_max": 0}, {"n_seq_max": 257}, {"max_outputs": 0}):
        with pytest.raises(InvalidRequestError, match=next(iter(option))):
            Context(dense, n_ctx=256, n_batch=512, **option)
    with pytest.raises(InvalidRequestError, match="post-norm"):
        context(dense, "all-outputs", tap="pre_norm")


def test_head_without_the_prompt_gives_other_drafts_in_fused_mode(dense: Model) -> None:
    prompt = some_tokens(dense, 100)
    for fault in ("empty_head", "shifted_rows"):
        with context(dense) as broken, context(dense) as right:
            broken.inspect.break_on_purpose(fault)
            broken.prefill(prompt)
            right.prefill(prompt)
            assert not np.allclose(broken.draft(1), right.draft(1), atol=1e-2)
