"""Claims about what a sequence's recurrent states go by: its snapshots go where it goes, and it begins with zeros."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from helpers.contexts import BOTH, EXACT, context, some_tokens

from pymtp import NativeError
from pymtp.context import Context
from pymtp.context_options import PREFILL_MODES
from pymtp.model import Model
from pymtp.sampling import Sampler, SamplingParams

MODES = pytest.mark.parametrize("mode", PREFILL_MODES)
LATER = (2, 0, 1)  # prompts in this order: the cells of 1 and 2 are not side by side, and taking both moves that of 0


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() < 1e-4)


def three(model: Model, mode: str) -> Context:
    c = context(model, mode, n_seq_max=3)
    for seq in LATER:
        c.prefill(some_tokens(model, 20, seq), seq)
    return c


def alone(model: Model, mode: str, seq: int) -> Context:
    c = context(model, mode)
    c.prefill(some_tokens(model, 20, seq))
    return c


def more(model: Model, seq: int) -> list[int]:
    return some_tokens(model, 10, 10 + seq)


@BOTH
@MODES
def test_a_moved_cell_takes_its_snapshots_along(model: Model, mode: str) -> None:
    with three(model, mode) as c, alone(model, mode, 0) as wanted:
        c.verify([1, 2, 3, 4])
        wanted.verify([1, 2, 3, 4])
        c.prefill_batch({seq: more(model, seq) for seq in (1, 2)})
        c.rewind(22)
        wanted.rewind(22)
        assert close(c.verify([7, 8]), wanted.verify([7, 8]))


@BOTH
@MODES
def test_a_moved_cell_is_gone_back_in_where_it_was_rewound_before(model: Model, mode: str) -> None:
    with three(model, mode) as c, alone(model, mode, 0) as wanted:
        for one in (c, wanted):
            one.verify([1, 2, 3, 4])
            one.rewind(22)
        c.prefill_batch({seq: more(model, seq) for seq in (1, 2)})
        assert close(c.verify([7, 8]), wanted.verify([7, 8]))


@BOTH
@MODES
def test_what_is_taken_together_goes_on_from_where_each_was_rewound_to(model: Model, mode: str) -> None:
    with three(model, mode) as c, alone(model, mode, 0) as zero, alone(model, mode, 2) as two:
        for seq, own in ((2, two), (0, zero)):
            c.verify([1, 2, 3, 4], seq)
            own.verify([1, 2, 3, 4])
        c.rewind(21, 2)
        two.rewind(21)
        found = c.prefill_batch({seq: more(model, seq) for seq in (1, 2)})[1]
        assert close(found, two.prefill(more(model, 2)))
        c.rewind(22)
        zero.rewind(22)
        assert close(c.verify([7, 8]), zero.verify([7, 8]))


@pytest.mark.parametrize("seed", range(6))
def test_sequences_are_the_same_in_whatever_company_they_are(dense: Model, seed: int) -> None:
    pick = random.Random(seed)
    n_seqs = 5
    with ExitStack() as stack:
        c = stack.enter_context(context(dense, n_seq_max=n_seqs))
        own = [stack.enter_context(context(dense)) for _ in range(n_seqs)]
        drafts = [0] * n_seqs  # that can be taken back

        def prefill(seqs: range) -> None:
            texts = {seq: pick.choices(range(dense.n_vocab), k=pick.randint(1, 6)) for seq in seqs}
            for row, (seq, text) in zip(c.prefill_batch(texts), texts.items(), strict=True):
                assert close(row, own[seq].prefill(text))
                drafts[seq] = 0

        def verify(seq: int) -> None:
            text = pick.choices(range(dense.n_vocab), k=4)
            assert close(c.verify(text, seq), own[seq].verify(text))
            drafts[seq] = 3

        def rewind(seq: int) -> None:
            keep = own[seq].n_past - pick.randint(0, drafts[seq])
            c.rewind(keep, seq)
            own[seq].rewind(keep)
            drafts[seq] = 0

        for _ in range(6):
            for seq in pick.sample(range(n_seqs), n_seqs):  # cells in another order each time
                c.clear(seq)
                own[seq].clear()
                drafts[seq] = 0
            for seq in pick.sample(range(n_seqs), n_seqs):
                prefill(range(seq, seq + 1))
            for seq in pick.sample(range(n_seqs), 3):
                verify(seq)
            for _ in range(2):
                rewind(pick.randrange(n_seqs))
                first = pick.randrange(n_seqs - 1)
                prefill(range(first, pick.randint(first + 2, n_seqs)))
            for seq in range(n_seqs):
                rewind(seq)
                verify(seq)


@pytest.mark.parametrize("n", [1, 5])
@MODES
def test_a_new_sequence_begins_with_zeros_whatever_was_there(demo_f32: Path, tmp_path: Path, mode: str, n: int) -> None:
    path = tmp_path / "nan.gguf"
    shutil.copy(demo_f32, path)
    broken = 300  # as an input; the output layer has the same weights, so that its logit is no number either
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.name == "token_embd.weight":
            tensor.data[broken] = np.nan

    with Model(path) as model, context(model, mode) as c, context(model, mode) as fresh:
        assert np.isnan(c.prefill([broken] * n)).all()
        c.clear()
        for text in (range(1000, 1020), [1005]):
            rows = c.prefill(text), fresh.prefill(text)
            assert np.array_equal(*(np.delete(row, broken) for row in rows))
        rows = c.draft(7), fresh.draft(7)
        assert np.array_equal(*(np.delete(row, broken) for row in rows))


def refused(model: Model, fault: str, call: Callable[[Context], object], why: str) -> None:
    with context(model, n_seq_max=2, **EXACT) as c:
        for seq in range(2):
            c.set_sampling(Sampler(SamplingParams()), seq)
            c.prefill(some_tokens(model, 20), seq)
        c.break_on_purpose(fault)
        with pytest.raises(NativeError, match=why):
            call(c)
        c.break_on_purpose("none")
        c.clear()
        c.prefill(some_tokens(model, 20))
        c.draft_chain(5, 3)


@BOTH
def test_a_chain_whose_steps_are_of_two_sequences_is_refused(model: Model) -> None:
    refused(model, "mixed_chain", lambda c: c.draft_chain(5, 3), "of equal length")


@BOTH
def test_more_outputs_than_there_is_room_for_are_refused(model: Model) -> None:
    refused(
        model, "more_outputs", lambda c: c.prefill(some_tokens(model, 20)), "a batch with 20 outputs, but room for 8"
    )
