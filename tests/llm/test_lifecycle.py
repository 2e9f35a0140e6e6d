"""Tests of object lifetimes: use by several threads, close(), and the moment when memory is freed."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers.scripts import run_script
from helpers.threads import run_in_threads

import pymtp
from pymtp import LLM, ClosedError, InvalidRequestError, Model, SamplingParams
from pymtp.context.context import Context
from pymtp.drafting.depth import Acceptance, AutoDepth, RoundCosts
from pymtp.model.model import demo_model
from pymtp.sampling import Sampler

SHORT = SamplingParams(max_tokens=8)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)
SMALL: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "draft_tokens": 2}


def test_context_close_waits_for_a_call_of_another_thread() -> None:
    assert (
        run_script("""
for _ in range(3):
    context = Context(model, n_ctx=1024, n_threads=1)
    rows = []
    caller = threading.Thread(target=lambda: rows.append(context.prefill([7] * 1000)))
    caller.start()
    time.sleep(0.02)
    context.close()
    caller.join()
    print(rows[0].shape == (context.model.n_vocab,))
""")
        == ["True"] * 3
    )


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux shows them")
def test_compute_threads_stay_alive_between_graphs_and_serve_both_contexts() -> None:
    before, most, *after = map(
        int,
        run_script("""
def watch():
    while not done:
        seen.append(n_threads())
seen, done, after = [], [], []
context = Context(model, n_ctx=512, n_threads=2, draft_tokens=2)
watching = threading.Thread(target=watch)
watching.start()
for _ in range(8):
    context.prefill([7] * 400)
    context.draft(7)
    after.append(n_threads() - 1)
    context.clear()
done.append(True)
watching.join()
print(before_models, max(seen) - 1, *after, sep="\\n")
"""),
    )
    assert most == before + 1  # one more thread while graphs run
    assert after == [before + 1] * 8


def test_cancel_and_close_may_run_at_the_same_time() -> None:
    assert (
        run_script("""
import sys
sys.setswitchinterval(1e-4)  # threads meet more often
def cancel():
    while not done:
        for context in list(contexts):
            context.cancel()
contexts, done = [], False
callers = [threading.Thread(target=cancel) for _ in range(3)]
for caller in callers:
    caller.start()
for _ in range(20):
    contexts[:] = [Context(model, n_ctx=256, n_threads=1)]
    contexts[0].close()
done = True
""")
        == []
    )


@pytest.mark.parametrize("n_threads", [1, 2])
def test_process_may_exit_while_a_daemon_thread_is_in_a_call(n_threads: int) -> None:
    assert run_script(f"""
llm = pymtp.LLM(model, n_ctx=2048, n_threads={n_threads})
def work():
    while True:
        llm.generate([7] * 1000, pymtp.SamplingParams(50))
