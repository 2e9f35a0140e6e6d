"""Claims about sequences that begin as copies of others, and such that move: they go on with the same bits."""

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
    begin,
    each_cache,
    goes_on,
    play,
    without_drafts,
)

from pymtp import CancelledError, ClosedError, InvalidRequestError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model
from pymtp.sampling import Sampler


@EACH
@each_cache(CACHES)
def test_a_copy_goes_on_with_the_bits_of_the_original_which_stays_as_it_is(
    model: Model, caches: dict[str, Any], mode: str
) -> None:
    with context(model, mode, **caches) as other, context(model, mode, n_seq_max=4, **caches) as c:
        c.prefill(some_tokens(model, 60, seed=1), 3)  # of which nothing is to stay
        c.prefill(some_tokens(model, 20, seed=2), 2)
        for moment in MOMENTS:
            other.clear()
            wanted = goes_on(other, 0, without_drafts(moment)(other, 0))
            c.clear(1)
            token = moment(c, 1)
            c.clear(3)
            c.set_sampling(SAMPLED, 3)
            c.copy(1, 3)
            assert c.rows_held(3) == c.rows_held(1) <= c.tokens_held(1)
            assert goes_on(c, 3, token) == wanted, moment
            assert goes_on(c, 1, token) == wanted, moment
        assert c.tokens(2) == some_tokens(model, 20, seed=2)


@EACH
@BOTH_MODES
@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_copied_and_moved_about_are_what_they_would_be_alone(
    model: Model, mode: str, seed: int
) -> None:
    pick = random.Random(seed)
    n_seqs = 4
    with ExitStack() as stack:
        c = stack.enter_context(context(model, mode, n_seq_max=n_seqs, **EXACT))
        other = stack.enter_context(context(model, mode, **EXACT))
        texts: list[list[Any]] = [[] for _ in range(n_seqs)]  # what each went through

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
def test_a_copy_has_the_first_token_after_its_prompt_whatever_is_read_before_it_is_asked_for(
    dense: Model, mode: str
) -> None:
    with context(dense, mode, n_seq_max=3) as c:
        token = begin(c, 0)
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
def test_only_what_is_used_is_copied(dense: Model, caches: dict[str, Any]) -> None:
    with context(dense, n_seq_max=3, **caches) as c:
        (memory,) = c.memory()
        row = (memory.kv + memory.head_kv) / (c.n_ctx * c.n_seq_max)  # of a token
        states = set()
        for n in (10, 300):
            c.clear()
            c.prefill(some_tokens(dense, n))
            before = c.counters.sequence_bytes
            c.copy(0, 1)
            states.add(c.counters.sequence_bytes - before - n * row - 4 * dense.n_embd)
        (state,) = states  # of the recurrent layers: whatever the length
        # llama.cpp's own inputs of the convolution, which nothing uses, and a row of zeros that is everybody's
        assert 0 <= memory.states - c.n_seq_max * state < c.n_seq_max * state / 10
        decodes = c.counters.target_decodes + c.counters.draft_decodes
        c.move(1, 2)
        assert c.counters.target_decodes + c.counters.draft_decodes == decodes


def test_what_cannot_be_copied_is_refused_and_nothing_changes(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c:
        tokens = [begin(c, seq) for seq in (0, 1)]
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
        assert goes_on(c, 0, tokens[0]) == goes_on(c, 1, tokens[1])
        assert c.counters.sequence_bytes == 0


def test_a_copy_of_an_empty_sequence_is_empty(dense: Model) -> None:
    with context(dense, n_seq_max=2) as c:
        c.copy(0, 1)
        assert (c.tokens(1), c.counters.sequence_bytes) == ([], 0)
        assert goes_on(c, 1, begin(c, 1)) == goes_on(c, 0, begin(c, 0))


@BOTH_MODES
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
@pytest.mark.parametrize("what", ["copy", "move"])
def test_a_copy_that_fails_leaves_the_original_and_an_empty_sequence(
    dense: Model, mode: str, how: str, what: str
) -> None:
    with context(dense, mode, n_seq_max=2) as c, context(dense, mode) as other:
        wanted = goes_on(other, 0, after_a_rewind(other, 0))
        token = after_a_rewind(c, 0)
        c.set_sampling(SAMPLED, 1)
        if how == "fails":
            c.break_on_purpose("copy_throws")
        else:
            c.cancel()
        with pytest.raises(NativeError if how == "fails" else CancelledError):
            getattr(c, what)(0, 1)
        c.break_on_purpose("none")
        c.cancel(False)
        assert c.tokens(1) == []
        c.copy(0, 1)
        assert goes_on(c, 0, token) == wanted
        assert goes_on(c, 1, token) == wanted


def test_a_sequence_that_moves_takes_its_sampling_along(dense: Model) -> None:
    params = SamplingParams(temperature=1.0, seed=3, grammar='root ::= ("ab" | "cd" | "e")+ "."', logprobs=2)

    def text(moves: bool) -> tuple[list[int], list[Any]]:
        with context(dense, n_seq_max=3) as c:
            token = begin(c, 1, Sampler(params))
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
                tokens += play(c, seq, tokens[-1], i % 3)
            return tokens, c.logprobs(seq)

    assert text(moves=True) == text(moves=False)


@EACH
def test_sequences_with_a_gap_between_them_take_one_launch_once_the_last_has_moved_there(model: Model) -> None:
    with context(model, n_seq_max=4) as c:
        tokens = {seq: begin(c, seq) for seq in (0, 1, 3)}
        for launches in (2, 1):
            before = c.counters
            drafts = c.draft_chains(tokens, 2)
            c.verify_chains({seq: [token, *drafts[seq][0]] for seq, token in tokens.items()})  # type: ignore[index]
            for seq in tokens:
                c.rewind(c.tokens_held(seq) - 2, seq)
            after = c.counters
            assert after.target_decodes - before.target_decodes == launches
            assert after.draft_decodes - before.draft_decodes == launches
            if launches == 2:
                c.move(3, 2)
                tokens = {0: tokens[0], 1: tokens[1], 2: tokens[3]}


def test_a_closed_context_copies_nothing(dense: Model) -> None:
    c = context(dense, n_seq_max=2)
    c.close()
    for call in (c.copy, c.move):
        with pytest.raises(ClosedError):
            call(0, 1)


@EACH
def test_a_context_without_drafts_copies_as_well(model: Model) -> None:
    with context(model, draft_tokens=0, n_seq_max=2) as c:
        token = begin(c, 0)
        token = play(c, 0, token, 0)[-1]
        c.copy(0, 1)
        np.testing.assert_array_equal(c.verify([token], 1), c.verify([token], 0))
