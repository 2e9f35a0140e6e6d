"""Tests of failing calls of a context.

An invalid call is refused and changes nothing, a failed one empties only the sequences of the call, and a context that
cannot recover refuses all further calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.contexts import BOTH, EXACT, context, some_tokens

from pymtp import CancelledError, ContextFullError, InvalidRequestError, NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.context.memory import plan_memory
from pymtp.model.model import Model
from pymtp.native import ffi, lib
from pymtp.sampling import Sampler

GREEDY = Sampler(SamplingParams())


@pytest.fixture
def c(dense: Model) -> Iterator[Context]:
    """Return a context of three sequences, of which 0 and 1 have a prompt."""
    with context(dense, n_seq_max=3, **EXACT) as made:
        for seq in range(3):
            made.set_sampling(GREEDY, seq)
        for seq in (0, 1):
            made.prefill(some_tokens(dense, 30, seed=seq), seq)
        yield made


def all_tokens(c: Context) -> list[list[int]]:
    return [c.tokens(seq) for seq in range(c.n_seq_max)]


def continuation(c: Context, seq: int) -> tuple[list[int], bytes]:
    """Return the drafts of a sequence, and the bits of its next logits."""
    return c.draft_chain(5, 3, seq)[0], c.verify([5, 6], seq).tobytes()


def expected_continuation(model: Model, seq: int) -> tuple[list[int], bytes]:
    """Return `continuation` of a fresh context with the same prompt."""
    with context(model, **EXACT) as other:
        other.set_sampling(GREEDY)
        other.prefill(some_tokens(model, 30, seed=seq))
        return continuation(other, 0)


@pytest.mark.parametrize("wrong", [-1, 512, 2**31 - 1])
def test_token_outside_the_vocabulary_is_refused_and_changes_nothing(c: Context, dense: Model, wrong: int) -> None:
    before, decodes = all_tokens(c), c.counters.target_decodes
    calls: list[Any] = [
        lambda: c.prefill([1, wrong]),
        lambda: c.prefill_batch({0: [1], 2: [wrong]}),
        lambda: c.prefill_logits([wrong]),
        lambda: c.verify([1, wrong]),
        lambda: c.verify_chain([wrong]),
        lambda: c.draft(wrong),
        lambda: c.draft_chain(wrong, 2),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match=f"no token {wrong} in a vocabulary of {dense.n_vocab}"):
            call()
    assert (all_tokens(c), c.counters.target_decodes) == (before, decodes)
    assert continuation(c, 0) == expected_continuation(dense, 0)


def test_tokens_without_room_are_refused_for_all_sequences_of_the_call(c: Context, dense: Model) -> None:
    before = all_tokens(c)
    with pytest.raises(ContextFullError):
        c.prefill_batch({0: [1, 2], 1: [1] * 2040})
    assert all_tokens(c) == before
    assert continuation(c, 0) == expected_continuation(dense, 0)


@pytest.mark.parametrize("mode", ["fused", "host-copy", "all-outputs"])
def test_failed_decode_empties_only_its_sequence(dense: Model, mode: str) -> None:
    with context(dense, mode, n_seq_max=2, **EXACT) as c, context(dense, mode, **EXACT) as other:
        for seq in (0, 1):
            c.prefill(some_tokens(dense, 30, seed=seq), seq)
        c.inspect.break_on_purpose("decode_throws")
        with pytest.raises(NativeError, match="on purpose"):
            c.verify([3, 4], 1)
        c.inspect.break_on_purpose("none")
        other.prefill(some_tokens(dense, 30, seed=0))
        assert all_tokens(c) == [some_tokens(dense, 30, seed=0), []]
        np.testing.assert_array_equal(c.draft(7), other.draft(7))
        np.testing.assert_array_equal(c.verify([7, 8]), other.verify([7, 8]))
        # the emptied sequence can be used again
        other.clear()
        np.testing.assert_array_equal(c.prefill([1, 2, 3], 1), other.prefill([1, 2, 3]))
        np.testing.assert_array_equal(c.verify([7, 8], 1), other.verify([7, 8]))


def test_failed_prefill_empties_only_its_sequences(c: Context, dense: Model) -> None:
    c.inspect.break_on_purpose("decode_throws")
    with pytest.raises(NativeError):
        c.prefill_batch({1: [1, 2], 2: [3, 4, 5]})
    c.inspect.break_on_purpose("none")
    assert all_tokens(c) == [some_tokens(dense, 30, seed=0), [], []]
    assert continuation(c, 0) == expected_continuation(dense, 0)


def test_cancelled_call_leaves_other_sequences_bit_for_bit(dense: Model) -> None:
    """Cancel at random moments, with an order of sequences that may make llama.cpp move recurrent states."""
    expected = expected_continuation(dense, 2)
    took = 0.0
    for part in range(12):
        with context(dense, n_seq_max=3, n_ubatch=64, **EXACT) as c:
            for seq in (2, 0, 1):
                c.set_sampling(GREEDY, seq)
                c.prefill(some_tokens(dense, 30, seed=seq), seq)
            prompts = {0: some_tokens(dense, 300), 1: some_tokens(dense, 200)}
            started = time.perf_counter()
            if part == 0:
                c.prefill_batch(prompts)
                took = time.perf_counter() - started
                continue
            timer = threading.Timer(took * (part - 1) / 10, c.cancel)
            timer.start()
            try:
                c.prefill_batch(prompts)
            except CancelledError:
                assert (c.tokens(0), c.tokens(1)) == ([], [])
            timer.join()
            c.cancel(False)
            assert c.tokens(2) == some_tokens(dense, 30, seed=2)
            assert continuation(c, 2) == expected


@BOTH
def test_sequence_rewinds_after_calls_of_other_sequences(model: Model) -> None:
    with context(model, n_seq_max=3, **EXACT) as c, context(model, **EXACT) as other:
        for seq in (2, 0, 1):
            c.prefill(some_tokens(model, 20, seed=seq), seq)
        c.verify([7, 8, 9, 10], 0)
        c.prefill_batch({seq: some_tokens(model, 5, seed=seq) for seq in (1, 2)})
        c.rewind(21)
        other.prefill(some_tokens(model, 20, seed=0))
        other.verify([7])
        np.testing.assert_allclose(c.verify([3]), other.verify([3]), atol=1e-4, rtol=1e-5)


def test_grammar_dead_end_keeps_the_tokens_before_it(c: Context, dense: Model) -> None:
    letter = dense.tokenize("a")[0]
    ends_after_two = Sampler(SamplingParams(grammar=f"root ::= [a] [a] <[{dense.n_vocab + 1}]>"))
    prompt = some_tokens(dense, 30, seed=0)
    c.set_sampling(ends_after_two)
    c.prefill([3])
    assert c.first_token() == letter
    assert c.verify_chain([letter, letter, 7, 8]) == [letter]
    assert c.tokens() == [*prompt, 3, letter, letter]
    c.rewind(32)
    with pytest.raises(InvalidRequestError, match="allows no token at position 33"):
        c.verify_chain([letter, 7, 8])
    assert c.tokens() == [*prompt, 3, letter, letter]
    assert c.tokens(1) == some_tokens(dense, 30, seed=1)
    with context(dense, **EXACT) as other:
        other.prefill([*prompt, 3])
        other.verify([letter])
        other.verify([letter])
        np.testing.assert_allclose(c.draft(9), other.draft(9), atol=1e-4, rtol=1e-5)
        np.testing.assert_allclose(c.verify([9]), other.verify([9]), atol=1e-4, rtol=1e-5)


def test_grammar_without_a_first_token_keeps_the_prompt(c: Context, dense: Model) -> None:
    c.set_sampling(Sampler(SamplingParams(grammar=f"root ::= <[{dense.n_vocab + 1}]>")))
    c.prefill([3])
    with pytest.raises(InvalidRequestError, match="allows no token at position 31"):
        c.first_token()
    assert c.tokens() == [*some_tokens(dense, 30, seed=0), 3]
    c.set_sampling(GREEDY)
    assert 0 <= c.first_token() < dense.n_vocab


def test_grammar_starts_at_the_first_token_of_any_sampling_call(c: Context, dense: Model) -> None:
    c.set_sampling(Sampler(SamplingParams(grammar='root ::= "a" "b" .*')))
    (token,) = c.verify_chain([3])
    assert dense.token_bytes(token)[:1] == b"a"


def test_context_check_changes_nothing(c: Context, dense: Model) -> None:
    c.verify([5, 6])
    before = all_tokens(c)
    c.check()
    assert all_tokens(c) == before
    c.rewind(31)  # check() did not end the time in which the last verification may be rewound
    assert c.n_past == 31


def test_broken_context_refuses_all_calls(c: Context) -> None:
    c.inspect.break_on_purpose("clear_throws")
    with pytest.raises(NativeError, match=r"cannot go on: make a new one \(a fault on purpose, after a decode\)"):
        c.verify([1])
    c.inspect.break_on_purpose("none")
    calls: list[Any] = [
        lambda: c.prefill([1]),
        lambda: c.draft(1),
        lambda: c.draft_chain(1, 2),
        lambda: c.verify([1]),
        lambda: c.verify_chain([1]),
        lambda: c.first_token(1),
        lambda: c.set_sampling(GREEDY),
        lambda: c.rewind(30),
        lambda: c.clear(),
        lambda: c.inspect.head_state(1),
        lambda: c.check(),
    ]
    for call in calls:
        with pytest.raises(NativeError, match="cannot go on: make a new one"):
            call()
    assert c.tokens_held(1) == 30  # a broken context can still be read


@pytest.mark.parametrize(("n_ctx", "n_seq_max"), [(2**31 - 1, 256), (2**31 - 1, 1), (2**24, 128), (2**31 - 1, 2)])
def test_context_refuses_more_tokens_than_llama_cpp_can_count(dense: Model, n_ctx: int, n_seq_max: int) -> None:
    for make in (Context, plan_memory):
        with pytest.raises(InvalidRequestError, match=rf"n_ctx={n_ctx} .* n_seq_max={n_seq_max} "):
            make(dense, n_ctx=n_ctx, n_seq_max=n_seq_max)


def test_context_larger_than_memory_is_an_error(dense: Model) -> None:
    """Try contexts and plans whose cell metadata would take some 200 GiB."""
    with pytest.raises(InvalidRequestError, match=rf"n_ctx={2**24} with n_seq_max=127 takes at least .* GiB of memory"):
        Context(dense, n_ctx=2**24, n_seq_max=127, draft_tokens=1)
    with pytest.raises(NativeError, match="GiB beside K and V"):
        plan_memory(dense, n_ctx=2**24, n_seq_max=127, draft_tokens=1)


def sampling(**fields: Any) -> Any:
    native = ffi.new("struct pymtp_sampling *", {"top_p": 1.0, "repeat_penalty": 1.0, "n_logprobs": -1})
    for name, value in fields.items():
        setattr(native, name, value)
    return native


def test_c_api_refuses_impossible_counts(c: Context) -> None:
    pair = c._handle.pointer
    bias = ffi.new("struct pymtp_logit_bias[]", [(2048, 1.0)])
    unknown = ffi.new("int32_t[]", [lib.PYMTP_SAMPLER_TEMPERATURE + 1])
    for wrong in (
        sampling(samplers=unknown, n_samplers=1),
        sampling(n_samplers=-1),
        sampling(dry_allowed_length=-1),
        sampling(n_bias=-1, bias=bias),
        sampling(n_bias=1, bias=bias),
        sampling(n_grammar_prefix=-1),
    ):
        assert lib.pymtp_pair_set_sampling(pair, 0, wrong) == lib.PYMTP_INVALID
        row, confidence = ffi.new("float[]", 2048), ffi.new("float *")
        assert lib.pymtp_sample(wrong, row, 2048, 0, ffi.NULL, 0, confidence) == -1
    penalty = sampling(repeat_penalty=1.5, penalty_last_n=-1)
    for n_vocab, before, n in ((0, [], 0), (-1, [], 0), (4, [], -1), (4, [4], 1), (4, [-1], 1)):
        assert lib.pymtp_sample(penalty, ffi.new("float[]", 4), n_vocab, 0, before, n, ffi.new("float *")) == -1
    rows = ffi.new("const float **")
    for n in (0, -1, -(2**31)):
        assert lib.pymtp_pair_verify(pair, 0, [1], n, rows) == lib.PYMTP_INVALID
        assert lib.pymtp_pair_prefill(pair, 1, [0], [1], [n], [], 0, False, rows) == lib.PYMTP_INVALID
        assert lib.pymtp_pair_prefill(pair, n, [0], [1], [1], [], 0, False, rows) == lib.PYMTP_INVALID
        nowhere = (ffi.NULL, ffi.NULL, ffi.NULL)
        assert lib.pymtp_pair_draft_tokens(pair, 1, [0], [1], n, *nowhere) == lib.PYMTP_INVALID
        assert lib.pymtp_pair_draft_tokens(pair, n, [0], [1], 1, *nowhere) == lib.PYMTP_INVALID
        assert lib.pymtp_pair_draft_tokens(pair, 2, [0, 0], [1, 1], 1, *nowhere) == lib.PYMTP_INVALID
        outcomes = ffi.new("struct pymtp_outcome[]", 2)
        for n_seqs, seqs, lengths in ((1, [0], [n]), (2, [0, 1], [1, n]), (n, [0], [1]), (2, [0, 0], [1, 1])):
            refused = lib.pymtp_pair_verify_tokens(pair, n_seqs, seqs, [1, 1], lengths, ffi.NULL, outcomes)
            assert refused == lib.PYMTP_INVALID
        assert lib.pymtp_pair_rewind(pair, 0, n) == lib.PYMTP_INVALID
    for seq in (-1, 3, 2**31 - 1, -(2**31)):
        assert lib.pymtp_pair_verify(pair, seq, [1], 1, rows) == lib.PYMTP_INVALID
        assert lib.pymtp_pair_clear(pair, seq) == lib.PYMTP_INVALID
        assert lib.pymtp_pair_n_past(pair, seq) == -1
    assert all_tokens(c)[0] == some_tokens(c.model, 30, seed=0)


def test_c_api_refuses_negative_counts_of_depths_and_costs() -> None:
    numbers = ffi.new("double[]", [7.0, 7.0])
    costs = ffi.gc(lib.pymtp_costs_init(), lib.pymtp_costs_free)
    acceptance = ffi.gc(lib.pymtp_acceptance_init(ffi.NULL), lib.pymtp_acceptance_free)
    depth = ffi.gc(lib.pymtp_depth_init(costs), lib.pymtp_depth_free)
    for n_seqs, drafted, verified in ((0, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1)):
        for _ in range(4):
            lib.pymtp_costs_observe(costs, n_seqs, drafted, 1.0, verified, 1.0)
    for n_seqs, drafted, seconds in (
        (0, 0, 1.0),
        (1, -1, 1.0),
        (1, 0, 0.0),
        (1, 0, float("nan")),
        (1, 1, float("inf")),
    ):
        lib.pymtp_costs_seed(costs, n_seqs, drafted, seconds, seconds, 0.0, 0.0)
    lib.pymtp_costs_seed(costs, 1, 0, 0.0, 1.0, float("nan"), 0.0)
    assert not lib.pymtp_costs_rounds(costs, 1, 1, numbers)  # nothing was timed
    lib.pymtp_costs_seed(costs, 1, 0, 0.0, 1.0, 0.0, 0.0)
    assert not lib.pymtp_costs_rounds(costs, 0, 1, numbers)
    assert not lib.pymtp_costs_rounds(costs, 1, -1, numbers)
    before = ffi.new("double[]", 2)
    lib.pymtp_acceptance_rates(acceptance, 2, before)
    lib.pymtp_acceptance_observe(acceptance, -1, -1, numbers, 0, 0)
    lib.pymtp_acceptance_observe(acceptance, 0, 2**31 - 1, numbers, 0, 0)
    lib.pymtp_acceptance_observe(acceptance, 0, 0, numbers, -1, 0)
    lib.pymtp_acceptance_observe(acceptance, 0, 0, numbers, 0, -1)
    lib.pymtp_acceptance_rates(acceptance, -1, numbers)
    one, limit = ffi.new("struct pymtp_acceptance *[]", [acceptance]), ffi.new("int32_t[]", [7])
    wrong, minus, sure = ffi.new("int32_t[]", [9]), ffi.new("int32_t[]", [-1]), ffi.new("float[]", [0.5])
    assert lib.pymtp_depth_choose(depth, 0, one, limit, 7, 0) == 0
    assert lib.pymtp_depth_choose(depth, 1, one, limit, -1, 0) == 0
    assert lib.pymtp_depth_choose(depth, 1, one, limit, 7, -1) == 0
    assert lib.pymtp_depth_n_to_verify(depth, -1, one, 1, sure) == 0
    assert lib.pymtp_depth_n_to_verify(depth, 1, one, -1, sure) == 0
    lib.pymtp_depth_observe(depth, 0, one, limit, limit, limit, 7, 1.0, 7, 1.0)
    lib.pymtp_depth_observe(depth, 1, one, limit, limit, limit, 1, 1.0, 7, 1.0)  # more verified than made
    lib.pymtp_depth_observe(depth, 1, one, limit, wrong, limit, 7, 1.0, 7, 1.0)  # more correct than judged
    lib.pymtp_depth_observe(depth, 1, one, wrong, limit, limit, 7, 1.0, 7, 1.0)  # more judged than made
    lib.pymtp_depth_observe(depth, 1, one, limit, minus, limit, 7, 1.0, 7, 1.0)
    lib.pymtp_depth_observe(depth, 1, one, limit, limit, minus, 7, 1.0, 7, 1.0)
    after = ffi.new("double[]", 2)
    lib.pymtp_acceptance_rates(acceptance, 2, after)
    assert list(after) == list(before)
    assert list(numbers) == [7.0, 7.0]
    for _ in range(3):  # the counts of a server that drafts nothing for months must not overflow
        assert 0 <= lib.pymtp_depth_choose(depth, 1, one, limit, 7, 2**31 - 1) <= 7


@pytest.mark.parametrize(
    "wrong",
    [{"n_seq_max": 0}, {"n_seq_max": -1}, {"n_seq_max": 257}, {"n_draft": -1}, {"n_draft": 65}, {"n_outputs": 0}],
)
def test_c_api_refuses_impossible_context_options(dense: Model, wrong: dict[str, int]) -> None:
    params = lib.llama_context_default_params()
    params.n_ctx = 256
    options = ffi.new("struct pymtp_pair_options *", {"n_draft": 1, "n_seq_max": 1, "n_outputs": 1} | wrong)
    assert lib.pymtp_pair_init(dense.handle, params, options) == ffi.NULL
    assert next(iter(wrong)).encode() in ffi.string(lib.pymtp_last_error())


def test_logprobs_after_a_grammar_dead_end_are_those_of_the_kept_tokens(dense: Model) -> None:
    a = dense.tokenize("a")[0]
    never = dense.n_vocab + 1
    for k in (0, 5):
        with Context(dense, n_ctx=256, n_threads=1, draft_tokens=3) as c:
            c.set_sampling(Sampler(SamplingParams(grammar=f"root ::= [a] [a] [a] [a] <[{never}]>", logprobs=k)))
            c.prefill([3])
            assert c.first_token() == a
            assert c.verify_chain([a, a]) == [a, a]
            assert c.verify_chain([a, a]) == [a]
            assert [entry.token_id for entry in c.logprobs()] == [a]
            c.rewind(c.tokens_held() - 1)
            with pytest.raises(InvalidRequestError):
                c.verify_chain([a])
            assert c.logprobs() == []


def test_embeddings_belong_to_the_last_prefill(dense: Model) -> None:
    with Context(dense, n_ctx=1024, n_threads=1, n_batch=64, n_ubatch=64, embeddings=True, n_seq_max=2) as c:
        c.prefill(list(range(3, 43)), 0)
        assert len(c.embeddings()) == 40
        c.cancel()
        with pytest.raises(CancelledError):
            c.prefill([7] * 30, 1)
        assert len(c.embeddings()) == 0
