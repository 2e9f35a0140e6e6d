"""Tests of signal handlers: the methods that handlers may call, and the calls that Ctrl-C ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
from helpers.interrupts import InterruptAtLine
from helpers.scripts import run_code, run_script

import pymtp

posix = pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals")


@posix
@pytest.mark.parametrize("what", ["context", "llm"])
def test_signal_handler_may_close_an_object_during_its_call(what: str) -> None:
    made = {"context": "Context(model, n_ctx=8192, n_threads=1)", "llm": "pymtp.LLM(n_ctx=8192, n_threads=1)"}
    call = {"context": "made.prefill([7] * 8000)", "llm": "print(made.generate([[7] * 8000] * 9)[8].finish_reason)"}
    in_the_call = {"context": "made._handle.caller", "llm": "made.figures().running"}
    lines = run_script(f"""
made = {made[what]}
signal.signal(signal.SIGALRM, lambda *_: made.close())
signal_in(lambda: {in_the_call[what]}, signal.SIGALRM)
try:
    {call[what]}
    made.stream("import ")
except pymtp.PymtpError as error:
    print(type(error).__name__)
print(text(pymtp.LLM(model, n_threads=1)) == text(pymtp.LLM(model, n_threads=1, draft_tokens=0)))
""")
    assert lines == (["cancelled", "ClosedError", "True"] if what == "llm" else ["CancelledError", "True"])


@posix
def test_call_inside_a_signal_handler_is_refused_and_cancels_the_outer_call() -> None:
    assert (
        run_script("""
llm = pymtp.LLM(n_ctx=8192, n_threads=1)
expected = text(llm)
for call in (lambda: text(llm), lambda: next(stream)):
    stream = llm.stream([7] * 8000)
    signal.signal(signal.SIGALRM, lambda *_: call())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        list(stream)
    except pymtp.InvalidRequestError as error:
        print("this thread is in a call" in str(error), stream.completion.finish_reason, text(llm) == expected)
""")
        == ["True cancelled True"] * 2
    )


@posix
def test_ctrl_c_ends_only_the_call_of_the_main_thread() -> None:
    assert run_script("""
other = pymtp.LLM(model, n_ctx=2048, n_threads=1, n_ubatch=64)
reasons, prompts = [], [[i] * 2000 for i in range(3)]
caller = threading.Thread(
    target=lambda: reasons.extend(c.finish_reason for c in other.generate(prompts, pymtp.SamplingParams(1)))
)
context = Context(model, n_ctx=32768, n_threads=1, n_ubatch=64)
caller.start()
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    context.prefill([7] * 32768)  # one call that takes seconds
except KeyboardInterrupt:
    print(caller.is_alive(), context.n_past)
print(context.prefill([1, 2, 3]).shape == (model.n_vocab,), context.cancelled)
caller.join()
print(set(reasons))
""") == ["True 0", "True False", "{'length'}"]


@posix
@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_ctrl_c_ends_the_main_threads_call_and_keeps_the_text_of_another_thread(seconds: float) -> None:
    assert run_script(f"""
llm = pymtp.LLM(model, n_ctx=2048, n_threads=1, n_ubatch=64, n_seq_max=2, draft_tokens=2)
endless = pymtp.SamplingParams(None, ignore_eos=True)
params = pymtp.SamplingParams(600, ignore_eos=True)
expected = llm.generate("import ", params).token_ids
got = []
worker = threading.Thread(target=lambda: got.append(llm.generate("import ", params)))
worker.start()
try:
    threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        llm.generate("def f(", endless)
except KeyboardInterrupt:
    print("interrupted")
worker.join()
print(got[0].finish_reason, got[0].token_ids == expected, llm.figures().running)
""") == ["interrupted", "length True 0"]


def interrupted_calls(llm: pymtp.LLM, call: Callable[[], object]) -> int:
    """Repeat the call, each time interrupted one line later, until it completes.

    Returns the number of interrupted calls.
    """
    for n in range(10_000):
        with (
            suppress(KeyboardInterrupt),
            InterruptAtLine(n, "/pymtp/llm.py", "/pymtp/engine/thread.py", "/pymtp/engine/stream.py"),
        ):
            call()
            return n
        llm._engine_thread.call(lambda: None)  # the engine has ended the requests that were cancelled
        after = llm.figures()
        assert (after.running, after.waiting) == (0, 0), n
        assert llm.generate([5], pymtp.SamplingParams(2)).finish_reason == "length"
        assert llm.figures().finished == after.finished + 1, n  # no interrupted request is still running
    raise AssertionError("no end of lines")


def test_ctrl_c_at_any_line_leaves_no_request_running() -> None:
    with pymtp.LLM(n_ctx=256, n_threads=1, n_seq_max=2, draft_tokens=1) as llm:
        params = pymtp.SamplingParams(2, ignore_eos=True)
        assert interrupted_calls(llm, lambda: llm.generate([[1, 2], [3]], params)) > 40
        assert interrupted_calls(llm, lambda: list(llm.stream([1, 2], params))) > 40


@posix
def test_signal_handler_may_cancel_the_calls_of_several_threads() -> None:
    assert run_script("""
llm = pymtp.LLM(model, n_ctx=2048, n_threads=1, n_seq_max=2, draft_tokens=2)
expected = text(llm)
endless = pymtp.SamplingParams(None, ignore_eos=True)
reasons = []
work = lambda: reasons.append(llm.generate("import ", endless).finish_reason)
workers = [threading.Thread(target=work) for _ in range(3)]
for worker in workers:
    worker.start()
signal.signal(signal.SIGALRM, lambda *_: llm.cancel())
signal.setitimer(signal.ITIMER_REAL, 0.2)
reasons.append(llm.generate("def f(", endless).finish_reason)
for worker in workers:
    worker.join()
print(reasons, text(llm) == expected)
""") == ["['cancelled', 'cancelled', 'cancelled', 'cancelled'] True"]


@posix
def test_ctrl_c_while_the_main_thread_sleeps_ends_no_call_of_another_thread() -> None:
    assert run_script("""
context = Context(model, n_ctx=2048, n_threads=1, n_ubatch=64)
shapes = []
caller = threading.Thread(target=lambda: shapes.append(context.prefill([7] * 2000).shape))
caller.start()
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
caller.join()
print(shapes == [(model.n_vocab,)])
""") == ["interrupted", "True"]


CROSSED = """
import faulthandler, signal, threading, pymtp
faulthandler.dump_traceback_later(50, exit=True)
llm = pymtp.LLM(n_ctx=8192, n_threads=1)
signal.signal(signal.SIGALRM, lambda *_: (llm.cancel(), llm.close()))
def work():
    try: llm.generate([7] * 5000)
    except pymtp.PymtpError: pass
signal.setitimer(signal.ITIMER_REAL, 0.3)
worker = threading.Timer(0.1, work)
worker.start()
try: llm.context.prefill([7] * 8000)
except pymtp.PymtpError: pass
worker.join()
"""


@posix
def test_signal_handler_may_close_an_llm_during_a_call_of_its_context() -> None:
    code, printed = run_code(CROSSED)
    assert code == 0, printed
