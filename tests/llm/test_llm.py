"""Tests of LLM: it generates completions for prompts, and stays usable after every error."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers.scripts import run_code
from helpers.threads import wait_for_pause
from makers.head_file import write_pair

import pymtp
from pymtp import LLM, ClosedError, Completion, ContextFullError, InvalidRequestError, SamplingParams
from pymtp.drafting.depth import FixedDepth, SequenceDepth

SHORT = SamplingParams(max_tokens=8, ignore_eos=True)
PROMPT = "def fibonacci(n):"  # begins a text of more tokens
LONG = SamplingParams(max_tokens=None, ignore_eos=True)


@pytest.fixture(autouse=True)
def lives_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that the shared LLM still generates the same text."""
    yield
    if "llm" in request.fixturenames:
        llm: LLM = request.getfixturevalue("llm")
        with make_llm() as fresh:
            assert llm.generate("import ", SHORT).token_ids == fresh.generate("import ", SHORT).token_ids


def test_generate_returns_a_completion_for_a_prompt_and_a_list_for_a_list(llm: LLM) -> None:
    one = llm.generate(PROMPT, SHORT)
    assert isinstance(one, Completion)
    assert one.finish_reason == "length"
    assert llm.model.detokenize(one.token_ids) == one.text
    assert one.prompt_token_ids == llm.model.tokenize(PROMPT)
    many = llm.generate([PROMPT, "import "], SHORT)
    assert many[0].text == one.text
    assert len(many) == 2
    assert [c.text for c in llm.generate([PROMPT], SHORT)] == [one.text]


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_generate_takes_token_ids_in_any_sequence(llm: LLM, kind: Callable[[list[int]], Any]) -> None:
    tokens = llm.model.tokenize("def f(x):")
    expected = llm.generate("def f(x):", SHORT).text
    assert llm.generate(kind(tokens), SHORT).text == expected
    assert llm.generate([kind(tokens), "import "], SHORT)[0].text == expected


