"""Claims about how a process sees that it meets a bound on processor time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pymtp
from pymtp import context

ROOT = Path(__file__).parent.parent.parent
V2 = "usage_usec 90\nuser_usec 60\nsystem_usec 30\nnr_periods 20\nnr_throttled {}\nthrottled_usec 12345\nnr_bursts 0\n"
V1 = "nr_periods 20\nnr_throttled {}\nthrottled_time 12345\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "these tests need a C++ compiler"
    made, kernels = tmp_path_factory.mktemp("quota") / "quota", ROOT / "pymtp/native/kernels"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    subprocess.run([compiler, *flags, ROOT / "tests/native/quota.cpp", kernels / "quota.cpp", "-o", made], check=True)
    return made


@contextmanager
def watching(program: Path, *watched: object) -> Iterator[Callable[[], float]]:
    """Ask for the bound that was met."""
    with subprocess.Popen(
        [program, *map(str, watched)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def met() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield met
        process.stdin.close()


@pytest.mark.parametrize("text", [V1, V2], ids=["version 1", "version 2"])
def test_a_bound_counts_each_time_that_it_was_met_and_the_least_of_all_levels(
    program: Path, tmp_path: Path, text: str
) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text(text.format(5))
    outer.write_text(text.format(7))
    with watching(program, inner, 1.5, outer, 4, inner, 2) as met:
        assert met() == 0, "what was before does not count"
        outer.write_text(text.format(8))
        assert [met(), met()] == [4, 0]
        inner.write_text(text.format(50))
        outer.write_text(text.format(9))
        assert [met(), met()] == [2, 0]


def test_files_that_come_and_go_are_no_bound(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "cpu.stat"
    with watching(program, file, 1.5) as met:
        assert met() == 0
        file.write_text("nonsense\n")
        assert met() == 0
        file.write_text(V2.format(3))
        assert met() == 1.5
        file.unlink()
        assert met() == 0


def test_each_new_context_takes_notice_of_all_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bytes, float]] = []

    class Library:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def pymtp_watch_quota(self, file: bytes, cores: float) -> None:
            told.append((file, cores))
            lib.pymtp_watch_quota(file, cores)

    lib, found = context.lib, {Path("/nowhere/é/cpu.stat"): 1.5, Path("/nowhere/cpu.stat"): 4.0}
    monkeypatch.setattr(context, "lib", Library())
    monkeypatch.setattr(context, "cpu_quotas", lambda: found)
    with pymtp.LLM(n_ctx=64, draft_tokens=0) as llm:
        assert told == [("/nowhere/é/cpu.stat".encode(), 1.5), (b"/nowhere/cpu.stat", 4.0)]
        assert llm.generate("import ", pymtp.SamplingParams(max_tokens=4)).token_ids
