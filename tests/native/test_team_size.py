"""Tests of the number of threads for graphs, on simulated machines with a simulated clock."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
SCATTER = 0.1  # relative noise of graph times


class Graph(NamedTuple):
    """A kind of graphs. most: maximum number of threads, 0 for one thread per core of the machine."""

    seconds: float  # time with one thread
    added: float  # µs that each further thread adds
    in_a_row: int = 1  # number of such graphs before one of the next kind
    most: int = 0


DECODING, PROMPT, SMALL = Graph(0.04, 5), Graph(2.0, 100), Graph(0.0004, 20)
ROUNDS = [DECODING, Graph(0.06, 5), Graph(0.09, 5), Graph(0.012, 5, 3), Graph(0.004, 5)]  # rounds of several depths


class Kind(NamedTuple):
    threads: int  # number of threads at the end of the phase
    best: int  # fastest number of threads
    changed: float  # seconds until the number last changed


class PhaseResult(NamedTuple):
    changes: int  # how often threads were taken away or given back
    share: float  # work done, relative to the work that the best numbers of threads would do
    kinds: list[Kind]


Phase = tuple[int, float, list[Graph]]  # number of other processes, seconds, kinds of graphs
Run = Callable[..., list[PhaseResult]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "these tests need a C++ compiler"
    program, kernels = tmp_path_factory.mktemp("team") / "team_size", ROOT / "pymtp/native/kernels"
    sources = [ROOT / "tests/native/team_size.cpp", kernels / "threads/team_size.cpp"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)

    def call(
        cores: int, *phases: Phase, says: bool = True, scatter: float = SCATTER, quota: float = 0
    ) -> list[PhaseResult]:
        lines = [
            f"{beside} {quota} {seconds} "
            + " ".join(f"{g.in_a_row} {g.most or cores} {g.seconds} {g.added}" for g in graphs)
            for beside, seconds, graphs in phases
        ]
        command = [program, str(cores), str(int(says)), str(scatter)]
        done = subprocess.run(command, input="\n".join(lines), text=True, stdout=subprocess.PIPE, check=True)
        return [read(line.split()) for line in done.stdout.splitlines()]

    return call


def read(words: list[str]) -> PhaseResult:
    changes, share, *kinds = words
    found = [Kind(int(n), int(best), float(changed)) for n, best, changed in zip(*[iter(kinds)] * 3, strict=True)]
    return PhaseResult(int(changes), float(share), found)


@pytest.mark.parametrize("says", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("cores", [2, 4, 16, 64])
def test_team_uses_all_threads_if_no_other_process_runs(run: Run, cores: int, says: bool) -> None:
    for came in run(cores, (0, 10, [DECODING]), (0, 60, [PROMPT]), says=says):
        assert came.kinds == [Kind(cores, cores, 0)]
        assert came.changes == 0


@pytest.mark.parametrize("graphs", [[DECODING], ROUNDS], ids=["plain", "rounds"])
@pytest.mark.parametrize(("cores", "beside"), [(2, 1), (2, 2), (4, 1), (8, 3), (16, 1), (16, 8)])
def test_team_uses_the_free_cores_beside_other_processes(
    run: Run, cores: int, beside: int, graphs: list[Graph]
) -> None:
    _, came = run(cores, (beside, 10, graphs), (beside, 20, graphs))
    assert came.share > 0.9
    for kind in came.kinds:
        assert kind.best * 0.8 <= kind.threads <= kind.best


@pytest.mark.parametrize(
    ("cores", "graphs"),
    [
        (2, [DECODING]),
        (2, [SMALL]),
        (2, ROUNDS),
        (4, [DECODING]),
        (4, [SMALL]),
        (4, ROUNDS),
        (16, [DECODING]),
        (16, ROUNDS),
    ],
    ids=str,
)
def test_team_frees_a_core_for_another_process_and_soon_takes_it_back(
    run: Run, cores: int, graphs: list[Graph]
) -> None:
    _, came, went = run(cores, (0, 3, graphs), (1, 10, graphs), (0, 10, graphs))
    assert came.changes >= 1
    assert (
        came.changes + went.changes == 2
    )  # with many threads, the team first frees too many of them, and takes some back
    assert [kind.threads for kind in went.kinds] == [cores] * len(graphs)
    assert min(came.share, went.share) > 0.85


def test_team_uses_all_threads_again_soon_after_other_processes_end(run: Run) -> None:
    _, _, went = run(64, (0, 3, [DECODING]), (60, 10, [DECODING]), (0, 10, [DECODING]))
    assert went.kinds[0].threads == 64
    assert went.kinds[0].changed < 2.5


def test_team_loses_little_to_a_process_that_starts_and_stops_again_and_again(run: Run) -> None:
    for came in run(2, *[(n % 2, 2, [DECODING]) for n in range(10)]):
        assert came.share > 0.85


def test_team_uses_all_threads_again_for_frequent_and_rare_graphs(run: Run) -> None:
    rare = [DECODING._replace(in_a_row=20), Graph(0.004, 5)]
    *_, went = run(16, (0, 3, rare), (12, 10, rare), (0, 12, rare))
    assert went.share > 0.9
    assert [kind.threads for kind in went.kinds] == [16, 16]


def test_team_uses_all_threads_for_graphs_long_after_other_processes_ended(run: Run) -> None:
    """Compute a prompt's graphs long after other processes were active."""
    *_, came = run(16, (15, 5, [DECODING]), (0, 60, [DECODING._replace(most=4)]), (0, 10, [PROMPT]))
    assert came.kinds == [Kind(16, 16, 0)]