@pytest.mark.parametrize(
    ("prompt", "error", "why"),
    [
        ("", InvalidRequestError, "empty"),
        ([], InvalidRequestError, "empty"),
        ([[]], InvalidRequestError, "empty"),
        (["a", ""], InvalidRequestError, "empty"),
        ([5, -1], InvalidRequestError, "token id -1"),
        ([5, 1.5], InvalidRequestError, "string or token ids"),
        ([None], InvalidRequestError, "string or token ids"),
        ([5, True], InvalidRequestError, "string or token ids"),
        (None, InvalidRequestError, "NoneType"),
        (7, InvalidRequestError, "int"),
        (b"bytes", InvalidRequestError, "bytes"),
        (["a", b"bytes"], InvalidRequestError, "bytes"),
        ([bytearray(b"bytes")], InvalidRequestError, "bytes"),
        ({"role": "user"}, InvalidRequestError, "dict"),
        ([3] * 1025, ContextFullError, "1025 tokens, n_ctx is 1024"),
        ("x " * 5000, ContextFullError, "n_ctx is 1024"),
        ("\ud800", InvalidRequestError, "not valid Unicode"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_generate_refuses_bad_prompts(llm: LLM, prompt: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        llm.generate(prompt, SHORT)


def test_generate_refuses_the_first_token_id_beyond_the_vocabulary(llm: LLM) -> None:
    n = llm.model.n_vocab
    with pytest.raises(InvalidRequestError, match=f"token id {n}"):
        llm.generate([5, n], SHORT)
    assert llm.generate([5, n - 1], SHORT).token_ids


def test_generate_checks_all_prompts_before_it_runs_the_first(llm: LLM) -> None:
    before = llm.context.counters
    with pytest.raises(InvalidRequestError):
        llm.generate(["import ", [99999]], SHORT)
    assert llm.context.counters == before


def test_prompt_that_fills_the_context_yields_one_token(llm: LLM) -> None:
    completion = llm.generate([3] * 1024, SHORT)
    assert len(completion.token_ids) == 1


def test_stream_pieces_join_to_the_completion(llm: LLM, prompts: list[str]) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.9, seed=4)
    whole = llm.generate(prompts[3], params)
    with llm.stream(prompts[3], params) as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text == stream.completion.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert len(pieces) == whole.stats.rounds + 1
    assert stream.completion.finish_reason == whole.finish_reason


def test_stream_never_yields_a_part_of_a_stop_string(llm: LLM, prompts: list[str]) -> None:
    full = llm.generate(prompts[3], SamplingParams(max_tokens=60)).text
    for at in range(5, len(full) - 6, 7):
        stop = full[at : at + 6]
        out = ""
        for piece in llm.stream(prompts[3], SamplingParams(max_tokens=60, stop=["never there", stop])):
            out += piece.text
            assert full.startswith(out)
            assert len(out) <= full.index(stop)
        assert out == full[: full.index(stop)]


def test_incomplete_stop_string_stays_in_the_text(llm: LLM, prompts: list[str]) -> None:
    full = llm.generate(prompts[3], SamplingParams(max_tokens=30))
    stop = full.text[-2:] + "never there"
    assert llm.generate(prompts[3], SamplingParams(max_tokens=30, stop=stop)).text == full.text


def test_closed_stream_has_a_completion(llm: LLM) -> None:
    stream = llm.stream("import ", LONG)
    first = next(stream)
    with pytest.raises(InvalidRequestError, match="has not ended"):
        stream.completion  # noqa: B018
    stream.close()
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.text.startswith(first.text)
    assert list(stream) == []


def test_open_stream_lends_its_sequence_to_the_next_call_and_continues_later(llm: LLM) -> None:
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    whole = llm.generate("import ", params)
    before = llm.generate("def f(x):", SHORT).text
    stream = llm.stream("import ", params)
    first = next(stream)
    wait_for_pause(llm)
    rounds = llm.figures().rounds
    assert llm.generate("def f(x):", SHORT).text == before
    assert llm.figures().rounds - rounds < 20, "the stream did not run to its end first"
    assert first.text + "".join(piece.text for piece in stream) == whole.text
    assert stream.completion.token_ids == whole.token_ids


def test_cancel_from_another_thread_ends_a_call_within_a_ubatch(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=4096, n_batch=4096, n_ubatch=64)
    expected = new_llm().generate("import ", SHORT).token_ids

    def cancel() -> None:
        while not llm.figures().running:  # wait until the call runs
            time.sleep(0.01)
        llm.cancel()

    threading.Thread(target=cancel).start()
    done = llm.generate([[7] * 4096] * 500, SamplingParams(max_tokens=1))
    reasons = [completion.finish_reason for completion in done]
    n = reasons.count("length")
    assert n < 100
    assert reasons == ["length"] * n + ["cancelled"] * (500 - n)
    assert all((completion.text, completion.token_ids) == ("", []) for completion in done[n:])
    assert llm.generate("import ", SHORT).token_ids == expected


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen by another call"])
def test_cancel_ends_a_call_that_checks_its_prompts(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    llm = new_llm()
    tokenize = llm.model.tokenize

    def cancelled(text: str) -> list[int]:
        llm.cancel()
        if seen:
            llm._engine.process_queues()
        return tokenize(text)

    with monkeypatch.context() as patch:
        patch.setattr(llm.model, "tokenize", cancelled)
        done = llm.generate(["import ", "def f("], SHORT)
    assert [(completion.finish_reason, completion.token_ids) for completion in done] == [("cancelled", [])] * 2
    assert llm.generate("import ", SHORT).finish_reason == "length"


def test_cancelled_context_starts_no_ubatch(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    # Every backend checks for a cancel before a ubatch. Only the CPU backend also stops within a ubatch, which
    # llama.cpp logs
    llm.context.cancel()
    with caplog.at_level("INFO", "pymtp.native"), pytest.raises(pymtp.CancelledError):
        llm.context.prefill([1, 2, 3])
    assert not [record for record in caplog.records if "removing memory module entries" in record.message]


def test_cancel_within_a_ubatch_logs_no_error(new_llm: Callable[..., LLM], caplog: pytest.LogCaptureFixture) -> None:
    llm = new_llm(n_ctx=4096, n_batch=4096, n_ubatch=4096)
    with caplog.at_level("INFO", "pymtp.native"), ThreadPoolExecutor(1) as other:
        while not any("failed to decode" in record.message for record in caplog.records):
            done = other.submit(llm.generate, [7] * 4096, SamplingParams(max_tokens=1))
            while not done.done():
                time.sleep(0.02)
                llm.cancel()
            reason = done.result().finish_reason
    assert reason == "cancelled"
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_threads_get_the_texts_of_single_requests(llm: LLM) -> None:
    prompts = [f"def f{i}(x):" for i in range(8)]
    expected = [c.token_ids for c in llm.generate(prompts, SHORT)]
    got: dict[int, list[int]] = {}

    def run(i: int) -> None:
        got[i] = llm.generate(prompts[i], SHORT).token_ids

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(8)] == expected


INTERRUPTED = """
import os, signal, threading, time
import pymtp
llm = pymtp.LLM(n_ctx=4096, n_threads=1, n_batch=4096, n_ubatch=64)
params = pymtp.SamplingParams(max_tokens=1)
sent = []
def interrupt():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Timer(0.3, interrupt).start()
    llm.generate([[7] * 4096] * 500, params)
except KeyboardInterrupt:
    late = time.perf_counter() - sent[0]
    print("interrupted", late < 5, len(llm.generate("import ", params).token_ids))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows, a process cannot send SIGINT to itself")
def test_ctrl_c_ends_a_prefill_and_the_model_stays_usable() -> None:
    _, printed = run_code(INTERRUPTED)
    assert printed.split() == ["interrupted", "True", "1"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_call_raises_the_exception_of_a_signal_handler(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(n_ctx=8192, n_batch=8192)

    def late(*_: object) -> None:
        raise TimeoutError("too long")

    previous = signal.signal(signal.SIGVTALRM, late)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.2)
        with pytest.raises(TimeoutError, match="too long"):
            llm.generate([[7] * 8192] * 50, SHORT)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    assert llm.generate("import ", SHORT).finish_reason == "length"


def test_llm_stays_usable_after_an_exception_in_the_reader_of_a_stream(llm: LLM) -> None:
    def consume() -> None:
        for _ in llm.stream("import ", LONG):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        consume()


def test_closed_llm_raises_closed_error() -> None:
    llm = make_llm()
    stream = llm.stream("import ", SHORT)
    llm.close()
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate("import ", SHORT)
    with pytest.raises(ClosedError):
        next(stream)


def test_llms_may_share_a_model_that_stays_open(llm: LLM) -> None:
    expected = llm.generate("def f(", SamplingParams(8)).token_ids
    with pymtp.Model() as model:
        with make_llm(model, draft_tokens=0) as plain, make_llm(model, draft_tokens=2) as drafting:
            assert plain.model is drafting.model is model
            plain.close()
            assert drafting.generate("def f(", SamplingParams(8)).token_ids == expected
        with make_llm(model) as another:
            assert another.generate("def f(", SamplingParams(8)).token_ids == expected


def test_stats_of_a_request_are_consistent(llm: LLM, prompts: list[str]) -> None:
    start = time.perf_counter()
    done = llm.generate(prompts[0], SamplingParams(max_tokens=50, ignore_eos=True))
    elapsed = time.perf_counter() - start
    stats = done.stats
    assert stats.prompt_tokens == len(done.prompt_token_ids)
    assert stats.completion_tokens == len(done.token_ids) == 50
    assert stats.accepted + stats.rounds == 49  # the first of the 50 tokens is sampled by the prefill
    assert stats.accepted == sum(stats.accepted_per_position)
    assert len(stats.accepted_per_position) == 3
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    assert stats.acceptance_rate == stats.accepted / stats.drafted
    assert stats.mean_accepted_length == pytest.approx(49 / stats.rounds)
    assert set(stats.phase_seconds) == {"prefill", "head_sync", "draft", "verify", "sample", "rewind"}
    assert all(seconds >= 0 for seconds in stats.phase_seconds.values())
    sample = stats.phase_seconds["sample"]  # a part of draft and verify, except for the sampling of the first token
    assert sum(stats.phase_seconds.values()) - sample <= stats.prefill_seconds + stats.decode_seconds <= elapsed


def test_auto_depth_starts_at_the_depth_of_the_last_request_and_stats_list_the_depths(
    new_llm: Callable[..., LLM], prompts: list[str]
) -> None:
    llm = new_llm(draft_tokens="auto", draft_text=0)
    done = llm.generate(prompts[0], SamplingParams(max_tokens=200, ignore_eos=True))
    assert len(done.stats.depths) == done.stats.rounds
    assert set(done.stats.depths) <= set(range(9))
    again, sampled = llm._engine.depth.add_sequence(0.0), llm._engine.depth.add_sequence(0.7)
    assert isinstance(again, SequenceDepth)
    assert isinstance(sampled, SequenceDepth)
    assert again.acceptance.rates(1) != sampled.acceptance.rates(1), "acceptance depends on the temperature"
    assert isinstance(new_llm(draft_tokens=2)._engine.depth.add_sequence(0.0), FixedDepth)


def test_unknown_keyword_error_names_the_called_function() -> None:
    with pytest.raises(TypeError, match=r"^LLM\(\) got an unexpected keyword argument 'nctx'. Did you mean 'n_ctx'\?$"):
        pymtp.LLM(nctx=4)


@pytest.mark.parametrize("file", ["demo", "headless", "head file"])
@pytest.mark.parametrize("draft_tokens", ["auto", 0])
def test_repr_of_an_llm_names_model_context_head_and_drafts(
    demo: Path, headless: Path, tmp_path: Path, file: str, draft_tokens: Any
) -> None:
    options: dict[str, Any] = {"n_ctx": 300, "n_seq_max": 2, "n_threads": 1, "draft_tokens": draft_tokens}
    model, head = headless if file == "headless" else demo, None if file == "headless" else "own"
    if file == "head file":
        model, options["head"] = write_pair(demo, tmp_path)
        head = None if draft_tokens == 0 else options["head"].name
    with pymtp.LLM(model, **options) as llm:
        expected = f"LLM({model.name!r}, n_ctx=512, n_seq_max=2, head={head!r}, draft_tokens={draft_tokens!r})"
        assert repr(llm) == expected
    assert repr(llm) == expected, "also after close()"
    assert repr(object.__new__(pymtp.LLM)) == "LLM(not loaded)"  # as in a debugger, before the constructor ends


def test_str_of_a_completion_is_its_text(llm: LLM) -> None:
    completion = llm.generate("import ", SHORT)
    assert str(completion) == completion.text
    assert f"{completion}" == completion.text
    assert repr(completion).startswith("Completion(text=")


def test_llm_has_only_the_documented_public_attributes(llm: LLM) -> None:
    public = {name for name in dir(llm) if not name.startswith("_")}
    calls = {"generate", "stream", "chat", "stream_chat", "embed", "save_prefix", "load_prefix"}
    calls |= {"create_completion", "create_chat_completion"}
    makers = {"from_options", "from_pretrained"}
    states = {"cancel", "close", "closed", "context", "figures", "model"}
    chats = {"chat_prompts", "chat_template", "get_default_sampling_params", "sampling_defaults", "template_source"}
    images = {"mmproj", "sees_images"}
    assert public == calls | makers | states | chats | images
    public = {name for name in dir(pymtp.AsyncLLM) if not name.startswith("_")}
    assert public == calls | makers | {"close", "figures", "get_default_sampling_params"}


def test_grammar_is_compiled_once_a_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, grammar = [], type(llm.model).grammar
    monkeypatch.setattr(type(llm.model), "grammar", lambda model, text: compiled.append(text) or grammar(model, text))
    llm.generate("import ", SamplingParams(4, grammar='root ::= [a-z ]+ "."'))
    list(llm.stream("import ", SamplingParams(4, json_schema={"type": "integer"})))
    assert len(compiled) == 2
