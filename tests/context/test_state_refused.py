"""Tests of failing saves and loads: a refused call changes nothing, a failed load leaves an empty sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.contexts import context, some_tokens
from helpers.moments import BOTH_MODES, SAMPLED, after_a_rewind, continue_text, prefill_and_sample
from helpers.saved import load_into, save

from pymtp import CancelledError, ClosedError, ContextFullError, InvalidRequestError, NativeError
from pymtp.model.model import Model
from pymtp.native import ffi, last_error, lib


def test_invalid_save_or_load_is_refused_and_changes_nothing(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c, context(dense, draft_tokens=0) as plain:
        first = after_a_rewind(c, 0)
        tokens, pieces, state = saved = save(c, 0)
        (cells,) = [np.concatenate(pieces)]
        n, width = cells.shape
        plain.prefill(tokens)
        wanted = continue_text(c, load_into(c, 1, saved), first)
        c.clear(1)
        c.state.load_cells(2, 0, [cells[:-1]])
        other_text = [*tokens[:-1], tokens[-1] ^ 1]
        damaged = state.copy()
        damaged[0] ^= 1
        replays = state.copy()
        replays[12:16].view(np.int32)[:] = 100
        refused: list[tuple[Any, str]] = [
            (lambda: c.state.save_cells(0, 0, n + 1), f"n={n + 1}"),
            (lambda: c.state.save_cells(0, n, 1), "n=1"),
            (lambda: c.state.save_cells(0, -1, 1), "first=-1"),
            (lambda: c.state.save_cells(0, 0, 10**15), "n=10"),
            (lambda: c.state.save_cells(1, 0, 1), "n=1"),
            (lambda: c.state.save_cells(3, 0, 1), "seq=3"),
            (lambda: c.state.save(1), "sequence 1 holds no tokens"),
            (lambda: c.state.save(3), "there is no sequence 3"),
            (lambda: c.state.load_cells(0, 0, [cells]), f"sequence 0 holds {n} tokens and is not empty"),
            (lambda: c.state.load_cells(1, 1, [cells]), "would leave a gap"),
            (lambda: c.state.load_cells(2, n, [cells]), "would leave a gap"),
            (lambda: c.state.load_cells(2, -1, [cells]), "first=-1"),
            (lambda: c.state.load_cells(3, 0, [cells]), "there is no sequence 3"),
            (lambda: c.state.load_cells(1, 0, [cells[:, 1:]]), f"contiguous rows of {width} bytes"),
            (lambda: c.state.load_cells(1, 0, [cells.view(np.int8)]), f"contiguous rows of {width} bytes"),
            (lambda: c.state.load_cells(1, 0, [cells[::2]]), f"contiguous rows of {width} bytes"),
            (lambda: c.state.load_cells(1, 0, [cells[0]]), f"contiguous rows of {width} bytes"),
            (lambda: c.state.copy_cells(0, 0, 0, 1), "go to another sequence"),
            (lambda: c.state.copy_cells(0, 1, 0, n + 1), "are not within"),
            (lambda: c.state.copy_cells(0, 1, 1, 1), "would leave a gap"),
            (lambda: c.state.copy_cells(3, 1, 0, 1), "there is no sequence 3"),
            (lambda: c.state.copy_cells(0, 3, 0, 1), "there is no sequence 3"),
            (lambda: c.state.keep_cells(n + 1), "are not within"),
            (lambda: c.state.keep_cells(-1), "are not within"),
            (lambda: c.state.load(0, tokens, state), "is not empty"),
            (lambda: c.state.load(1, tokens, state), "K and V of 0 tokens were put into the sequence"),
            (lambda: c.state.load(2, tokens, state), f"K and V of {n - 1} tokens were put into the sequence"),
            (lambda: c.state.load(2, tokens[:-1], state), f"the state is of {n} tokens, and not of these"),
            (lambda: c.state.load(2, other_text, state), f"the state is of {n} tokens, and not of these"),
            (lambda: c.state.load(2, [], state), "at least one token"),
            (lambda: c.state.load(2, [-1] * n, state), "there is no token -1"),
            (lambda: c.state.load(2, tokens, state[:-1]), "it must have"),
            (lambda: c.state.load(2, tokens, bytes(state) + b"x"), "it must have"),
            (lambda: c.state.load(2, tokens, b""), "no state"),
            (lambda: c.state.load(2, tokens, state[:31]), "no state"),
            (lambda: c.state.load(2, tokens, damaged), "no state"),
            (lambda: c.state.load(2, tokens, replays), "100 tokens to replay"),
            (lambda: c.state.load(2, tokens, plain.state.save()), "was saved without drafts"),
        ]
        for call, why in refused:
            with pytest.raises(InvalidRequestError, match=why):
                call()
        assert [c.tokens(seq) for seq in range(3)] == [tokens, [], []]
        c.state.load_cells(2, n - 1, [cells[-1:]])
        c.state.load(2, tokens, state)
        c.set_sampling(SAMPLED, 2)
        assert continue_text(c, 2, first) == wanted
        assert continue_text(c, 0, first) == wanted

        plain.clear()
        plain.state.load_cells(0, 0, [np.ascontiguousarray(cells[:, : plain.state.cell_bytes])])
        with pytest.raises(InvalidRequestError, match="was saved with drafts"):
            plain.state.load(0, tokens, state)


def test_state_with_too_many_replay_tokens_is_refused(dense: Model) -> None:
    """Refuse a state whose replay would read tokens of another sequence, or tokens that do not exist."""
    with context(dense, n_seq_max=2) as c:
        c.prefill(some_tokens(dense, 20))
        c.verify([1, 2, 3])
        cells, state = c.state.save_cells(0, 0, 2), c.state.save()
        n_tokens, n_replay = (state[at : at + 4].view(np.int32) for at in (8, 12))
        digest = 14695981039346656037
        for token in (5, 6):
            digest = (digest ^ token) * 1099511628211 % 2**64
        assert (n_tokens[0], n_replay[0]) == (23, 3)
        n_tokens[:], state[24:32].view(np.uint64)[:] = 2, digest
        c.state.load_cells(1, 0, [cells])
        wanted = c.state.save()
        for call in (lambda: c.state.check([5, 6], state), lambda: c.state.load(1, [5, 6], state)):
            with pytest.raises(InvalidRequestError, match="3 tokens to replay, of 2"):
                call()
        np.testing.assert_array_equal(c.state.save(), wanted)


def test_load_beyond_the_context_size_is_refused(dense: Model) -> None:
    with context(dense, n_ctx=256, n_batch=256) as c, context(dense, n_ctx=512) as other:
        other.prefill(some_tokens(dense, 257))
        tokens, pieces, state = save(other, 0)
        cells = np.concatenate(pieces)
        with pytest.raises(ContextFullError, match="n_ctx = 256"):
            c.state.load_cells(0, 0, [cells[:200], cells[200:]])
        with pytest.raises(InvalidRequestError, match="256"):
            c.state.load(0, tokens, state)
        c.state.load_cells(0, 0, [cells[:256]])
        c.prefill(tokens[:1])


def test_loaded_cells_are_dropped_by_other_calls(dense: Model) -> None:
    with context(dense, n_seq_max=2) as c:
        c.prefill(some_tokens(dense, 30))
        tokens, pieces, state = save(c, 0)
        for way in (lambda: c.prefill([1, 2, 3], 1), lambda: c.verify([1, 2], 1), lambda: c.copy(0, 1)):
            c.state.load_cells(1, 0, pieces)
            way()
            with pytest.raises(InvalidRequestError, match="is not empty"):
                c.state.load(1, tokens, state)
            c.clear(1)
            with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):
                c.state.load(1, tokens, state)


def test_drafts_of_an_empty_sequence_overwrite_its_cells(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c:
        c.prefill(some_tokens(dense, 30))
        tokens, pieces, state = save(c, 0)
        c.set_sampling(SAMPLED, 1)
        c.state.load_cells(1, 0, pieces)
        c.draft_chain(5, 3, 1)
        with pytest.raises(InvalidRequestError, match="is not empty"):
            c.state.load(1, tokens, state)
        c.copy(1, 2)  # the copy drops the drafts
        with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):
            c.state.load(1, tokens, state)


@BOTH_MODES
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_failed_load_empties_only_its_sequence(dense: Model, mode: str, how: str) -> None:
    with context(dense, mode, n_seq_max=3) as c, context(dense, mode) as other:
        wanted = continue_text(other, 0, after_a_rewind(other, 0))
        token = after_a_rewind(c, 0)
        tokens, pieces, state = saved = save(c, 0)
        c.set_sampling(SAMPLED, 1)

        for prepared, call in (
            (lambda: None, lambda: c.state.load_cells(1, 0, pieces)),
            (lambda: None, lambda: c.state.copy_cells(0, 1, 0, len(tokens))),
            (lambda: c.state.load_cells(1, 0, pieces), lambda: c.state.load(1, tokens, state)),
        ):
            prepared()
            if how == "fails":
                c.inspect.break_on_purpose("copy_throws")
            else:
                c.cancel()
            with pytest.raises(NativeError if how == "fails" else CancelledError):
                call()
            c.inspect.break_on_purpose("none")
            c.cancel(False)
            assert c.tokens(1) == []
            with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):
                c.state.load(1, tokens, state)
        assert continue_text(c, load_into(c, 1, saved), token) == wanted
        c.clear(1)
        c.prefill(some_tokens(dense, 5), 1)
        assert continue_text(c, 0, token) == wanted


@BOTH_MODES
def test_cancelled_save_leaves_the_sequence_unchanged(dense: Model, mode: str) -> None:
    with context(dense, mode) as c, context(dense, mode) as other:
        wanted = continue_text(other, 0, after_a_rewind(other, 0))
        token = after_a_rewind(c, 0)
        c.state.save_cells(0, 0, 0)  # saving makes the head catch up
        c.cancel()
        for call in (lambda: c.state.save_cells(0, 0, 10), c.state.save):
            with pytest.raises(CancelledError):
                call()
        c.cancel(False)
        assert c.counters.saved_bytes == 0
        assert continue_text(c, 0, token) == wanted


def test_rewind_is_refused_after_save_and_after_load(dense: Model) -> None:
    for mode in ("fused", "host-copy"):
        with context(dense, mode, n_seq_max=2) as c:
            prefill_and_sample(c, 0)
            c.verify([1, 2, 3, 4])
            saved = save(c, 0)
            for seq in (0, load_into(c, 1, saved)):
                with pytest.raises(InvalidRequestError, match="only 0 can be taken back"):
                    c.rewind(c.tokens_held(seq) - 1, seq)


def test_closed_context_refuses_save_and_load(dense: Model) -> None:
    c = context(dense, n_seq_max=2)
    c.close()
    for call in (
        lambda: c.state.cell_options,
        lambda: c.state.save_cells(0, 0, 0),
        lambda: c.state.load_cells(0, 0, []),
        lambda: c.state.copy_cells(0, 1, 0, 0),
        lambda: c.state.keep_cells(0),
        c.state.save,
        lambda: c.state.load(0, [1], b""),
    ):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize("n", [0, -1, -(2**31)])
def test_state_for_no_tokens_is_refused_before_tokens_are_read(dense: Model, n: int) -> None:
    with context(dense) as c:
        tokens, has_logits = ffi.new("llama_token[]", [0]), ffi.new("bool *")
        status = lib.pymtp_pair_check_state(c._handle.pointer, tokens, n, ffi.new("uint8_t[64]"), 64, has_logits)
        assert status == lib.PYMTP_INVALID
        assert last_error() == "a state is of at least one token"
