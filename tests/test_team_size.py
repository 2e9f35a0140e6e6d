"""Claims about the number of threads that graphs are computed with, on simulated machines with a clock of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
DECODING, PROMPT, SMALL = (0.04, 5), (2.0, 100), (0.0004, 150)  # seconds with one thread, µs that each further one adds


class Came(NamedTuple):
    threads: int  # at the end
    best: int  # number of threads
    changed: float  # seconds until the number last changed
    share: float  # of the work that the best number does


Phase = tuple[int, tuple[float, float], float]
Run = Callable[..., list[Came]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "these tests need a C++ compiler"
    program, kernels = tmp_path_factory.mktemp("team") / "team_size", ROOT / "pymtp/native/kernels"
    sources = [ROOT / "tests/native/team_size.cpp", kernels / "team_size.cpp"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)

    def call(cores: int, *phases: Phase, most: int | None = None, says: bool = True) -> list[Came]:
        """phases: processes beside, the graphs, and the seconds."""
        lines = "".join(f"{beside} {graph[0]} {graph[1]} {seconds}\n" for beside, graph, seconds in phases)
        command = [program, str(cores), str(most or cores), str(int(says))]
        done = subprocess.run(command, input=lines, text=True, stdout=subprocess.PIPE, check=True)
        found = [line.split() for line in done.stdout.splitlines()]
        return [Came(int(threads), int(best), float(changed), float(share)) for threads, best, changed, share in found]

    return call


@pytest.mark.parametrize("says", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("cores", [2, 4, 16, 64])
def test_alone_all_threads_compute(run: Run, cores: int, says: bool) -> None:
    for came in run(cores, (0, DECODING, 10), (0, PROMPT, 60), says=says):
        assert (came.threads, came.changed) == (cores, 0)
        assert came.share > 0.99


@pytest.mark.parametrize(("cores", "beside"), [(2, 1), (2, 2), (4, 1), (8, 3), (16, 1), (16, 8)])
def test_beside_others_as_many_compute_as_cores_are_left(run: Run, cores: int, beside: int) -> None:
    (came,) = run(cores, (beside, DECODING, 20))
    assert came.best in (cores, max(1, cores - beside))
    assert came.best * 0.85 <= came.threads <= came.best
    assert came.share > 0.85


@pytest.mark.parametrize("graph", [DECODING, SMALL], ids=["model", "small"])
def test_a_process_that_comes_is_noticed_at_once_and_so_is_that_it_went(run: Run, graph: tuple[float, float]) -> None:
    _, came, went = run(4, (0, graph, 3), (1, graph, 3), (0, graph, 3))
    assert came.changed < 0.8
    assert went.changed < 0.8
    assert min(came.share, went.share) > 0.85


def test_one_that_comes_and_goes_costs_little(run: Run) -> None:
    for came in run(2, *[(n % 2, DECODING, 2) for n in range(10)]):
        assert came.share > 0.85


def test_small_graphs_have_as_many_threads_as_pay(run: Run) -> None:
    (came,) = run(2, (0, (0.0004, 250), 5))
    assert came.threads == 1
    (came,) = run(2, (0, (0.0004, 20), 5))
    assert came.threads == 2
    assert came.share > 0.98


def test_where_free_cores_are_not_known_trials_cost_little(run: Run) -> None:
    (_, later) = run(2, (1, DECODING, 5), (1, DECODING, 60), says=False)
    assert later.threads == 1
    assert later.share > 0.95


def test_no_more_threads_than_were_given_compute(run: Run) -> None:
    assert [came.threads for came in run(16, (0, DECODING, 5), (15, DECODING, 5), (0, DECODING, 5), most=4)] == [
        4,
        1,
        4,
    ]
