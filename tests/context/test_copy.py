"""Tests of copied and moved sequences: they continue with the same bits."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from helpers.contexts import EACH, EXACT, context, some_tokens
from helpers.moments import (
    BOTH_MODES,
    CACHES,
    MOMENTS,
    SAMPLED,
    after_a_rewind,
    continue_text,
    draft_and_verify,
    each_model_and_cache_type,
    prefill_and_sample,
    without_drafts,
)

from pymtp import CancelledError, ClosedError, InvalidRequestError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.sampling import Sampler


@each_model_and_cache_type(CACHES)
def test_copy_continues_bit_for_bit_and_leaves_the_original(model: Model, caches: dict[str, Any], mode: str) -> None:
    with context(model, mode, **caches) as other, context(model, mode, n_seq_max=4, **caches) as c:
        c.prefill(some_tokens(model, 60, seed=1), 3)  # another prompt, which the copy must overwrite
        c.prefill(some_tokens(model, 20, seed=2), 2)
        for moment in MOMENTS:
            other.clear()
            wanted = continue_text(other, 0, without_drafts(moment)(other, 0))
            c.clear(1)
            token = moment(c, 1)
            c.clear(3)
            c.set_sampling(SAMPLED, 3)
            c.copy(1, 3)
            assert c.inspect.head_rows(3) == c.inspect.head_rows(1) <= c.tokens_held(1)
            assert continue_text(c, 3, token) == wanted, moment
            assert continue_text(c, 1, token) == wanted, moment
        assert c.tokens(2) == some_tokens(model, 20, seed=2)


@EACH
@pytest.mark.parametrize(("mode", "seed"), [("fused", 0), ("host-copy", 1)])
def test_copied_and_moved_sequences_match_those_of_a_context_of_one_sequence(
    model: Model, mode: str, seed: int
) -> None:
    pick = random.Random(seed)
    n_seqs = 4
    with ExitStack() as stack:
        c = stack.enter_context(context(model, mode, n_seq_max=n_seqs, **EXACT))
        other = stack.enter_context(context(model, mode, **EXACT))
        texts: list[list[Any]] = [[] for _ in range(n_seqs)]  # the steps (a method and its argument) of each sequence

        def go(c: Context, seq: int, step: tuple[str, Any]) -> bytes:
            what, value = step
            if what == "rewind":
                c.rewind(c.tokens_held(seq) - value, seq)
                return b""
            return (c.prefill if what == "prefill" else c.verify)(value, seq).tobytes()

        for _ in range(60):
            seq = pick.randrange(n_seqs)
            empty = [s for s in range(n_seqs) if not texts[s]]
            what = pick.choice(["prefill", "verify", "verify", "copy", "move", "clear"])
            if what in ("copy", "move") and texts[seq] and empty:
                to = pick.choice(empty)
                getattr(c, what)(seq, to)
                texts[to] = list(texts[seq])
                if what == "move":
                    texts[seq] = []
                    assert c.tokens(seq) == []
            elif what == "clear":
                c.clear(seq)
                texts[seq] = []
            elif what == "prefill" or texts[seq]:
                step = ("prefill", pick.choices(range(500), k=pick.randint(1, 9)))
                if what == "verify":
                    step = ("verify", pick.choices(range(500), k=4))
                last = go(c, seq, step)
                texts[seq].append(step)
                other.clear()
                assert [go(other, 0, one) for one in texts[seq]][-1] == last
                if what == "verify" and pick.random() < 0.7:
                    texts[seq].append(("rewind", pick.randint(1, 3)))
                    go(c, seq, texts[seq][-1])


@BOTH_MODES
def test_copy_samples_its_first_token_after_other_prefills(dense: Model, mode: str) -> None:
    with context(dense, mode, n_seq_max=3) as c:
        token = prefill_and_sample(c, 0)
        c.copy(0, 1)
        c.prefill(some_tokens(dense, 30), 2)
        c.clear(0)
        c.copy(1, 0)
        for seq in (0, 1):
            c.set_sampling(SAMPLED, seq)
            assert c.first_token(seq) == token
        c.verify_chain([token], 1)
        with pytest.raises(InvalidRequestError, match="was not in the last prefill"):
            c.first_token(1)


@pytest.mark.parametrize("caches", CACHES.values(), ids=CACHES.keys())
def test_copy_moves_only_the_used_cells(shipped_f32: Model, caches: dict[str, Any]) -> None:
    with context(shipped_f32, n_seq_max=3, **caches) as c:
        (memory,) = c.memory()
        row = (memory.kv + memory.head_kv) / (c.n_ctx * c.n_seq_max)  # bytes of K and V of a token
        states = set()
        for n in (10, 300):
            c.clear()
            c.prefill(some_tokens(shipped_f32, n))
            before = c.counters.sequence_bytes
            c.copy(0, 1)
            states.add(c.counters.sequence_bytes - before - n * row - 4 * shipped_f32.n_embd)
        (state,) = states  # bytes of the recurrent state, which do not depend on the length
        # llama.cpp's own convolution inputs, which are unused, and a row of zeros that all sequences share
        assert 0 <= memory.states - c.n_seq_max * state < c.n_seq_max * state / 5
        decodes = c.counters.target_decodes + c.counters.draft_decodes
        c.move(1, 2)
        assert c.counters.target_decodes + c.counters.draft_decodes == decodes


def test_invalid_copy_is_refused_and_changes_nothing(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c:
        tokens = [prefill_and_sample(c, seq) for seq in (0, 1)]
        before = [c.tokens(seq) for seq in range(3)]
        for call in (c.copy, c.move):
            for source, seq, why in (
                (0, 1, "sequence 1 holds 40 tokens"),
                (0, 0, "sequence 0 holds 40 tokens"),
                (2, 2, "goes to another sequence"),
                (0, 3, "there is no sequence 3"),
                (0, -1, "there is no sequence -1"),
                (3, 2, "there is no sequence 3"),
                (-1, 2, "there is no sequence -1"),
            ):
                with pytest.raises(InvalidRequestError, match=why):
                    call(source, seq)
        assert [c.tokens(seq) for seq in range(3)] == before
        assert continue_text(c, 0, tokens[0]) == continue_text(c, 1, tokens[1])
        assert c.counters.sequence_bytes == 0


def test_copy_of_an_empty_sequence_is_empty(dense: Model) -> None:
    with context(dense, n_seq_max=2) as c:
        c.copy(0, 1)
        assert (c.tokens(1), c.counters.sequence_bytes) == ([], 0)
        assert continue_text(c, 1, prefill_and_sample(c, 1)) == continue_text(c, 0, prefill_and_sample(c, 0))


@BOTH_MODES
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
@pytest.mark.parametrize("what", ["copy", "move"])
def test_failed_copy_keeps_the_original_and_empties_the_target(dense: Model, mode: str, how: str, what: str) -> None:
    with context(dense, mode, n_seq_max=2) as c, context(dense, mode) as other:
        wanted = continue_text(other, 0, after_a_rewind(other, 0))
        token = after_a_rewind(c, 0)
        c.set_sampling(SAMPLED, 1)
        if how == "fails":
            c.inspect.break_on_purpose("copy_throws")
        else:
            c.cancel()
        with pytest.raises(NativeError if how == "fails" else CancelledError):
            getattr(c, what)(0, 1)
        c.inspect.break_on_purpose("none")
        c.cancel(False)
        assert c.tokens(1) == []
        c.copy(0, 1)
        assert continue_text(c, 0, token) == wanted
        assert continue_text(c, 1, token) == wanted


def test_moved_sequence_keeps_its_sampling_parameters(dense: Model) -> None:
    params = SamplingParams(temperature=1.0, seed=3, grammar='root ::= ("ab" | "cd" | "e")+ "."', logprobs=2)

    def text(moves: bool) -> tuple[list[int], list[Any]]:
        with context(dense, n_seq_max=3) as c:
            token = prefill_and_sample(c, 1, Sampler(params))
            tokens, seq = [token], 1
            for i in range(6):
                if moves:
                    to = (2, 0, 1)[i % 3]
                    reported = c.logprobs(seq)
                    c.move(seq, to)
                    assert (c.logprobs(to), c.logprobs(seq), c.tokens(seq)) == (reported, [], [])
                    with pytest.raises(InvalidRequestError, match="was not told how to sample"):
                        c.verify_chain([token], seq)
                    seq = to
                tokens += draft_and_verify(c, seq, tokens[-1], i % 3)
            return tokens, c.logprobs(seq)

    assert text(moves=True) == text(moves=False)


@EACH
def test_sequences_share_one_decode_after_a_move_into_the_gap_between_them(model: Model) -> None:
    with context(model, n_seq_max=4) as c:
        tokens = {seq: prefill_and_sample(c, seq) for seq in (0, 1, 3)}
        for decodes in (2, 1):
            before = c.counters
            drafts = c.draft_chains(tokens, 2)
            c.verify_chains({seq: [token, *drafts[seq][0]] for seq, token in tokens.items()})  # type: ignore[index]
            for seq in tokens:
                c.rewind(c.tokens_held(seq) - 2, seq)
            after = c.counters
            assert after.target_decodes - before.target_decodes == decodes
            assert after.draft_decodes - before.draft_decodes == decodes
            if decodes == 2:
                c.move(3, 2)
                tokens = {0: tokens[0], 1: tokens[1], 2: tokens[3]}


def test_closed_context_refuses_copies(dense: Model) -> None:
    c = context(dense, n_seq_max=2)
    c.close()
    for call in (c.copy, c.move):
        with pytest.raises(ClosedError):
            call(0, 1)


@EACH
def test_copy_works_without_drafts(model: Model) -> None:
    with context(model, draft_tokens=0, n_seq_max=2) as c:
        token = prefill_and_sample(c, 0)
        token = draft_and_verify(c, 0, token, 0)[-1]
        c.copy(0, 1)
        np.testing.assert_array_equal(c.verify([token], 1), c.verify([token], 0))
