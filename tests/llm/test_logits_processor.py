"""Tests of logits processors: functions of the caller that change rows of logits."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pymtp import LLM, Completion, InvalidRequestError, SamplingParams
from pymtp.context.context import Context
from pymtp.sampling import Sampler


@pytest.fixture(scope="module")
def pair() -> Iterator[LLM]:
    """Make an LLM that runs two requests at once."""
    with LLM(n_ctx=512, n_threads=1, draft_tokens=7, n_seq_max=2) as llm:
        yield llm


def odd_after_space(tokens: Any, row: Any) -> None:
    """Forbid even tokens after an odd one, and make the rest flatter."""
    row *= 0.8
    if tokens[-1] % 2:
        row[::2] = -np.inf


def flipped(tokens: Any, row: Any) -> Any:
    """Return another row, in which a third of the tokens is forbidden."""
    other = row.copy()
    other[tokens[-1] % 3 :: 3] = -np.inf
    return other


@pytest.mark.parametrize("processor", [odd_after_space, flipped, [odd_after_space, flipped]], ids=["in", "new", "two"])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "seed": 5, "logprobs": 2}], ids=["greedy", "sampled"])
def test_text_with_a_processor_is_the_same_with_any_number_of_drafts(
    pair: LLM, processor: Any, params: dict[str, Any]
) -> None:
    wanted, *others = (
        pair.generate("import ", max_tokens=48, logits_processor=processor, draft_tokens=n, ignore_eos=True, **params)
        for n in (0, 3, 7)
    )
    assert wanted.token_ids != pair.generate("import ", max_tokens=48, ignore_eos=True, **params).token_ids
    assert [(one.token_ids, one.logprobs) for one in others] == [(wanted.token_ids, wanted.logprobs)] * 2
    assert all(one.stats.accepted for one in others)  # drafts go on


def test_processor_gets_all_tokens_and_the_model_s_own_logits(pair: LLM) -> None:
    seen: list[tuple[list[int], Any]] = []

    def look(tokens: Any, row: Any) -> None:
        seen.append((tokens.tolist(), row.copy()))
        assert (tokens.dtype, row.dtype, row.shape) == (np.int32, np.float32, (pair.model.n_vocab,))

    bias = {100: -np.inf}
    done = pair.generate("import ", max_tokens=8, logits_processor=look, logit_bias=bias, logprobs=0, ignore_eos=True)
    whole = [*done.prompt_token_ids, *done.token_ids]
    assert [tokens for tokens, _ in seen[:8]] == [whole[: len(done.prompt_token_ids) + i] for i in range(8)]
    assert done.logprobs is not None
    for (_, row), one in zip(seen, done.logprobs, strict=False):
        assert np.isfinite(row[100])
        wide = row.astype(np.float64)
        assert one.logprob == pytest.approx(wide[one.token_id] - np.logaddexp.reduce(wide), abs=1e-5)


def test_processor_applies_in_batches_streams_and_to_every_completion(pair: LLM) -> None:
    params = SamplingParams(24, temperature=0.9, seed=1, logits_processor=odd_after_space)
    alone = [pair.generate(prompt, params).token_ids for prompt in ("import ", "def ", "class ")]
    assert [one.token_ids for one in pair.generate(["import ", "def ", "class "], params)] == alone
    assert [token for piece in pair.stream("import ", params) for token in piece.token_ids] == alone[0]
    several = pair.generate("import ", params, n=3)
    seeds = [pair.generate("import ", params, seed=seed).token_ids for seed in (1, 2, 3)]
    assert [several.token_ids, *(one.token_ids for one in several.others)] == seeds


def test_processor_is_bounded_by_a_grammar_and_by_closed_thinking(pair: LLM) -> None:
    def no_one(tokens: Any, row: Any) -> None:
        row[[token for token in range(len(row)) if pair.model.token_bytes(token).startswith(b"1")]] = -np.inf

    done = pair.generate("import ", grammar='root ::= "10" | "23"', logits_processor=no_one)
    assert done.text == "23"
    closed = pair.generate("<think>", max_tokens=20, thinking_budget=3, logits_processor=odd_after_space, logprobs=0)
    assert closed.stats.thinking_tokens == 3


def raises(tokens: Any, row: Any) -> None:
    if len(tokens) > 12:
        raise KeyError("a thing that is missing")


@pytest.mark.parametrize("n_drafts", [0, 7])
def test_processor_that_raises_ends_its_request_alone(pair: LLM, n_drafts: int) -> None:
    wanted = pair.generate("def ", max_tokens=40).token_ids
    params = [SamplingParams(40, logits_processor=raises, draft_tokens=n_drafts, ignore_eos=True), SamplingParams(40)]
    with pytest.raises(InvalidRequestError, match="logits_processor raised KeyError: 'a thing") as raised:
        pair.generate(["import ", "def "], params)
    assert raised.value.param == "logits_processor"
    assert isinstance(raised.value.__cause__, KeyError)
    assert "in raises" in "".join(traceback.format_tb(raised.value.__cause__.__traceback__))
    _, other = raised.value.completions
    assert isinstance(other, Completion)
    assert other.token_ids == wanted
    stream, got = pair.stream("import ", params[0]), list[int]()
    with pytest.raises(InvalidRequestError, match="raised KeyError"):
        got.extend(token for piece in stream for token in piece.token_ids)
    wanted = pair.generate(
        "import ", max_tokens=13 - len(stream.completion.prompt_token_ids), ignore_eos=True
    ).token_ids
    assert got == wanted  # the tokens before the error, however drafted


def test_processor_that_raises_once_ends_its_request(pair: LLM) -> None:
    raised: list[int] = []

    def raises_once(tokens: Any, row: Any) -> None:
        if len(tokens) > 12 and not raised:
            raised.append(1)
            raise KeyError("once")

    with pytest.raises(InvalidRequestError, match="raised KeyError"):
        pair.generate("import ", max_tokens=40, logits_processor=raises_once, ignore_eos=True)


def test_processor_that_raises_at_the_first_token_ends_its_request(pair: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="raised ZeroDivisionError") as raised:
        pair.generate("import ", logits_processor=lambda tokens, row: 1 / 0)  # type: ignore[misc]
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


class MuteError(Exception):
    """An error, and a result, of which nothing can be told."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


