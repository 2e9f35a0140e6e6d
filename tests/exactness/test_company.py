"""Tests of batch rounds: one decode of the head and one of the target for all sequences.

Each sequence generates the same tokens as alone in a context.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.contexts import BOTH, DRAFTS, EXACT, context, some_tokens

from pymtp import ContextFullError, InvalidRequestError
from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

ROUNDS = 12
OTHER_CACHES: dict[str, dict[str, Any]] = {
    "f16": {},
    "f32, no flash": EXACT,
    "q8_0": {"type_k": "q8_0", "type_v": "q8_0"},
}
SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3, top_k=20),
    SamplingParams(temperature=0.8, seed=4, top_k=0, repetition_penalty=1.3),
    SamplingParams(temperature=1.2, seed=5, logprobs=2),
    SamplingParams(temperature=0.7, seed=6, logit_bias={9: 2.0}),
]


def prefill_prompts(c: Context, prompts: dict[int, list[int]], params: Sequence[SamplingParams]) -> dict[int, int]:
    """Prefill one prompt after the other, each in one call, and return the first token of each sequence."""
    tokens = {}
    for seq, prompt in prompts.items():
        c.set_sampling(Sampler(params[seq]), seq)
        c.prefill(prompt, seq)
        tokens[seq] = c.first_token(seq)
    return tokens


def decode_round(c: Context, tokens: dict[int, int], n: int) -> dict[int, list[int]]:
    """Run a round of n drafts for each sequence, and return its new tokens."""
    drafts = c.draft_chains(tokens, n) if n else {seq: ([], []) for seq in tokens}
    chains = {seq: [token, *drafts[seq][0]] for seq, token in tokens.items()}  # type: ignore[index]
    before = {seq: c.tokens_held(seq) for seq in tokens}
    out = c.verify_chains(chains)
    for seq, sampled in out.items():
        assert isinstance(sampled, list)
        if len(sampled) <= n:
            c.rewind(before[seq] + len(sampled), seq)
    return out  # type: ignore[return-value]


def written(c: Context, prompts: dict[int, list[int]], depths: Sequence[int]) -> dict[int, list[int]]:
    tokens = prefill_prompts(c, prompts, SETTINGS)
    texts = {seq: [token] for seq, token in tokens.items()}
    for n in depths:
        for seq, out in decode_round(c, tokens, n).items():
            texts[seq] += out
            tokens[seq] = out[-1]
    return texts


@BOTH
@pytest.mark.parametrize("caches", OTHER_CACHES.values(), ids=OTHER_CACHES.keys())
@pytest.mark.parametrize("seqs", [(0, 1), (0, 2, 3), (0, 1, 2, 3, 4)], ids=str)
def test_sequence_generates_the_same_tokens_in_a_batch(
    model: Model, caches: dict[str, Any], seqs: tuple[int, ...]
) -> None:
    luck = random.Random(str(seqs))
    prompts = {seq: some_tokens(model, luck.randrange(1, 60), seed=seq) for seq in seqs}
    depths = [luck.randrange(1 + DRAFTS) for _ in range(ROUNDS)]
    with context(model, n_seq_max=5, **caches) as c:
        together = written(c, prompts, depths)
    with context(model, n_seq_max=1, **caches) as c:
        for seq in seqs:
            c.clear()
            alone = prefill_prompts(c, {0: prompts[seq]}, [SETTINGS[seq]])
            text, token = [alone[0]], alone
            while len(text) < len(together[seq]):
                out = decode_round(c, token, 0)
                text += out[0]
                token = {0: out[0][-1]}
            assert together[seq] == text


@BOTH
@pytest.mark.parametrize("caches", OTHER_CACHES.values(), ids=OTHER_CACHES.keys())
@pytest.mark.parametrize("n_plain", [0, 5])
def test_head_drafts_the_same_tokens_in_a_batch(model: Model, caches: dict[str, Any], n_plain: int) -> None:
    prompts = {seq: some_tokens(model, 20 + 7 * seq, seq) for seq in range(4)}

    def drafted(c: Context, prompts: dict[int, list[int]], params: Sequence[SamplingParams]) -> dict[int, Any]:
        tokens = prefill_prompts(c, prompts, params)
        for _ in range(n_plain):  # rounds without drafts: the head falls behind
            tokens = {seq: out[-1] for seq, out in decode_round(c, tokens, 0).items()}
        return c.draft_chains(tokens, DRAFTS)

    with context(model, n_seq_max=4, **caches) as c:
        together = drafted(c, prompts, SETTINGS)
    for seq, prompt in prompts.items():
        with context(model, **caches) as c:
            assert drafted(c, {0: prompt}, [SETTINGS[seq]])[0] == together[seq]


@BOTH
def test_batch_round_is_one_decode_of_the_head_and_one_of_the_target(model: Model) -> None:
    with context(model, n_seq_max=4) as c:
        tokens = prefill_prompts(c, {seq: some_tokens(model, 20, seq) for seq in range(4)}, SETTINGS)
        decode_round(c, tokens, 2)
        before = c.counters
        for _ in range(5):
            tokens = {seq: out[-1] for seq, out in decode_round(c, tokens, 2).items()}
        after = c.counters
    assert after.target_decodes - before.target_decodes == 5
    assert after.draft_decodes - before.draft_decodes == 5
    assert after.graphs_reused - before.graphs_reused == 10


@BOTH
def test_context_without_a_head_decodes_several_sequences_at_once(model: Model) -> None:
    with context(model, n_seq_max=4, draft_tokens=0) as c:
        tokens = prefill_prompts(c, {seq: some_tokens(model, 20, seq) for seq in range(4)}, SETTINGS)
        before = c.counters.target_decodes
        decode_round(c, tokens, 0)
        assert c.counters.target_decodes - before == 1


@BOTH
def test_head_catches_up_for_all_sequences_in_one_decode(model: Model) -> None:
    with context(model, n_seq_max=4) as c:
        tokens = prefill_prompts(c, {seq: some_tokens(model, 20, seq) for seq in range(4)}, SETTINGS)
        for _ in range(3):
            tokens = {seq: out[-1] for seq, out in decode_round(c, tokens, 0).items()}
        assert [c.inspect.head_rows(seq) for seq in range(4)] == [20] * 4
        before = c.counters.draft_decodes
        decode_round(c, tokens, 2)
        assert c.counters.draft_decodes - before == 2
        assert c.inspect.head_rows(0) >= 24


@BOTH
def test_sequences_on_both_sides_of_a_gap_take_a_decode_each(model: Model) -> None:
    with context(model, n_seq_max=4) as c:
        tokens = prefill_prompts(c, {seq: some_tokens(model, 20, seq) for seq in (0, 2, 3)}, SETTINGS)
        before = c.counters
        decode_round(c, tokens, 2)
        after = c.counters
    assert after.target_decodes - before.target_decodes == 2
    assert after.draft_decodes - before.draft_decodes == 2


def test_sequence_whose_grammar_allows_no_token_fails_alone(dense: Model) -> None:
    never = SamplingParams(grammar='root ::= "a" [^\\x00-\\U0010ffff]')
    with context(dense, n_seq_max=3) as c:
        tokens = prefill_prompts(
            c, {seq: some_tokens(dense, 20, seq) for seq in range(3)}, [SETTINGS[0], never, SETTINGS[0]]
        )
        out = c.verify_chains({seq: [token] for seq, token in tokens.items()})
        assert isinstance(out[1], InvalidRequestError)
        assert "the grammar allows no token at position 21" in str(out[1])
        assert all(isinstance(out[seq], list) for seq in (0, 2))
        assert [c.tokens_held(seq) for seq in range(3)] == [21, 21, 21]


@BOTH
@pytest.mark.parametrize("mode", ["fused", "host-copy"])
def test_only_the_sequence_whose_head_logits_are_nan_loses_its_drafts(model: Model, mode: str) -> None:
    prompts = {seq: some_tokens(model, 20, seq) for seq in range(3)}
    infinite = Sampler(SamplingParams(logit_bias={7: 1e30}))
    infinite.native.bias[0].bias = math.inf
    with context(model, mode, n_seq_max=3) as c:
        drafts = c.draft_chains(prefill_prompts(c, prompts, SETTINGS), DRAFTS)
        c.clear()
        tokens = prefill_prompts(c, prompts, SETTINGS)
        c.set_sampling(infinite, 1)
        found = c.draft_chains(tokens, DRAFTS)
        assert found[1] == ([], [])
        assert [found[seq] for seq in (0, 2)] == [drafts[seq] for seq in (0, 2)]
        assert [c.tokens_held(seq) for seq in range(3)] == [20, 20, 20]
        c.set_sampling(Sampler(SETTINGS[1]), 1)
        out = c.verify_chains({seq: [tokens[seq], *found[seq][0]] for seq in range(3)})
        assert all(isinstance(sampled, list) for sampled in out.values())


def test_logprobs_belong_to_the_requested_sequence(dense: Model) -> None:
    asked = [SamplingParams(logprobs=n) for n in (1, 3)]
    with context(dense, n_seq_max=2) as c:
        tokens = prefill_prompts(c, {seq: some_tokens(dense, 20, seq) for seq in range(2)}, asked)
        out = decode_round(c, tokens, 2)
        for seq, n in ((0, 1), (1, 3)):
            found = c.logprobs(seq)
            assert [each.token_id for each in found] == out[seq]
            assert all(len(each.top) == n for each in found)


def test_padding_row_is_not_sampled(dense: Model) -> None:
    a = dense.tokenize("a")[0]
    ends_after_two = SamplingParams(grammar=f"root ::= [a] [a] <[{dense.n_vocab + 1}]>", logprobs=0)
    with context(dense, n_seq_max=2) as c:
        tokens = prefill_prompts(
            c, {seq: some_tokens(dense, 20, seq) for seq in range(2)}, [ends_after_two, SETTINGS[0]]
        )
        # The target would accept the padding row, which repeats the first token; then the grammar allows no token
        out = c.verify_chains({0: [tokens[0]], 1: [tokens[1], 7, 8]})
        assert out[0] == [a]
        assert [entry.token_id for entry in c.logprobs(0)] == [a]


@BOTH
def test_padding_row_is_not_stored(model: Model) -> None:
    lengths = [1, 3, 2]
    with context(model, n_seq_max=3) as c, context(model) as other:
        tokens = prefill_prompts(c, {seq: some_tokens(model, 20, seq) for seq in range(3)}, SETTINGS)
        chains = {seq: [tokens[seq], 7, 8][:n] for seq, n in enumerate(lengths)}
        out = c.verify_chains(chains)
        assert [c.tokens(seq)[20:] for seq in range(3)] == list(chains.values())
        with pytest.raises(InvalidRequestError, match="only 0 can be taken back"):
            c.rewind(20, 0)
        c.rewind(21, 1)
        c.rewind(21, 2)
        drafts = c.draft_chains(tokens, DRAFTS)
        after = c.verify_chains({seq: [3] for seq in range(3)})
        for seq in range(3):
            other.clear()
            alone = prefill_prompts(other, {0: some_tokens(model, 20, seq)}, [SETTINGS[seq]])
            assert other.verify_chain(chains[seq]) == out[seq]
            other.rewind(21)
            assert other.draft_chains(alone, DRAFTS)[0] == drafts[seq]
            assert other.verify_chain([3]) == after[seq]


@BOTH
def test_chain_without_room_for_padding_is_refused(model: Model) -> None:
    with context(model, n_seq_max=2) as c:
        tokens = prefill_prompts(c, {0: some_tokens(model, c.n_ctx - 1, 0), 1: some_tokens(model, 20, 1)}, SETTINGS)
        with pytest.raises(ContextFullError, match=f"{c.n_ctx - 1} tokens held and 2 more"):
            c.verify_chains({0: [tokens[0]], 1: [tokens[1], 7]})
        assert [c.tokens_held(seq) for seq in range(2)] == [c.n_ctx - 1, 20]
        with pytest.raises(InvalidRequestError, match="a sequence is needed"):
            c.verify_chains({})
        with pytest.raises(InvalidRequestError, match="4 tokens, not 0"):
            c.verify_chains({0: [], 1: [1]})
