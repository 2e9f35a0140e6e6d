"""Tests of the way from `LLM.generate` to the native call: few files, and few Python calls per round."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pymtp
from pymtp import LLM, SamplingParams

ROOT = Path(pymtp.__file__).parent.as_posix()
MAX_FILES = 24  # with another one, ask whether it does anything of its own, or only passes calls on
MAX_CALLS = 50  # per round of one sequence without drafts: a round of a small model takes some 250 µs


@contextmanager
def profiled(llm: LLM, note: Callable[[str], object]) -> Iterator[None]:
    """Call `note` with the file of each Python function of pymtp that this thread and the engine's thread call."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if event == "call" and file.startswith(ROOT):
            note(file)

    llm._engine_thread.call(lambda: sys.setprofile(profile))
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        llm._engine_thread.call(lambda: sys.setprofile(None))


def test_generate_runs_code_of_few_files() -> None:
    with LLM(n_ctx=512, n_threads=1) as llm:
        llm.generate("import os\n", SamplingParams(8))
        files = set[str]()
        with profiled(llm, files.add):
            llm.generate("def f(x):\n", SamplingParams(32))
    assert len(files) <= MAX_FILES, sorted(files)


def test_round_makes_few_python_calls() -> None:
    with LLM(n_ctx=512, n_threads=1, draft_tokens=0) as llm:
        calls = Counter[int]()
        here = threading.get_ident()
        with profiled(llm, lambda file: calls.update([threading.get_ident()])):
            rounds = llm.generate("def f(x):\n", SamplingParams(200, ignore_eos=True)).stats.rounds
    del calls[here]
    assert rounds == 199
    assert sum(calls.values()) / rounds <= MAX_CALLS