def test_processor_whose_error_or_result_has_no_text_is_refused(pair: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    for error in (MuteError, AssertionError):

        def fail(tokens: Any, row: Any, error: type[Exception] = error) -> None:
            raise error

        with pytest.raises(InvalidRequestError, match=rf"logits_processor raised {error.__name__}$") as raised:
            pair.generate("import ", logits_processor=fail)
        assert isinstance(raised.value.__cause__, error)
    with pytest.raises(InvalidRequestError, match=r"logits_processor must return .*, not \(MuteError\)"):
        pair.generate("import ", logits_processor=lambda tokens, row: MuteError())  # type: ignore[arg-type,return-value]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda row: row[:3], r"shape \(\d+,\), not one of float32 with the shape \(3,\)"),
        (lambda row: row.astype(float), "not one of float64"),
        (lambda row: row.tolist(), r"not \["),
        (lambda row: row * np.nan, "got nan"),
        (lambda row: np.full_like(row, -np.inf), "-inf for every token"),
        (lambda row: np.full_like(row, np.inf), "got inf"),
    ],
)
def test_wrong_result_of_a_processor_is_refused(pair: LLM, result: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        pair.generate("import ", max_tokens=3, logits_processor=lambda tokens, row: result(row))
    assert pair.generate("import ", max_tokens=3, ignore_eos=True).finish_reason == "length"


@pytest.mark.parametrize("value", [3, "x", [], [3], {}])
def test_value_that_is_no_function_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"logits_processor=.* must be a function"):
        SamplingParams(logits_processor=value)


@pytest.mark.parametrize("n_drafts", [0, 7])
def test_error_of_a_processor_behind_the_end_of_the_text_does_not_count(pair: LLM, n_drafts: int) -> None:
    done = pair.generate("import ", max_tokens=12, ignore_eos=True)
    stop, n = done.token_ids[-1], len(done.prompt_token_ids)
    ends = {"max_tokens": 40, "stop_token_ids": [stop], "draft_tokens": n_drafts}

    def fail_behind(tokens: Any, row: Any) -> None:
        if stop in tokens[n:]:
            raise ValueError("there is no text behind the end")

    assert pair.generate("import ", logits_processor=fail_behind, **ends).finish_reason == "stop"


def test_processor_that_samples_with_another_one_still_must_not_call_its_llm(pair: LLM) -> None:
    other = Sampler(SamplingParams(logits_processor=flipped))

    def call(tokens: Any, row: Any) -> None:
        other.sample(row, 1, [7])
        pair.generate("x")

    with pytest.raises(InvalidRequestError, match="must not call the LLM"):
        pair.generate("import ", max_tokens=3, logits_processor=call)


@pytest.mark.parametrize("name", ["generate", "close", "tokens_held"])
def test_processor_that_calls_its_llm_is_refused(pair: LLM, name: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: pair.generate("x"),
        "close": pair.close,
        "tokens_held": pair.context.tokens_held,
    }
    with pytest.raises(InvalidRequestError, match="must not call the LLM"):
        pair.generate("import ", max_tokens=3, logits_processor=lambda tokens, row: calls[name]())
    assert pair.generate("import ", max_tokens=3, logits_processor=lambda t, r: r + len(pair.model.tokenize("a")))


def test_processor_that_refers_to_its_llm_does_not_keep_it() -> None:
    def used() -> weakref.ref[LLM]:
        llm = LLM(n_ctx=64, n_threads=1, draft_tokens=0)
        llm.generate("import ", max_tokens=2, logits_processor=lambda tokens, row: row + len(llm.model.tokenize("a")))
        return weakref.ref(llm)

    llm = used()
    gc.collect()
    assert llm() is None


def test_processor_of_a_sequence_is_used_after_others_were_refused(pair: LLM) -> None:
    with Context(pair.model, n_ctx=64, draft_tokens=0, n_threads=1) as context:
        context.set_sampling(Sampler(SamplingParams(logits_processor=no_text)))
        for processor in (no_text, None):
            with pytest.raises(InvalidRequestError, match="grammar"):
                context.set_sampling(Sampler(SamplingParams(grammar="root ::= x", logits_processor=processor)))
        gc.collect()
        context.prefill([1, 2, 3])
        with pytest.raises(InvalidRequestError, match="logits_processor must leave numbers"):
            context.first_token()
        context.set_sampling(Sampler(SamplingParams()))
        assert context.first_token() >= 0


def no_text(tokens: Any, row: Any) -> None:
    row[:] = -np.inf


def test_sampler_applies_the_processor(pair: LLM) -> None:
    reversed_row = Sampler(SamplingParams(logits_processor=lambda tokens, row: row[::-1]))
    assert reversed_row.sample(np.arange(8, dtype=np.float32), 1, [7])[0] == 0
    sampler = Sampler(SamplingParams(logits_processor=flipped))
    row = np.arange(8, dtype=np.float32)
    assert sampler.sample(row, 1, [7])[0] == 6  # 7 % 3 == 1, so 7, 4 and 1 are forbidden
