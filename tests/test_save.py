"""Claims about what a sequence holds in the host's memory: a sequence that gets it goes on with the same bits."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.contexts import BOTH, EXACT, context, some_tokens
from helpers.moments import (
    BOTH_MODES,
    CACHES,
    MOMENTS,
    SAMPLED,
    after_a_draft,
    after_a_prompt,
    after_a_rewind,
    after_plain_rounds,
    after_rounds,
    begin,
    goes_on,
    head_rows,
)

from pymtp import CancelledError, ClosedError, ContextFullError, InvalidRequestError, NativeError, SamplingParams
from pymtp.context import Context
from pymtp.model import Model
from pymtp.sampling import Sampler
from pymtp.saving import Bytes

ALL_CACHES = CACHES | {"q4_0": {"type_k": "q4_0", "type_v": "q4_0"}, "bf16": {"type_k": "bf16", "type_v": "bf16"}}
Saved = tuple[list[int], list[Bytes], Bytes]  # tokens, K and V in pieces, state


def cut(n: int, seed: float) -> list[tuple[int, int]]:
    """Places of n tokens in pieces: first and how many."""
    pick = random.Random(seed)
    places = sorted(pick.sample(range(1, n), min(n - 1, pick.randint(0, 4))))
    return [(first, end - first) for first, end in pairwise([0, *places, n])]


def save(c: Context, seq: int, seed: int = 0) -> Saved:
    """In pieces, which the sequence may be read out in by any order."""
    tokens = c.tokens(seq)
    places = cut(len(tokens), seed)
    pieces = {place: c.save_cells(seq, *place) for place in reversed(places)}
    return tokens, [pieces[place] for place in places], c.save_state(seq)


def load(c: Context, seq: int, saved: Saved, seed: int = 1) -> None:
    """In other pieces than those that were saved."""
    tokens, pieces, state = saved
    joined = np.concatenate(pieces)
    places = cut(len(tokens), seed)
    half = len(places) // 2
    for some in (places[:half], places[half:]):
        if some:
            c.load_cells(seq, some[0][0], [joined[first : first + n] for first, n in some])
    c.load_state(seq, tokens, state)


def seq_that(c: Context, seq: int, saved: Saved) -> int:
    c.clear(seq)
    c.set_sampling(SAMPLED, seq)
    load(c, seq, saved, seed=seq)
    return seq


@BOTH
@pytest.mark.parametrize("caches", ALL_CACHES.values(), ids=ALL_CACHES.keys())
@BOTH_MODES
def test_what_was_saved_goes_on_with_the_bits_of_the_original(model: Model, caches: dict[str, Any], mode: str) -> None:
    with (
        context(model, mode, **caches) as other,
        context(model, mode, n_seq_max=4, **caches) as c,
        context(model, mode, n_seq_max=2, **(caches | {"n_ctx": 512})) as third,
    ):
        c.prefill(some_tokens(model, 60, seed=1), 3)  # of which nothing is to stay
        c.prefill(some_tokens(model, 20, seed=2), 2)
        for seed, moment in enumerate(MOMENTS):
            other.clear()
            # what is saved forgets what was drafted
            wanted = goes_on(other, 0, (after_rounds if moment is after_a_draft else moment)(other, 0))
            c.clear(1)
            token = moment(c, 1)
            saved = save(c, 1, seed)
            assert c.rows_held(1) == c.tokens_held(1)
            assert goes_on(c, seq_that(c, 3, saved), token) == wanted, moment
            assert goes_on(third, seq_that(third, 1, saved), token) == wanted, moment
            assert goes_on(c, 1, token) == wanted, moment
            assert goes_on(c, seq_that(c, 0, saved), token) == wanted, moment
        assert c.tokens(2) == some_tokens(model, 20, seed=2)


@BOTH
@BOTH_MODES
@pytest.mark.parametrize("seed", range(3))
def test_texts_that_go_on_from_checkpoints_are_what_they_would_be_alone(model: Model, mode: str, seed: int) -> None:
    """A tree of texts: each begins at a checkpoint of an earlier one, with K and V of whatever text has them."""
    pick = random.Random(seed)
    with (
        context(model, mode, n_seq_max=3, **EXACT) as c,
        context(model, mode, **EXACT) as other,
    ):
        cells: dict[tuple[int, ...], Bytes] = {}  # a token's K and V, by the text up to it
        checkpoints: list[tuple[list[tuple[str, list[int]]], Bytes]] = [([], np.empty(0, dtype=np.uint8))]

        def go(c: Context, seq: int, step: tuple[str, list[int]]) -> bytes:
            what, tokens = step
            if what == "verify":
                last = c.verify(tokens, seq)
                c.rewind(c.tokens_held(seq) - 1, seq)
                return last.tobytes()
            return c.prefill(tokens, seq).tobytes()

        def text_of(steps: list[tuple[str, list[int]]]) -> list[int]:
            return [token for what, tokens in steps for token in (tokens[:-1] if what == "verify" else tokens)]

        for _ in range(25):
            seq = pick.randrange(3)
            steps, state = pick.choice(checkpoints)
            text = text_of(steps)
            if text and c.tokens(seq)[: len(text)] == text and pick.random() < 0.7:
                c.keep_cells(len(text), seq)
            else:
                c.clear(seq)
                donors = [s for s in range(3) if s != seq and c.tokens(s)[: len(text)] == text]
                for first, n in cut(len(text), pick.random()) if text else []:
                    if donors and pick.random() < 0.5:
                        c.copy_cells(pick.choice(donors), seq, first, n)
                    else:
                        c.load_cells(seq, first, [cells[tuple(text[: i + 1])] for i in range(first, first + n)])
            if text:
                c.load_state(seq, text, state)
            for _ in range(pick.randint(1, 3)):
                step = (
                    pick.choice(["prefill", "verify"]) if text else "prefill",
                    pick.choices(range(500), k=pick.randint(2, 4)),
                )
                last = go(c, seq, step)
                steps = [*steps, step]
                other.clear()
                assert [go(other, 0, one) for one in steps][-1] == last
                text = text_of(steps)
                assert c.tokens(seq) == text
                if pick.random() < 0.5:
                    checkpoints.append((steps, c.save_state(seq)))
            for i, row in enumerate(c.save_cells(seq, 0, len(text))):
                cells.setdefault(tuple(text[: i + 1]), row[None])


@BOTH
@pytest.mark.parametrize("caches", ALL_CACHES.values(), ids=ALL_CACHES.keys())
def test_saved_cells_depend_on_neither_the_sequence_nor_how_they_are_cut(model: Model, caches: dict[str, Any]) -> None:
    tokens = some_tokens(model, 300)
    with context(model, n_seq_max=3, **caches) as c:
        (memory,) = c.memory()
        assert c.cell_bytes == (memory.kv + memory.head_kv) / (c.n_ctx * c.n_seq_max)
        c.prefill(tokens, 0)
        c.prefill(some_tokens(model, 9), 1)
        c.prefill(tokens, 2)
        whole = c.save_cells(0, 0, 300)
        assert whole.shape == (300, c.cell_bytes)
        assert len({row.tobytes() for row in whole}) == 300
        for seq in (0, 2):
            for first, n in ((0, 1), (1, 255), (255, 2), (299, 1), (300, 0), (17, 270)):
                np.testing.assert_array_equal(c.save_cells(seq, first, n), whole[first : first + n])
        assert c.counters.saved_bytes == (300 + 2 * (1 + 255 + 2 + 1 + 270)) * c.cell_bytes


@BOTH
@pytest.mark.parametrize("caches", ALL_CACHES.values(), ids=ALL_CACHES.keys())
def test_long_texts_come_back_as_they_went(model: Model, caches: dict[str, Any]) -> None:
    with context(model, n_seq_max=3, **caches) as c:
        c.prefill(some_tokens(model, 700))
        tokens, cells, state = c.tokens(), c.save_cells(0, 0, 700), c.save_state()
        c.load_cells(1, 0, [cells])
        c.load_state(1, tokens, state)
        c.copy_cells(0, 2, 0, 300)
        c.copy_cells(1, 2, 300, 400)
        c.load_state(2, tokens, state)
        c.keep_cells(650, 0)
        c.copy_cells(1, 0, 650, 50)
        c.load_state(0, tokens, state)
        for seq in range(3):
            np.testing.assert_array_equal(c.save_cells(seq, 0, 700), cells)
            np.testing.assert_array_equal(c.save_state(seq), state)


@BOTH
def test_a_transposed_v_is_saved_as_any_other(model: Model) -> None:
    """Before the first layer with attention nothing depends on flash attention."""
    rows = []
    for flash_attn in ("on", "off"):
        with context(model, flash_attn=flash_attn, draft_tokens=0) as c:
            c.prefill(some_tokens(model, 300))
            n_layers = model.n_layer // int(model.metadata[f"{model.architecture}.full_attention_interval"])
            rows.append(c.save_cells(0, 0, 300)[:, : c.cell_bytes // n_layers])
    np.testing.assert_array_equal(*rows)


def test_the_head_catches_up_before_anything_is_saved(dense: Model) -> None:
    with context(dense) as c, context(dense) as other:
        for one in (c, other):
            after_plain_rounds(one, 0)
        assert c.rows_held() < c.tokens_held()
        c.save_cells(0, 0, 0)
        assert c.rows_held() == c.tokens_held()
        assert head_rows(c, 0) == head_rows(other, 0)


@BOTH_MODES
def test_a_loaded_sequence_has_the_first_token_after_its_prompt(dense: Model, mode: str) -> None:
    with context(dense, mode, n_seq_max=3) as c:
        token = begin(c, 0)
        saved = save(c, 0)
        tokens, pieces, _ = saved
        without = c.save_state(0, logits=False)
        c.prefill(some_tokens(dense, 30), 2)
        assert len(saved[2]) - len(without) == 4 * dense.n_vocab
        assert c.first_token(seq_that(c, 1, saved)) == token
        assert c.first_token(seq_that(c, 0, save(c, 1))) == token
        with pytest.raises(InvalidRequestError, match="was not in the last prefill"):
            c.first_token(seq_that(c, 1, (tokens, pieces, without)))


@BOTH
def test_a_state_takes_one_state_and_what_is_to_be_replayed(model: Model) -> None:
    with context(model) as c, context(model, draft_tokens=0) as plain:
        plain.prefill(some_tokens(model, 40))
        one = len(plain.save_state(logits=False))
        row = 4 * model.n_embd  # for the head
        after_a_prompt(c, 0)
        assert len(c.save_state(logits=False)) == one + row
        c.verify([1, 2, 3, 4])
        sizes = []
        for n in (4, 3):
            if n < 4:
                c.clear()
                after_a_prompt(c, 0)
                c.verify([1, 2, 3, 4])
                c.rewind(c.tokens_held() - 4 + n)
            sizes.append(len(c.save_state()) - one - row)
        assert sizes[0] * 3 == sizes[1] * 4 > 0


def test_what_cannot_be_saved_or_loaded_is_refused_and_nothing_changes(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c, context(dense, draft_tokens=0) as plain:
        first = after_a_rewind(c, 0)
        tokens, pieces, state = saved = save(c, 0)
        (cells,) = [np.concatenate(pieces)]
        n, width = cells.shape
        plain.prefill(tokens)
        wanted = goes_on(c, seq_that(c, 1, saved), first)
        c.clear(1)
        c.load_cells(2, 0, [cells[:-1]])
        other_text = [*tokens[:-1], tokens[-1] ^ 1]
        damaged = state.copy()
        damaged[0] ^= 1
        replays = state.copy()
        replays[12:16].view(np.int32)[:] = 100
        refused: list[tuple[Any, str]] = [
            (lambda: c.save_cells(0, 0, n + 1), f"n={n + 1}"),
            (lambda: c.save_cells(0, n, 1), "n=1"),
            (lambda: c.save_cells(0, -1, 1), "first=-1"),
            (lambda: c.save_cells(0, 0, 10**15), "n=10"),
            (lambda: c.save_cells(1, 0, 1), "n=1"),
            (lambda: c.save_cells(3, 0, 1), "seq=3"),
            (lambda: c.save_state(1), "sequence 1 holds no tokens"),
            (lambda: c.save_state(3), "there is no sequence 3"),
            (lambda: c.load_cells(0, 0, [cells]), f"sequence 0 holds {n} tokens and is not empty"),
            (lambda: c.load_cells(1, 1, [cells]), "would leave a gap"),
            (lambda: c.load_cells(2, n, [cells]), "would leave a gap"),
            (lambda: c.load_cells(2, -1, [cells]), "are not within"),
            (lambda: c.load_cells(3, 0, [cells]), "there is no sequence 3"),
            (lambda: c.load_cells(1, 0, [cells[:, 1:]]), f"contiguous rows of {width} bytes"),
            (lambda: c.load_cells(1, 0, [cells.view(np.int8)]), f"contiguous rows of {width} bytes"),
            (lambda: c.load_cells(1, 0, [cells[::2]]), f"contiguous rows of {width} bytes"),
            (lambda: c.load_cells(1, 0, [cells[0]]), f"contiguous rows of {width} bytes"),
            (lambda: c.copy_cells(0, 0, 0, 1), "go to another sequence"),
            (lambda: c.copy_cells(0, 1, 0, n + 1), "are not within"),
            (lambda: c.copy_cells(0, 1, 1, 1), "would leave a gap"),
            (lambda: c.copy_cells(3, 1, 0, 1), "there is no sequence 3"),
            (lambda: c.copy_cells(0, 3, 0, 1), "there is no sequence 3"),
            (lambda: c.keep_cells(n + 1), "are not within"),
            (lambda: c.keep_cells(-1), "are not within"),
            (lambda: c.load_state(0, tokens, state), "is not empty"),
            (lambda: c.load_state(1, tokens, state), "K and V of 0 tokens were put into the sequence"),
            (lambda: c.load_state(2, tokens, state), f"K and V of {n - 1} tokens were put into the sequence"),
            (lambda: c.load_state(2, tokens[:-1], state), f"the state is of {n} tokens, and not of these"),
            (lambda: c.load_state(2, other_text, state), f"the state is of {n} tokens, and not of these"),
            (lambda: c.load_state(2, [], state), "at least one token"),
            (lambda: c.load_state(2, [-1] * n, state), "there is no token -1"),
            (lambda: c.load_state(2, tokens, state[:-1]), "it must have"),
            (lambda: c.load_state(2, tokens, bytes(state) + b"x"), "it must have"),
            (lambda: c.load_state(2, tokens, b""), "no state"),
            (lambda: c.load_state(2, tokens, state[:31]), "no state"),
            (lambda: c.load_state(2, tokens, damaged), "no state"),
            (lambda: c.load_state(2, tokens, replays), "100 tokens to replay"),
            (lambda: c.load_state(2, tokens, plain.save_state()), "was saved without drafts"),
        ]
        for call, why in refused:
            with pytest.raises(InvalidRequestError, match=why):
                call()
        assert [c.tokens(seq) for seq in range(3)] == [tokens, [], []]
        c.load_cells(2, n - 1, [cells[-1:]])
        c.load_state(2, tokens, state)
        c.set_sampling(SAMPLED, 2)
        assert goes_on(c, 2, first) == wanted
        assert goes_on(c, 0, first) == wanted

        plain.clear()
        plain.load_cells(0, 0, [np.ascontiguousarray(cells[:, : plain.cell_bytes])])
        with pytest.raises(InvalidRequestError, match="was saved with drafts"):
            plain.load_state(0, tokens, state)


def test_a_context_has_room_for_no_more_than_its_tokens(dense: Model) -> None:
    with context(dense, n_ctx=256, n_batch=256) as c, context(dense, n_ctx=512) as other:
        other.prefill(some_tokens(dense, 257))
        tokens, pieces, state = save(other, 0)
        cells = np.concatenate(pieces)
        with pytest.raises(ContextFullError, match="n_ctx = 256"):
            c.load_cells(0, 0, [cells[:200], cells[200:]])
        with pytest.raises(InvalidRequestError, match="256"):
            c.load_state(0, tokens, state)
        c.load_cells(0, 0, [cells[:256]])
        c.prefill(tokens[:1])


def test_cells_are_forgotten_when_a_sequence_is_given_tokens_in_another_way(dense: Model) -> None:
    with context(dense, n_seq_max=2) as c:
        c.prefill(some_tokens(dense, 30))
        saved = save(c, 0)
        tokens, pieces, state = saved
        for way in (lambda: c.prefill([1, 2, 3], 1), lambda: c.verify([1, 2], 1), lambda: c.copy(0, 1), c.clear):
            c.clear(1)
            c.load_cells(1, 0, pieces)
            way()
            c.clear(1)
            with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):
                c.load_state(1, tokens, state)


@BOTH_MODES
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_load_that_fails_leaves_an_empty_sequence_and_all_others(dense: Model, mode: str, how: str) -> None:
    with context(dense, mode, n_seq_max=3) as c, context(dense, mode) as other:
        wanted = goes_on(other, 0, after_a_rewind(other, 0))
        token = after_a_rewind(c, 0)
        tokens, pieces, state = saved = save(c, 0)
        c.set_sampling(SAMPLED, 1)

        def load_both(seq: int) -> None:
            c.load_cells(seq, 0, pieces)
            c.load_state(seq, tokens, state)

        for prepared, call in (
            (lambda: None, lambda: c.load_cells(1, 0, pieces)),
            (lambda: None, lambda: c.copy_cells(0, 1, 0, len(tokens))),
            (lambda: c.load_cells(1, 0, pieces), lambda: c.load_state(1, tokens, state)),
        ):
            prepared()
            if how == "fails":
                c.break_on_purpose("copy_throws")
            else:
                c.cancel()
            with pytest.raises(NativeError if how == "fails" else CancelledError):
                call()
            c.break_on_purpose("none")
            c.cancel(False)
            assert c.tokens(1) == []
            with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):
                c.load_state(1, tokens, state)
        assert goes_on(c, seq_that(c, 1, saved), token) == wanted
        c.clear(1)
        c.prefill(some_tokens(dense, 5), 1)
        assert goes_on(c, 0, token) == wanted


@BOTH_MODES
def test_a_save_that_is_cancelled_leaves_the_sequence_as_it_was(dense: Model, mode: str) -> None:
    with context(dense, mode) as c, context(dense, mode) as other:
        wanted = goes_on(other, 0, after_a_rewind(other, 0))
        token = after_a_rewind(c, 0)
        c.save_cells(0, 0, 0)  # the head catches up
        c.cancel()
        for call in (lambda: c.save_cells(0, 0, 10), c.save_state):
            with pytest.raises(CancelledError):
                call()
        c.cancel(False)
        assert c.counters.saved_bytes == 0
        assert goes_on(c, 0, token) == wanted


def test_what_was_saved_cannot_be_rewound_and_neither_can_what_was_loaded(dense: Model) -> None:
    for mode in ("fused", "host-copy"):
        with context(dense, mode, n_seq_max=2) as c:
            begin(c, 0)
            c.verify([1, 2, 3, 4])
            saved = save(c, 0)
            for seq in (0, seq_that(c, 1, saved)):
                with pytest.raises(InvalidRequestError, match="only 0 can be taken back"):
                    c.rewind(c.tokens_held(seq) - 1, seq)


@BOTH
def test_a_context_without_drafts_saves_as_well(model: Model) -> None:
    with context(model, draft_tokens=0, n_seq_max=2) as c:
        token = begin(c, 0)
        c.verify([token])
        load(c, 1, save(c, 0))
        np.testing.assert_array_equal(c.verify([9], 1), c.verify([9], 0))
        np.testing.assert_array_equal(c.prefill([1, 2, 3], 1), c.prefill([1, 2, 3], 0))


def test_tokens_that_were_loaded_are_seen_by_the_draft_vocabulary(dense: Model) -> None:
    last = dense.n_vocab - 1
    with context(dense, draft_vocab=128) as c, context(dense, draft_vocab=128) as other:
        c.prefill([last] * 30)
        for one in (c, other):
            one.set_sampling(Sampler(SamplingParams()))
        saved = save(c, 0)
        load(other, 0, saved)
        wanted = c.draft_chain(5, 3)
        assert c.drafts_over(last)
        assert other.draft_chain(5, 3) == wanted
        assert other.drafts_over(last)


def test_bytes_are_counted(dense: Model) -> None:
    with context(dense, n_seq_max=3) as c:
        begin(c, 0)
        tokens, pieces, state = saved = save(c, 0)
        size = len(state) + sum(map(np.size, pieces))
        assert c.counters.saved_bytes == size
        load(c, 1, saved)
        assert c.counters.loaded_bytes == size
        assert c.counters.sequence_bytes == 0
        c.copy_cells(0, 2, 0, len(tokens))
        assert c.counters.sequence_bytes == len(tokens) * c.cell_bytes


def test_a_closed_context_saves_and_loads_nothing(dense: Model) -> None:
    c = context(dense, n_seq_max=2)
    c.close()
    for call in (
        lambda: c.cell_bytes,
        lambda: c.save_cells(0, 0, 0),
        lambda: c.load_cells(0, 0, []),
        lambda: c.copy_cells(0, 1, 0, 0),
        lambda: c.keep_cells(0),
        c.save_state,
        lambda: c.load_state(0, [1], b""),
    ):
        with pytest.raises(ClosedError):
            call()
