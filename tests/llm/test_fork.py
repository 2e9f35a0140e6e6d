"""Tests of forked processes: a child computes, and frees its objects, without the threads of its parent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers import scripts

run_script = partial(scripts.run_script, warm=False)  # no fork, since the scripts fork or count threads themselves
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system makes no processes by fork")

FORKS = """
import ctypes, subprocess, sys, traceback, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
ended = lambda child: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def in_child(right, fork=os.fork):
    child = fork()
    if not child:
        signal.alarm(20)
        try:
            os._exit(7 if right() else 8)
        except BaseException:
            traceback.print_exc()
            os._exit(9)
    return ended(child)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sees threads as Linux shows them")
def test_forked_child_may_free_a_context_with_threads() -> None:
    assert run_script(
        FORKS
        + """
context = Context(model, n_ctx=512, n_threads=3)
context.prefill([1, 2, 3])
def computing(task):
    return open(f"/proc/self/task/{task}/stat").read().rsplit(")", 1)[1].split()[0] == "R"
while any(map(computing, set(os.listdir("/proc/self/task")) - {str(os.getpid())})):
    time.sleep(0.01)  # until all wait
child = os.fork()
if not child:
    signal.alarm(20)
    context.close()
    del context
    os._exit(7)
print(ended(child), context.prefill([4]).shape == (model.n_vocab,))
"""
    ) == ["7 True"]


def test_forked_child_computes_with_its_own_threads() -> None:
    # The child uses a new LLM and the parent's LLM, after both computed with several threads. Then the parent
    # computes again
    assert run_script(
        FORKS
        + """
llm = pymtp.LLM(model, n_ctx=256, n_threads=2)
first, vector = text(llm), llm.embed("a")
def computes():
    with pymtp.LLM(n_ctx=256, n_threads=2) as own:
        return text(own) == text(llm) == first and (llm.embed("a") == vector).all()
print(in_child(computes), text(llm) == first)
"""
    ) == ["7 True"]


def test_fork_waits_for_a_thread_that_finishes_its_last_step() -> None:
    # A call returns as soon as its text is complete. Its thread then needs a moment until it is idle
    assert run_script(
        FORKS
        + """
llm = pymtp.LLM(model, n_ctx=256, n_threads=1)
first = text(llm)
step = llm._engine.step
def slow_step():
    worked = step()
    time.sleep(0.2)
    return worked
llm._engine.step = slow_step
print(text(llm) == first, llm._engine_thread._busy, in_child(lambda: text(llm) == first), text(llm) == first)
"""
    ) == ["True True 7 True"]


def test_child_forked_by_c_code_may_fork() -> None:
    """Fork in C code, as programs that embed Python do: Python's fork hooks do not run."""
    assert run_script(
        FORKS
        + """
llm = pymtp.LLM(model, n_ctx=256, n_threads=2)
first = text(llm)
while llm._engine_thread._busy:
    time.sleep(0.001)  # no hook waits until the thread has finished its last step
child = ctypes.PyDLL(None).fork()
if not child:
    ctypes.pythonapi.PyOS_AfterFork_Child()
    signal.alarm(20)
    subprocess.run([sys.executable, "-Sc", ""], preexec_fn=lambda: None)
    grandchild = os.fork()
    if not grandchild:
        os._exit(7 if text(llm) == first else 8)
    os._exit(ended(grandchild))
print(ended(child), text(llm) == first)
"""
    ) == ["7 True"]


BUSY = """
endless = pymtp.SamplingParams(max_tokens=None, ignore_eos=True)
def keep_busy(llm):
    threading.Thread(target=lambda: llm.generate("import ", endless), daemon=True).start()
    while not llm.figures().running:
        time.sleep(0.01)
"""


def test_forked_child_refuses_an_llm_that_another_thread_was_using() -> None:
    # The child would wait forever for a thread that it does not have. Other LLMs in the child work, and so does the
    # parent's LLM
    assert run_script(
        FORKS
        + BUSY
        + """
llm, idle = (pymtp.LLM(model, n_ctx=8192, n_threads=1) for _ in range(2))
first = text(idle)
keep_busy(llm)
def refused():
    for call in text, lambda llm: llm.context.prefill([1]):
        try:
            call(llm)
        except pymtp.ClosedError as error:
            print(error, flush=True)
    llm.close()
    return text(idle) == first
print(in_child(refused), text(idle) == first, flush=True)
llm.cancel()
print(text(llm) == first)
"""
    ) == [
        "this process was forked while a thread was in a call of the LLM: make a new one",
        "this process was forked while a thread was in a call of the Context: make a new one",
        "7 True",
        "True",
    ]


