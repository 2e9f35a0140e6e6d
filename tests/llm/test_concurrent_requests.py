"""Tests of concurrent requests in an LLM: they share rounds, and each generates the same text as alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from conftest import make_llm
from helpers.threads import run_in_threads

from pymtp import LLM, Completion, InvalidRequestError, NativeError, PymtpError, SamplingParams
from pymtp.context.context import Context, ImageRows
from pymtp.engine.engine import Engine
from pymtp.engine.request import Request
from pymtp.sampling import Logits

SHORT = SamplingParams(max_tokens=16)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture(scope="module", params=[3, "auto"])
def several(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with make_llm(n_seq_max=4, draft_tokens=request.param) as llm:
        yield llm


def texts(completions: list[Completion]) -> list[str]:
    return [completion.text for completion in completions]


def test_generate_runs_a_list_in_one_batch_with_the_texts_of_single_requests(
    llm: LLM, several: LLM, prompts: list[str]
) -> None:
    some, before = prompts[:8], several.figures()
    for params in (
        SHORT,
        SamplingParams(16, temperature=0.9, seed=3),
        SamplingParams(16, grammar='root ::= [a-z ]+ "."'),
    ):
        assert texts(several.generate(some, params)) == [llm.generate(prompt, params).text for prompt in some]
    after = several.figures()
    assert after.sequences[4] > before.sequences.get(4, 0)
    assert after.finished - before.finished == 3 * len(some)


def test_generate_takes_a_list_of_params_for_a_list_of_prompts(llm: LLM, several: LLM, prompts: list[str]) -> None:
    params = [
        SamplingParams(
            4 + i, temperature=0.5 * (i % 3), seed=i, draft_tokens=(None, 0, 1)[i % 3], logprobs=i % 2 or None
        )
        for i in range(len(prompts))
    ]
    done = several.generate(prompts, params)
    alone = [llm.generate(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    assert [completion.token_ids for completion in done] == [completion.token_ids for completion in alone]
    for completion, one in zip(done, params, strict=True):
        assert (completion.logprobs is None) == (one.logprobs is None)
        if completion.logprobs is not None:
            assert [each.token_id for each in completion.logprobs] == completion.token_ids
        assert max(completion.stats.depths, default=0) <= (7 if one.draft_tokens is None else one.draft_tokens)
    with pytest.raises(InvalidRequestError, match="2 params for 1 prompts"):
        several.generate(["a"], params[:2])
    with pytest.raises(InvalidRequestError, match="not str"):
        several.generate(["a", "b"], "ab")  # type: ignore[call-overload]


@pytest.mark.parametrize("priority", ["high", None, 0.5, float("nan"), 2**40])
def test_priority_must_be_a_whole_number(several: LLM, prompts: list[str], priority: Any) -> None:
    """Refuse values that the engine could not compare with the priorities of other requests."""
    with pytest.raises(InvalidRequestError, match="priority="):
        several.generate(prompts[0], SHORT, priority=priority)


def test_exception_during_submission_of_a_list_cancels_all_its_requests(
    several: LLM, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, handed_in = Engine.submit, []

    def submit(self: Engine, request: Request, *more: Any) -> None:
        original(self, request, *more)
        handed_in.append(request)
        if len(handed_in) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "submit", submit)
    with pytest.raises(KeyboardInterrupt):
        several.generate(prompts, ENDLESS)
    monkeypatch.undo()
    several.generate("import ", SHORT)
    assert [request.finish_reason for request in handed_in] == ["cancelled"] * 3
    assert not any(request.tokens for request in handed_in)


def test_completions_of_a_prompt_have_consecutive_seeds(llm: LLM, several: LLM) -> None:
    params = SamplingParams(12, temperature=1.0, seed=5, n=3)
    first = several.generate("import ", params)
    whole = [first, *first.others]
    assert [completion.seed for completion in whole] == [5, 6, 7]
    assert texts(whole) == [
        llm.generate("import ", SamplingParams(12, temperature=1.0, seed=seed)).text for seed in (5, 6, 7)
    ]
    two = several.generate(["import ", "def "], [params, SHORT])
    assert (len(two[0].others), two[1].others) == (2, ())
    with pytest.raises(InvalidRequestError, match="n=3"):
        several.stream("import ", params)
    with pytest.raises(InvalidRequestError, match="must be SamplingParams, not list"):
        several.stream("import ", [params])  # type: ignore[arg-type]
    assert several.figures().waiting == 0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[Context]:
    """Count the prompt tokens that the target prefills."""
    counted: Counter[Context] = Counter()
    original = Context.prefill_batch

    def prefill_batch(self: Context, prompts: Mapping[int, Sequence[int]], *images: ImageRows) -> Logits:
        counted[self] += sum(map(len, prompts.values()))
        return original(self, prompts, *images)

    monkeypatch.setattr(Context, "prefill_batch", prefill_batch)
    return counted


@pytest.mark.parametrize("n", [2, 4, 7])
def test_completions_of_a_prompt_share_one_prefill(
    llm: LLM, several: LLM, prompts: list[str], read: Counter[Context], n: int
) -> None:
    tokens = [n, *[token for prompt in prompts[:4] for token in llm.model.tokenize(prompt)][:299]]
    first = several.generate(tokens, SamplingParams(20, temperature=1.0, seed=5, n=n, logprobs=1))
    assert read[several.context] == len(tokens)
    whole = [first, *first.others]
    assert [one.stats.cached_tokens for one in whole] == [0] + [len(tokens)] * (n - 1)
    for i, one in enumerate(whole):
        alone = llm.generate(tokens, SamplingParams(20, temperature=1.0, seed=5 + i, logprobs=1))
        assert (one.text, one.logprobs) == (alone.text, alone.logprobs)


def test_completions_of_a_prompt_each_have_their_own_grammar_state(llm: LLM, several: LLM) -> None:
    params = SamplingParams(20, temperature=1.0, seed=5, grammar='root ::= [a-z]+ " = " [0-9]+ "\\n"')
    first = several.generate("import os\n", replace(params, n=3))
    assert texts([first, *first.others]) == [
        llm.generate("import os\n", replace(params, seed=seed)).text for seed in (5, 6, 7)
    ]


def test_remaining_sequences_move_together_after_a_request_ends_and_keep_their_texts(
    llm: LLM, several: LLM, prompts: list[str]
) -> None:
    lengths = [60, 3, 60, 60]
    params = [SamplingParams(n, temperature=0.8, seed=i, ignore_eos=True, logprobs=1) for i, n in enumerate(lengths)]
    with make_llm(n_seq_max=4, draft_tokens=0, cache_prompt=False) as apart:
        before = apart.context.counters
        done = apart.generate(prompts[:4], params)
        after = apart.context.counters
    assert after.sequence_bytes > before.sequence_bytes
    # 4 prefills and one decode per round: sequences moved before a round with a gap between them
    assert after.target_decodes - before.target_decodes <= 4 + 60
    for one, prompt, its in zip(done, prompts, params, strict=False):
        alone = llm.generate(prompt, its)
        assert (one.text, one.logprobs) == (alone.text, alone.logprobs)


def test_calls_of_several_threads_run_in_one_batch(llm: LLM, several: LLM, prompts: list[str]) -> None:
    expected = texts(llm.generate(prompts, SHORT))
    before = several.figures()
    got: dict[int, str] = {}

    def generate(i: int) -> None:
        got[i] = several.generate(prompts[i], SHORT).text

    def stream(i: int) -> None:
        got[i] = "".join(piece.text for piece in several.stream(prompts[i], SHORT))

    run_in_threads(*(lambda i=i: (generate, stream)[i % 2](i) for i in range(len(prompts))))  # type: ignore[misc]
    assert [got[i] for i in range(len(prompts))] == expected
    shared = {n: times - before.sequences.get(n, 0) for n, times in several.figures().sequences.items() if n > 1}
    assert sum(shared.values()) > 0


def test_several_streams_may_be_open_at_once(llm: LLM, several: LLM, prompts: list[str]) -> None:
    streams = [several.stream(prompt, SHORT) for prompt in prompts[:6]]  # more streams than sequences
    got = [""] * 6
    while any(streams):
        for i, stream in enumerate(streams):
            if stream is not None:
                piece = next(stream, None)
                if piece is None:
                    streams[i] = None  # type: ignore[call-overload]
                else:
                    got[i] += piece.text
    assert got == texts(llm.generate(prompts[:6], SHORT))


def test_closed_or_freed_stream_does_not_affect_the_others(llm: LLM, several: LLM, prompts: list[str]) -> None:
    closed, dropped, read = (several.stream(prompt, ENDLESS) for prompt in prompts[:3])
    for stream in (closed, dropped, read):
        next(stream)
    closed.close()
    assert closed.completion.finish_reason == "cancelled"
    del dropped, stream
    read.close()
    assert several.generate(prompts[3], SHORT).text == llm.generate(prompts[3], SHORT).text
    assert several.figures().running == 0


def test_text_that_fills_its_grammar_ends_the_same_in_a_batch(llm: LLM, several: LLM, prompts: list[str]) -> None:
    # in the batch, other requests verify more rows than this one has tokens left before its grammar ends
    two = SamplingParams(2, grammar=f"root ::= [a] [a] <[{llm.model.n_vocab + 1}]>")
    assert llm.generate(prompts[0], two).text == "aa"
    done = several.generate(prompts[:4], [two, SHORT, SHORT, two])
    assert [texts(done)[i] for i in (0, 3)] == ["aa", "aa"]


def test_failed_request_of_a_list_fails_alone_and_its_error_has_all_completions(
    llm: LLM, several: LLM, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Context.first_token
    calls = 0

    def fails_once(self: Context, seq: int = 0) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise NativeError("no finite logits at position 7")
        return original(self, seq)

    monkeypatch.setattr(Context, "first_token", fails_once)
    with pytest.raises(NativeError, match="no finite logits") as caught:
        several.generate(prompts[:5], SHORT)
    monkeypatch.undo()
    found = caught.value.completions
    assert [isinstance(one, PymtpError) for one in found] == [False, True, False, False, False]
    expected = llm.generate(prompts[:5], SHORT)
    assert all(
        one.text == whole.text for one, whole in zip(found, expected, strict=True) if isinstance(one, Completion)
    )


def test_stream_runs_beside_a_long_call_of_another_thread(several: LLM, prompts: list[str]) -> None:
    expected = several.generate(prompts[0], ENDLESS).token_ids
    done: list[list[int]] = []
    worker = threading.Thread(target=lambda: done.append(several.generate(prompts[0], ENDLESS).token_ids))
    worker.start()
    while worker.is_alive() and not several.figures().running:
        time.sleep(0.001)
    stream = several.stream(prompts[1], ENDLESS)
    next(stream)
    stream.close()
    worker.join()
    assert done == [expected]


def test_stats_have_queue_seconds_and_time_to_first_token(prompts: list[str]) -> None:
    with make_llm() as llm:
        first, second = llm.generate(prompts[:2], SHORT)
    assert second.stats.queue_seconds > first.stats.prefill_seconds + first.stats.decode_seconds
    for done in (first, second):
        assert done.stats.queue_seconds < done.stats.time_to_first_token
        assert done.stats.time_to_first_token == pytest.approx(done.stats.queue_seconds + done.stats.prefill_seconds)
        assert done.stats.as_dict()["queue_seconds"] == done.stats.queue_seconds


def test_sequences_hold_valid_states_after_all_tests_of_the_module(llm: LLM, several: LLM, prompts: list[str]) -> None:
    done = several.generate(prompts[:4], SHORT)
    longer = [[*one.prompt_token_ids, *one.token_ids] for one in done]
    again = several.generate(longer, SHORT)
    assert texts(again) == [llm.generate(tokens, SHORT).text for tokens in longer]
    # a request may have moved into the sequence of another one that ended before it: so short a text is not kept then
    cached = [one.stats.cached_tokens for one in again]
    assert all(n in (0, len(tokens) - 1) for n, tokens in zip(cached, longer, strict=True))
    assert cached.count(0) < 2