def test_team_uses_few_threads_for_small_graphs(run: Run) -> None:
    (came,) = run(2, (0, 5, [Graph(0.0004, 250)]))
    assert came.kinds[0].threads == 1
    (came,) = run(2, (0, 5, [SMALL]))
    assert came.kinds[0].threads == 2
    assert came.share > 0.95


def test_team_uses_all_threads_for_large_graphs_beside_small_ones(run: Run) -> None:
    (came,) = run(4, (0, 10, [DECODING, Graph(0.0004, 250, 20)]))
    assert came.kinds[0].threads == 4
    assert came.kinds[1].threads < 3
    assert came.changes == 0


def test_llm_with_fewer_threads_takes_no_threads_from_other_llms(run: Run) -> None:
    _, came = run(16, (15, 5, [DECODING._replace(most=2)]), (0, 10, [DECODING, Graph(0.05, 5, 1, 2)]))
    assert came.kinds == [Kind(16, 16, 0), Kind(2, 2, came.kinds[1].changed)]


@pytest.mark.parametrize("quota", [0.5, 1, 1.5, 2, 3, 3.5])
@pytest.mark.parametrize(
    "graphs",
    [[DECODING], [Graph(0.0004, 100)], ROUNDS, [Graph(0.0004, 100), Graph(0.0007, 60), Graph(0.0002, 100, 3)]],
    ids=["plain", "small", "rounds", "small rounds"],
)
def test_team_within_a_quota_uses_a_thread_only_if_it_is_worth_its_processor_time(
    run: Run, quota: float, graphs: list[Graph]
) -> None:
    """Compute several kinds of graphs within a quota. A kind with too many threads would get all kinds throttled."""
    _, came = run(4, (0, 20, graphs), (0, 60, graphs), quota=quota)
    assert came.share > 0.9
    assert came.changes == 0


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("times", [1, 10, 100])
def test_team_within_a_quota_uses_one_thread_if_a_second_one_gains_little(run: Run, cores: int, times: int) -> None:
    """Compute graphs that would be a tenth faster with two threads, but two threads would throttle all graphs."""
    graphs = [Graph(0.0004, 160), Graph(0.0007, 280), Graph(0.0002, 80, 3)]
    graphs = [each._replace(seconds=times * each.seconds, added=times * each.added) for each in graphs]
    _, came = run(cores, (0, 20, graphs), (0, 60, graphs), quota=1.5)
    assert came.share > 0.97
    assert [kind.best for kind in came.kinds] == [1, 1, 1]


def test_trials_of_thread_counts_cost_little_if_free_cores_are_unknown(run: Run) -> None:
    for graph, least in ((DECODING, 0.95), (PROMPT, 0.9)):
        _, later = run(2, (1, 30, [graph]), (1, 60, [graph]), says=False)
        assert later.kinds[0].threads == 1
        assert later.share > least
