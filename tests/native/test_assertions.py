"""Tests of failed assertions of llama.cpp: in a call of pymtp they raise exceptions, and the process continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from gguf import GGUFValueType
from makers.gguf_parts import Key, parse

from pymtp import LLM, Model, ModelLoadError, NativeError, SamplingParams
from pymtp.context.context import Context

TWO = SamplingParams(max_tokens=2)


def children() -> set[str]:
    """Return the ids of the processes that this one has started; empty where the system has no /proc."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            found |= {folder.name} if parent == str(os.getpid()) else set()
    return found


@pytest.mark.parametrize(
    ("fault", "n_threads"), [("assertion", 1), ("assertion", 2), ("assertion_threads", 1), ("assertion_threads", 2)]
)
def test_failed_assertion_raises_an_exception_with_its_message(
    new_llm: Callable[..., LLM], capfd: pytest.CaptureFixture[str], fault: str, n_threads: int
) -> None:
    llm = new_llm(n_threads=n_threads)
    llm.context.inspect.break_on_purpose(fault)
    before = children()
    with pytest.raises(NativeError, match=r"assertion of llama.cpp failed: \w+\.cpp:\d+: this \w+ was told to fail"):
        llm.generate("a", TWO)
    assert capfd.readouterr() == ("", "")
    assert children() == before  # no debugger was started


@pytest.mark.parametrize("fault", ["assertion", "assertion_threads"])
def test_context_refuses_calls_after_a_failed_assertion_and_a_new_context_works(dense: Model, fault: str) -> None:
    with Context(dense, n_ctx=256, n_threads=2, draft_tokens=2) as sound:
        expected = sound.prefill([1, 2, 3])
    context = Context(dense, n_ctx=256, n_threads=2, draft_tokens=2)
    context.prefill([1, 2, 3])
    context.inspect.break_on_purpose(fault)
    with pytest.raises(NativeError):
        context.verify([4])
    context.inspect.break_on_purpose("none")
    for call in (lambda: context.verify([4]), lambda: context.prefill([1]), lambda: context.draft(4), context.clear):
        with pytest.raises(NativeError, match=r"cannot go on: make a new one .*told to fail"):
            call()
    context.close()
    with Context(dense, n_ctx=256, n_threads=2, draft_tokens=2) as new:
        assert (new.prefill([1, 2, 3]) == expected).all()


def test_failed_assertion_during_a_model_load_raises_model_load_error(tmp_path: Path, demo: Path) -> None:
    file = parse(demo.read_bytes())
    file.keys.append(Key(b"general.alignment", int(GGUFValueType.UINT32), [(8).to_bytes(4, "little")]))
    filler = Key(b"filler", int(GGUFValueType.STRING), [b""])
    file.keys.append(filler)
    while file.header_size % 32 != 8:  # the weights are not aligned as ggml requires
        filler.values[0] += b"-"
        data = file.encoded(alignment=8)
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"GGML_ASSERT.*must be aligned"):
        Model(path)
    with Model(demo) as model:
        assert model.has_head


# An assertion that fails in only one of several compute threads still ends the process, because the other threads wait
# for the failed one and cannot be stopped.
ENDS = """
from pymtp import LLM
with LLM(n_ctx=256, n_threads=2, draft_tokens=2) as llm:
    llm.context.inspect.break_on_purpose("assertion_thread")
    llm.generate("a")
"""


def test_failed_assertion_in_a_compute_thread_aborts_with_its_message() -> None:
    ended = subprocess.run([sys.executable, "-I", "-c", ENDS], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGABRT
    (line,) = ended.stderr.splitlines()  # without a backtrace
    assert line.endswith("told to fail: in 1 of the 2 threads that compute a graph; the process cannot go on")


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, the C++ library has another name")
def test_abort_in_the_host_program_starts_no_debugger() -> None:
    program = "import pymtp.native, ctypes; ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()"
    ended = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGABRT
    assert "#0" not in ended.stderr
    assert "[New LWP" not in ended.stderr
