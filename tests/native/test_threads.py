"""Tests of compute threads: the text does not depend on their number, and they sleep between calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from conftest import make_llm
from helpers import scripts
from makers.make_model import make_model

from pymtp import Model, SamplingParams

run_script = partial(scripts.run_script, warm=False)  # no fork, since the scripts fork or count threads themselves
PROMPT = "import os\n\ndef walk(folder):\n"
PARAMS = [SamplingParams(60, ignore_eos=True), SamplingParams(60, temperature=0.9, seed=2, ignore_eos=True)]


@pytest.fixture(scope="module")
def moe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = make_model("tiny-moe", tmp_path_factory.mktemp("moe") / "moe.gguf", weight_type="q4_k")
    return path


def texts(model: Path | Model, n_threads: int) -> list[list[int]]:
    with make_llm(model, n_threads=n_threads, draft_tokens=2) as llm:
        return [llm.generate([*llm.model.tokenize(PROMPT)], params).token_ids for params in PARAMS]


@pytest.mark.parametrize("n_threads", [2, 4, 16])
def test_text_does_not_depend_on_the_number_of_threads(demo: Path, moe_file: Path, n_threads: int) -> None:
    for path in (demo, moe_file):
        with Model(path) as model:
            assert texts(model, n_threads) == texts(model, 1)


BUSY = "import time\nwhile True:\n end = time.time() + 0.1\n while time.time() < end: pass\n time.sleep(0.1)"


def test_text_does_not_depend_on_a_process_that_needs_the_cores_now_and_then(demo: Path) -> None:
    """Check texts in which the number of computing threads changes: with the default, busy cores are left to others."""
    expected = texts(demo, 1)
    with subprocess.Popen([sys.executable, "-c", BUSY]) as other:
        try:
            with make_llm(demo, n_threads=None, draft_tokens=2) as llm:
                found = [llm.generate([*llm.model.tokenize(PROMPT)], params).token_ids for params in PARAMS * 2]
        finally:
            other.kill()
    assert found == expected * 2


def test_concurrent_llms_generate_the_same_texts_as_a_single_one(demo: Path) -> None:
    with Model(demo) as model:
        alone = texts(model, 1)
        came: list[list[list[int]]] = []
        askers = [Thread(target=lambda n=n: came.append(texts(model, n))) for n in (1, 2, 2, 3)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
    assert came == [alone] * len(askers)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
@pytest.mark.parametrize("every", [False, True])
def test_more_threads_than_cores_compute_only_with_all_threads(every: bool) -> None:
    (more,) = run_script(
        f"""
import os
llm = pymtp.LLM(model, n_threads=1, n_ctx=256, draft_tokens=0)
text(llm)
before = len(os.listdir("/proc/self/task"))
text(pymtp.LLM(llm.model, n_threads=os.cpu_count() + 5, all_threads={every}, n_ctx=256, draft_tokens=0))
end = time.monotonic() + 10
while len(os.listdir("/proc/self/task")) > before + os.cpu_count() - 1 + 5 * {every} and time.monotonic() < end:
    time.sleep(0.01)  # the engine's thread of the second LLM ends
print(len(os.listdir("/proc/self/task")) - before - (os.cpu_count() - 1))
"""
    )
    assert int(more) == 5 * every


def test_idle_model_takes_no_processor_time(demo: Path) -> None:
    with make_llm(demo, n_threads=2) as llm:
        llm.generate(PROMPT, PARAMS[0])
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.02


HANDLED = """
import sys
came = []
def handler(*_):
    if not came:
        came.append(in_handler())
signal.signal(signal.SIGALRM, handler)
def long(llm):
    try:
        return llm.generate("import ", pymtp.SamplingParams(300, ignore_eos=True)).finish_reason
    except pymtp.PymtpError as error:
        return type(error).__name__
llm, other = (pymtp.LLM(model, n_threads=16, n_ctx=1024, draft_tokens=1) for _ in range(2))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_signal_handler_in_a_graph_may_close_a_waiting_llm() -> None:
    assert (
        run_script(
            HANDLED
            + """
def in_handler():
    other.close()
    return "closed"
for _ in range(2):
    came.clear()
    other = pymtp.LLM(model, n_threads=16, n_ctx=1024, draft_tokens=1)
    thread = threading.Thread(target=long, args=[other])
    thread.start()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    print(long(llm), came)
    thread.join()
"""
        )
        == ["length ['closed']"] * 2
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_signal_handler_in_a_graph_may_use_another_llm() -> None:
    assert (
        run_script(
            HANDLED
            + """
expected = text(other)
in_handler = lambda: text(other) == expected
for _ in range(2):
    came.clear()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    print(long(llm), came)
"""
        )
        == ["length [True]"] * 2
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_child_forked_in_a_graph_exits_and_the_parent_continues() -> None:
    assert run_script(
        HANDLED
        + """
def in_handler():
    child = os.fork()
    if not child:
        signal.alarm(60)
        os.close(2)  # hides the output of the child at exit
        return 0
    return child
parent = os.getpid()
signal.setitimer(signal.ITIMER_REAL, 0.05)
reason = long(llm)
if os.getpid() != parent:
    os._exit(0)
status = os.waitpid(came[0], 0)[1]
print(reason, os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGABRT)
"""
    ) == ["length True"]
