"""Tests of recurrent states: each sequence has one state, rewinds by replay, and starts with zeros."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import prod
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from helpers.contexts import EACH, EXACT, context, some_tokens

from pymtp import InvalidRequestError, NativeError
from pymtp.context.context import Context
from pymtp.context.options import PREFILL_MODES
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

MODES = pytest.mark.parametrize("mode", PREFILL_MODES)
LATER = (2, 0, 1)  # sequences in the order of their prompts: llama.cpp would not make the cells of 1 and 2 adjacent


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(found - wanted).max() < 1e-4)


def three_sequences(model: Model, mode: str) -> Context:
    c = context(model, mode, n_seq_max=3)
    for seq in LATER:
        c.prefill(some_tokens(model, 20, seq), seq)
    return c


def one_sequence(model: Model, mode: str, seq: int) -> Context:
    c = context(model, mode)
    c.prefill(some_tokens(model, 20, seq))
    return c


def next_prompt(model: Model, seq: int) -> list[int]:
    return some_tokens(model, 10, 10 + seq)


def continue_others(c: Context) -> None:
    """Continue sequences 1 and 2 by a verification, whose inputs are kept for a replay, and by a prompt."""
    for seq in (1, 2):
        c.verify([5, 6, 7, 8], seq)
    c.prefill_batch({seq: next_prompt(c.model, seq) for seq in (1, 2)})


@EACH
@MODES
def test_replay_of_a_sequence_ignores_other_sequences(model: Model, mode: str) -> None:
    with three_sequences(model, mode) as c, one_sequence(model, mode, 0) as wanted:
        c.verify([1, 2, 3, 4])
        wanted.verify([1, 2, 3, 4])
        continue_others(c)
        c.rewind(22)
        wanted.rewind(22)
        assert close(c.verify([7, 8]), wanted.verify([7, 8]))


@EACH
@MODES
def test_rewound_sequence_continues_after_other_sequences(model: Model, mode: str) -> None:
    with three_sequences(model, mode) as c, one_sequence(model, mode, 0) as wanted:
        for one in (c, wanted):
            one.verify([1, 2, 3, 4])
            one.rewind(22)
        continue_others(c)
        assert close(c.verify([7, 8]), wanted.verify([7, 8]))


@EACH
@MODES
def test_rewound_sequences_continue_in_one_batch(model: Model, mode: str) -> None:
    with three_sequences(model, mode) as c, one_sequence(model, mode, 0) as zero, one_sequence(model, mode, 2) as two:
        for seq, own in ((2, two), (0, zero)):
            c.verify([1, 2, 3, 4], seq)
            own.verify([1, 2, 3, 4])
        c.rewind(21, 2)
        two.rewind(21)
        found = c.prefill_batch({seq: next_prompt(model, seq) for seq in (1, 2)})[1]
        assert close(found, two.prefill(next_prompt(model, 2)))
        c.rewind(22)
        zero.rewind(22)
        assert close(c.verify([7, 8]), zero.verify([7, 8]))


def steps(c: Context, tokens: list[int]) -> list[bytes]:
    """Return the rows of prompts, of verifications that keep each number of tokens, and of two sequences in a batch."""
    rows = [c.prefill(tokens[:20]), c.prefill(tokens[5:30], 1)]
    for keep in (1, 3, 4, 2, 4, 1):
        rows.append(c.verify(tokens[20:24]))
        c.rewind(c.n_past - 4 + keep)
        if keep == 2:
            rows.append(c.verify(tokens[5:6]))
    rows.append(c.verify(tokens[1:5], 1))
    c.rewind(26, 1)
    rows.append(c.prefill_batch({0: tokens[30:40], 1: tokens[40:43]}))
    return [row.tobytes() for row in rows]


@EACH
def test_device_replay_gives_the_same_numbers(model: Model) -> None:
    tokens = some_tokens(model, 60)
    with context(model, n_seq_max=2, **EXACT) as host, context(model, n_seq_max=2, **EXACT) as device:
        device.inspect.compute_as_devices()
        for found, wanted in zip(steps(device, tokens), steps(host, tokens), strict=True):
            rows = np.frombuffer(found, np.float32), np.frombuffer(wanted, np.float32)
            assert np.abs(rows[0] - rows[1]).max() < 1e-5 * np.abs(rows[1]).max()


@EACH
@pytest.mark.parametrize("as_devices", [False, True])
def test_rewind_works_token_by_token(model: Model, as_devices: bool) -> None:
    with context(model) as slowly, context(model) as at_once:
        for c in (slowly, at_once):
            if as_devices:
                c.inspect.compute_as_devices()
            c.prefill(some_tokens(model, 20))
            c.verify([1, 2, 3, 4])
        for keep in (23, 22, 21):
            slowly.rewind(keep)
        at_once.rewind(21)
        assert slowly.verify([7, 8]).tobytes() == at_once.verify([7, 8]).tobytes()


@EACH
def test_rewind_refuses_the_first_token_of_a_verification(model: Model) -> None:
    with context(model) as c:
        c.prefill(some_tokens(model, 20))
        c.verify([1, 2, 3, 4])
        c.rewind(22)
        with pytest.raises(InvalidRequestError, match="only 1 can be taken back"):
            c.rewind(20)


@EACH
@pytest.mark.parametrize("draft_tokens", [1, 3, 7])
def test_round_writes_one_recurrent_state_at_any_depth(model: Model, draft_tokens: int) -> None:
    def written(c: Context) -> int:
        nodes = [node for node in c.inspect.trace() if node.graph == "target"]
        return sum(prod(node.shape) for node in nodes if node.op == "CPY")

    tokens = some_tokens(model, 20 + 1 + draft_tokens)
    with context(model, draft_tokens=draft_tokens, trace=True) as c:
        c.inspect.compute_as_devices()
        c.prefill(tokens[:20])
        states = written(c)
        assert states > 0
        for keep in (1, 1 + draft_tokens, 1):
            c.verify(tokens[20:])
            assert written(c) == states
            c.rewind(c.n_past - 1 - draft_tokens + keep)
        for _ in range(2):  # the first time, there are tokens to replay
            c.verify(tokens[:1])
            assert written(c) == states


def test_sequences_do_not_depend_on_other_sequences(dense: Model) -> None:
    pick = random.Random(0)
    n_seqs = 5
    with ExitStack() as stack:
        c = stack.enter_context(context(dense, n_seq_max=n_seqs))
        own = [stack.enter_context(context(dense)) for _ in range(n_seqs)]
        drafts = [0] * n_seqs  # number of drafts of each sequence that can be rewound

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
            for seq in pick.sample(
                range(n_seqs), n_seqs
            ):  # a random order, so that the cells are in another order each time
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


BROKEN = 300  # a token whose embedding is NaN; the output layer shares the weights, so the token's logit is NaN too


@pytest.fixture(scope="module")
def nan_model(demo_f32: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("models") / "nan.gguf"
    shutil.copy(demo_f32, path)
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.name == "token_embd.weight":
            tensor.data[BROKEN] = np.nan
    with Model(path) as model:
        yield model


@pytest.mark.parametrize("as_devices", [False, True])
@pytest.mark.parametrize("n", [1, 4, 5])
@MODES
def test_new_sequence_starts_with_a_zero_state(nan_model: Model, mode: str, n: int, as_devices: bool) -> None:
    with context(nan_model, mode) as c, context(nan_model, mode) as fresh:
        if as_devices:
            c.inspect.compute_as_devices()
            fresh.inspect.compute_as_devices()
        assert np.isnan(c.prefill([BROKEN] * n)).all()
        c.clear()
        for text in (range(1000, 1020), [1005]):
            rows = c.prefill(text), fresh.prefill(text)
            assert np.array_equal(*(np.delete(row, BROKEN) for row in rows))
        rows = c.draft(7), fresh.draft(7)
        assert np.array_equal(*(np.delete(row, BROKEN) for row in rows))


def refused(model: Model, fault: str, call: Callable[[Context], object], why: str) -> None:
    with context(model, n_seq_max=2, **EXACT) as c:
        for seq in range(2):
            c.set_sampling(Sampler(SamplingParams()), seq)
            c.prefill(some_tokens(model, 20), seq)
        c.inspect.break_on_purpose(fault)
        with pytest.raises(NativeError, match=why):
            call(c)
        c.inspect.break_on_purpose("none")
        c.clear()
        c.prefill(some_tokens(model, 20))
        c.draft_chain(5, 3)


@EACH
def test_chain_over_two_sequences_is_refused(model: Model) -> None:
    refused(model, "mixed_chain", lambda c: c.draft_chain(5, 3), "of equal length")


@EACH
def test_batch_with_too_many_outputs_is_refused(model: Model) -> None:
    refused(
        model, "more_outputs", lambda c: c.prefill(some_tokens(model, 20)), "a batch with 20 outputs, but room for 8"
    )