threading.Thread(target=work, daemon=True).start()
time.sleep(0.15)
print("ends")
""") == ["ends"]


def test_context_calls_of_several_threads_run_one_after_the_other(llm: LLM) -> None:
    prompts = [[i + 1] * 40 for i in range(4)]
    with Context(llm.model, n_ctx=256, n_seq_max=4, n_threads=1, draft_tokens=2) as context:
        expected = [context.prefill(prompt, seq) for seq, prompt in enumerate(prompts)]
        got: dict[int, list[Any]] = {}

        def work(seq: int) -> None:
            got[seq] = []
            for _ in range(10):
                context.clear(seq)
                got[seq].append(context.prefill(prompts[seq], seq))

        run_in_threads(*(lambda seq=seq: work(seq) for seq in range(4)))  # type: ignore[misc]
    for seq, rows in got.items():
        assert all(np.array_equal(row, expected[seq]) for row in rows)


def test_llm_close_waits_for_the_running_request_and_refuses_waiting_calls() -> None:
    llm = make_llm(demo_model())
    expected = llm.generate("import ", SamplingParams(200, ignore_eos=True)).token_ids
    got: list[list[int]] = []
    refused: list[ClosedError] = []

    def work() -> None:
        try:
            while True:
                got.append(llm.generate("import ", SamplingParams(200, ignore_eos=True)).token_ids)
        except ClosedError as error:
            refused.append(error)

    run_in_threads(*[work] * 4, llm.close)
    assert len(refused) == 4
    assert all(tokens == expected for tokens in got)


def test_cancel_that_is_reset_while_it_runs_leaves_no_flag_set() -> None:
    # The engine's thread resets the flag as soon as it sees the flag, also in the middle of cancel()

    class Seen(Context):
        @property  # type: ignore[override]
        def cancelled(self) -> bool:
            return self.__dict__.get("seen", False)

        @cancelled.setter
        def cancelled(self, value: bool) -> None:
            self.__dict__["seen"] = value
            if value:
                self.cancel(False)

    with Model() as model, Seen(model, **SMALL) as context:
        context.cancel()
        assert not context.cancelled
        context.prefill([1, 2, 3])


def test_cancel_after_close_is_harmless() -> None:
    llm = make_llm(demo_model())
    context = llm.context
    llm.close()
    llm.cancel()
    context.cancel()


def test_stream_is_cancelled_by_the_close_of_its_llm() -> None:
    llm = make_llm(demo_model())
    stream = llm.stream("import ", ENDLESS)
    first = next(stream)
    llm.close()
    read = list(first.token_ids)
    with pytest.raises(ClosedError):
        read.extend(token for piece in stream for token in piece.token_ids)  # what was written before
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.token_ids == read


def test_stream_keeps_its_llm_alive() -> None:
    expected = make_llm(demo_model()).generate("import ", SHORT).text
    assert "".join(piece.text for piece in make_llm(demo_model()).stream("import ", SHORT)) == expected


def test_stream_may_be_read_by_several_threads(llm: LLM, prompts: list[str]) -> None:
    params = SamplingParams(max_tokens=60)
    expected = llm.generate(prompts[3], params).text
    stream = llm.stream(prompts[3], params)
    run_in_threads(*[lambda: list(stream)] * 3)
    assert stream.completion.text == expected


def test_weights_are_freed_with_the_last_reference_without_garbage_collection() -> None:
    def refused(llm: LLM, params: SamplingParams) -> None:
        with suppress(InvalidRequestError):
            llm.generate("import ", params)

    gc.collect()
    gc.disable()
    try:
        for use in (
            lambda llm: llm.generate("import ", SHORT),
            lambda llm: next(llm.stream("import ", ENDLESS)),
            lambda llm: list(llm.stream("import ", SHORT)),
            lambda llm: llm.chat([{"role": "user", "content": "hello"}], SHORT),
            lambda llm: refused(llm, SamplingParams(grammar="root")),
        ):
            llm = make_llm(demo_model())
            gone = [weakref.ref(llm), weakref.ref(llm.model), weakref.ref(llm.context)]
            use(llm)
            del llm
            assert [ref() for ref in gone] == [None] * 3
        llm = make_llm(demo_model())
        stream = llm.stream("import ", ENDLESS)
        gone = [weakref.ref(llm), weakref.ref(llm.model), weakref.ref(llm.context)]
        next(stream)
        del llm, stream
        assert [ref() for ref in gone] == [None] * 3
    finally:
        gc.enable()


def test_model_may_be_closed_while_threads_tokenize() -> None:
    for _ in range(5):
        model = Model(vocab_only=True)
        refused: list[ClosedError] = []

        def work(model: Model = model, refused: list[ClosedError] = refused) -> None:
            try:
                while True:
                    assert model.detokenize(model.tokenize("def f(x): return x" * 50))
            except ClosedError as error:
                refused.append(error)

        run_in_threads(*[work] * 3, model.close)
        assert len(refused) == 3


def test_llm_reports_that_its_model_was_closed(llm: LLM) -> None:
    with Model() as model, make_llm(model) as sharing:
        stream = sharing.stream("import ", ENDLESS)
        next(stream)
        model.close()
        for call in (lambda: sharing.generate("import "), lambda: list(stream)):
            with pytest.raises(ClosedError, match="model is closed"):
                call()
        assert stream.completion.finish_reason == "cancelled"


def test_sampler_with_a_grammar_may_be_used_by_several_threads(llm: LLM) -> None:
    sampler = Sampler(SamplingParams(grammar='root ::= "a"'))
    a = llm.model.tokenize("a")[0]
    rows = np.zeros(llm.model.n_vocab, np.float32)
    got = []

    def work() -> None:
        for _ in range(20):
            with sampler.compiled(llm.model):
                got.append(sampler.sample(rows, 0)[0])

    run_in_threads(*[work] * 4)
    assert got == [a] * 80


def test_generate_keeps_its_model_open_while_other_threads_ask_for_other_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(n: int) -> str:
        return pymtp.generate(f"def f{n}(", max_tokens=20, n_ctx=256 * n, n_threads=1).text

    wanted = {n: ask(n) for n in (1, 2, 3)}
    got: list[bool] = []
    original = LLM._make_requests

    def late(self: LLM, *arguments: Any, **keywords: Any) -> Any:
        time.sleep(0.02)  # so that another thread may call generate meanwhile
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(LLM, "_make_requests", late)
    run_in_threads(*[lambda n=n: got.append(ask(n) == wanted[n]) for n in (1, 2, 3) * 3])  # type: ignore[misc]
    assert got == [True] * 9


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_objects_with_native_handles_refuse_copies(llm: LLM, how: Callable[[object], object]) -> None:
    costs = RoundCosts()
    for owner in (llm, llm.context, llm.model, costs, Acceptance(), AutoDepth(costs), Sampler(SHORT)):
        with pytest.raises(TypeError, match=f"{type(owner).__name__} holds native state"):
            how(owner)


def test_sampling_params_are_copied_and_pickled() -> None:
    params = SamplingParams(logit_bias={3: 1.5}, json_schema={"type": "integer"}, stop="end")
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == copy.copy(params) == params


LATE = """
import atexit
def late():
    import pymtp
    print(len(pymtp.generate("a", max_tokens=2, n_ctx=256, n_threads=1).token_ids))
atexit.register(late)
import pymtp
"""


def test_model_may_be_loaded_while_the_interpreter_shuts_down() -> None:
    # not a fork of a process that has imported pymtp: its own handlers must be registered after this one
    ended = subprocess.run([sys.executable, "-I", "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
