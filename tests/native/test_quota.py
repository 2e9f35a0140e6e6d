"""Tests of the detection that a process is throttled by a CPU quota."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.scripts import run_script

import pymtp
from pymtp.drafting import depth

ROOT = Path(__file__).parent.parent.parent
V2 = "usage_usec 90\nuser_usec 60\nsystem_usec 30\nnr_periods 20\nnr_throttled {}\nthrottled_usec 12345\nnr_bursts 0\n"
V1 = "nr_periods 20\nnr_throttled {}\nthrottled_time 12345\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "these tests need a C++ compiler"
    made, kernels = tmp_path_factory.mktemp("quota") / "quota", ROOT / "pymtp/native/kernels"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    sources = [ROOT / "tests/native/quota.cpp", kernels / "threads/quota.cpp"]
    subprocess.run([compiler, *flags, *sources, "-o", made], check=True)
    return made


@contextmanager
def watching(program: Path, *folders: Path) -> Iterator[Callable[[float], float]]:
    """Watch the quotas of control groups. Yield a function of the time, in seconds, that returns the throttling quota.

    It returns the smallest quota, in cores, that throttled the process a short time before, or 0 if none did.
    """
    with subprocess.Popen([program, *folders], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def met(second: float) -> float:
            process.stdin.write(f"{second}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield met
        process.stdin.close()


def group(folder: Path, stops: int, cores: float | None, version: int = 2) -> Path:
    """Write the files of a control group that has throttled its processes `stops` times, with a quota of `cores`."""
    folder.mkdir(exist_ok=True)
    (folder / "cpu.stat").write_text((V2 if version == 2 else V1).format(stops))
    if version == 2:
        (folder / "cpu.max").write_text("max 100000\n" if cores is None else f"{int(cores * 50_000)} 50000\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if cores is None else int(cores * 50_000)}\n")
        (folder / "cpu.cfs_period_us").write_text("50000\n")
    return folder


@pytest.mark.parametrize("version", [1, 2])
def test_throttling_quota_counts_for_five_seconds_and_the_smallest_quota_first(
    program: Path, tmp_path: Path, version: int
) -> None:
    inner, outer, free = (tmp_path / name for name in ("inner", "outer", "free"))
    group(inner, 5, 1.5, version)
    group(outer, 7, 4, version)
    group(free, 0, None, version)
    with watching(program, inner, outer, free) as met:
        assert met(0) == 0, "throttling before the first reading does not count"
        group(outer, 8, 4, version)
        assert [met(1), met(6)] == [4, 4]
        group(inner, 6, 1.5, version)
        assert met(7) == 1.5
        group(outer, 9, 4, version)
        assert [met(8), met(12), met(12.5), met(14)] == [1.5, 1.5, 4, 0]


def test_changed_quota_is_read_at_the_next_throttling(program: Path, tmp_path: Path) -> None:
    folder = group(tmp_path / "group", 0, None)
    with watching(program, folder) as met:
        assert met(0) == 0
        group(folder, 1, 1.5)
        assert met(1) == 0, "throttling before the first reading does not count"
        group(folder, 2, 1.5)
        assert met(2) == 1.5
        group(folder, 3, 8)
        assert met(3) == 8
        group(folder, 4, None)
        assert [met(4), met(8.5)] == [8, 0]


def test_throttling_is_ignored_if_the_file_was_missing_or_invalid_before(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "group"
    with watching(program, folder) as met:
        assert met(0) == 0
        group(folder, 500, 1.5)
        assert [met(1), met(2)] == [0, 0]
        (folder / "cpu.stat").unlink()
        assert met(3) == 0
        group(folder, 500, 1.5)
        assert met(4) == 0, "throttling does not count if the file could not be opened before"
        for text in ("nonsense\n", V2.format(501)):
            (folder / "cpu.stat").write_text(text)
            assert met(5) == 0, "throttling does not count if the file had no valid count before"
        for stops, bound in enumerate(("nonsense\n", "150000 0\n", "-1 100000\n"), 600):
            (folder / "cpu.max").write_text(bound)
            for stop in (0, 10):
                (folder / "cpu.stat").write_text(V2.format(stops + stop))
                assert met(6) == 0


def test_new_context_watches_the_quotas_of_all_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bytes] = []

    class Library:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def pymtp_watch_cpu_quota(self, folder: bytes) -> None:
            told.append(folder)
            lib.pymtp_watch_cpu_quota(folder)

    lib = depth.lib
    monkeypatch.setattr(depth, "lib", Library())
    monkeypatch.setattr(depth, "control_groups", lambda: [Path("/nowhere/é"), Path("/nowhere")])
    with pymtp.LLM(n_ctx=64, draft_tokens=0) as llm:
        assert told == ["/nowhere/é".encode(), b"/nowhere"]
        assert llm.generate("import ", pymtp.SamplingParams(max_tokens=4)).token_ids


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork needs POSIX")
def test_forked_child_can_read_a_quota_while_the_parent_reads_one(tmp_path: Path) -> None:
    """Read a pipe instead of the group's file, because such a read blocks until there is data."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    os.mkfifo(tmp_path / "cpu.stat")
    assert run_script(f"""
import os, subprocess
looking = threading.Thread(target=pymtp.drafting.depth.lib.pymtp_watch_cpu_quota, args=[{os.fsencode(tmp_path)!r}])
looking.start()
time.sleep(0.2)
writer = subprocess.Popen(["sh", "-c", "sleep 0.5; echo nr_throttled 1 > {tmp_path}/cpu.stat"])
child = os.fork()
if not child:
    pymtp.drafting.depth.lib.pymtp_watch_cpu_quota(b"/nowhere")
    os._exit(7)
end = time.monotonic() + 10
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
    time.sleep(0.01)
if not ended[0]:
    os.kill(child, 9)
writer.wait()
looking.join()
print(os.waitstatus_to_exitcode(ended[1]))
""") == ["7"]