def test_forked_child_refuses_a_stream_that_the_parent_has_just_begun() -> None:
    assert run_script(
        FORKS
        + """
llm = pymtp.LLM(model, n_ctx=8192, n_threads=1)
first = text(llm)
def reads():
    try:
        next(stream)
    except pymtp.ClosedError:
        return True
stream = llm.stream("import ", pymtp.SamplingParams(None, ignore_eos=True))
print(in_child(reads), len(next(stream).token_ids) > 0)
"""
    ) == ["7 True"]


def test_forked_child_with_a_paused_stream_exits() -> None:
    assert run_script(
        FORKS
        + """
llm = pymtp.LLM(model, n_ctx=8192, n_threads=1)
stream = llm.stream("import ", pymtp.SamplingParams(None, ignore_eos=True))
next(stream)
while not llm._engine.idle or llm._engine_thread._busy:
    time.sleep(0.01)
child = os.fork()
if not child:
    signal.alarm(9)
    sys.exit(7)
print(ended(child), flush=True)
os._exit(0)
"""
    ) == ["7"]


def test_forked_child_generates_while_a_parent_thread_generated() -> None:
    # At the fork, the parent's thread uses the LLM that pymtp.generate keeps, so the child loads the model again
    assert run_script(
        FORKS
        + """
small = dict(n_ctx=8192, n_threads=1)
first = pymtp.generate("import ", max_tokens=8, **small).text
def endless():
    pymtp.generate("import ", max_tokens=None, ignore_eos=True, **small)
threading.Thread(target=endless, daemon=True).start()
import sys
once = sys.modules["pymtp.generate"]
while not once._last[1].figures().running:
    time.sleep(0.01)
print(in_child(lambda: pymtp.generate("import ", max_tokens=8, **small).text == first), flush=True)
os._exit(0)
"""
    ) == ["7"]


def test_forked_child_makes_an_llm_while_a_parent_thread_made_one() -> None:
    # Both LLMs share a model, and the first one of a model measures the time of rounds
    assert run_script(
        FORKS
        + """
threading.Thread(target=lambda: pymtp.LLM(model, n_ctx=256, n_seq_max=4, n_threads=1), daemon=True).start()
while model.measuring_lock.acquire(blocking=False):
    model.measuring_lock.release()
    time.sleep(0.001)
print(in_child(lambda: text(pymtp.LLM(model, n_ctx=256, n_threads=1))), flush=True)
os._exit(0)
"""
    ) == ["7"]


def test_forked_child_refuses_an_async_llm() -> None:
    # The engine thread is missing in the child, also if C code forks, which Python's fork hooks do not see
    assert run_script(
        FORKS
        + """
import asyncio
llm = pymtp.AsyncLLM(model, n_ctx=256, n_threads=1)
async def write():
    return (await llm.generate("import ", pymtp.SamplingParams(8))).text
first = asyncio.run(write())
def refused():
    try:
        asyncio.run(write())
    except pymtp.ClosedError as error:
        print(error, flush=True)
    asyncio.run(llm.close())
    return True
print(in_child(refused), in_child(refused, ctypes.PyDLL(None).fork), asyncio.run(write()) == first)
"""
    ) == 2 * ["this process was forked, and the AsyncLLM's threads are not here: make a new one"] + ["7 7 True"]


@pytest.mark.parametrize("n", [1, 2])
def test_forked_child_exits_while_parent_threads_compute(n: int) -> None:
    assert run_script(
        FORKS
        + BUSY
        + f"""
llms = [pymtp.LLM(model, n_ctx=8192, n_threads=1) for _ in range({n})]
for llm in llms:
    keep_busy(llm)
child = os.fork()
if not child:
    signal.alarm(9)
    sys.exit(7)
print(ended(child), flush=True)
os._exit(0)
"""
    ) == ["7"]


OTHER = """
int add(void) {
    int all = 0;
    #pragma omp parallel num_threads(2) reduction(+:all)
    all += 1;
    return all;
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the other library")
def test_forked_child_computes_after_openmp_threads_of_another_library(tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(OTHER)
    built = tmp_path / "other.so"
    subprocess.run(["gcc", "-fopenmp", "-shared", "-fPIC", "-o", built, tmp_path / "other.c"], check=True)
    assert (
        run_script(
            FORKS
            + f"""
other = ctypes.CDLL({str(built)!r})
llm = pymtp.LLM(model, n_ctx=256, n_threads=2)
first = text(llm)
for _ in range(2):
    other.add()
    print(in_child(lambda: text(llm) == first), other.add())
"""
        )
        == ["7 2"] * 2
    )
