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
    """A kind of graphs. most: maximum of threads, 0 for the cores of the machine."""

    seconds: float  # with one thread
    added: float  # µs that each further thread adds
    in_a_row: int = 1
    most: int = 0


DECODING, PROMPT, SMALL = Graph(0.04, 5), Graph(2.0, 100), Graph(0.0004, 20)
ROUNDS = [DECODING, Graph(0.06, 5), Graph(0.09, 5), Graph(0.012, 5, 3), Graph(0.004, 5)]  # rounds of several depths


class Kind(NamedTuple):
    threads: int  # at the end
    best: int
    changed: float  # seconds until the number last changed


class Came(NamedTuple):
    changes: int  # how often threads were taken away or given back
    share: float  # share of the work with the best numbers of threads
    kinds: list[Kind]


Phase = tuple[int, float, list[Graph]]  # other processes, seconds, graphs
Run = Callable[..., list[Came]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "these tests need a C++ compiler"
    program, kernels = tmp_path_factory.mktemp("team") / "team_size", ROOT / "pymtp/native/kernels"
    sources = [ROOT / "tests/native/team_size.cpp", kernels / "threads/team_size.cpp"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{kernels}"]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)

    def call(cores: int, *phases: Phase, says: bool = True, scatter: float = SCATTER, quota: float = 0) -> list[Came]:
        lines = [
            f"{beside} {quota} {seconds} "
            + " ".join(f"{g.in_a_row} {g.most or cores} {g.seconds} {g.added}" for g in graphs)
            for beside, seconds, graphs in phases
        ]
        command = [program, str(cores), str(int(says)), str(scatter)]
        done = subprocess.run(command, input="\n".join(lines), text=True, stdout=subprocess.PIPE, check=True)
        return [read(line.split()) for line in done.stdout.splitlines()]

    return call


def read(words: list[str]) -> Came:
    changes, share, *kinds = words
    found = [Kind(int(n), int(best), float(changed)) for n, best, changed in zip(*[iter(kinds)] * 3, strict=True)]
    return Came(int(changes), float(share), found)


@pytest.mark.parametrize("says", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("cores", [2, 4, 16, 64])
def test_team_uses_all_threads_alone(run: Run, cores: int, says: bool) -> None:
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
def test_team_gives_way_and_recovers_soon_for_all_kinds_of_graphs(run: Run, cores: int, graphs: list[Graph]) -> None:
    _, came, went = run(cores, (0, 3, graphs), (1, 10, graphs), (0, 10, graphs))
    assert came.changes >= 1
    assert came.changes + went.changes == 2  # from many threads it takes too many, and gives some back
    assert [kind.threads for kind in went.kinds] == [cores] * len(graphs)
    assert min(came.share, went.share) > 0.85


def test_team_soon_has_all_threads_back(run: Run) -> None:
    _, _, went = run(64, (0, 3, [DECODING]), (60, 10, [DECODING]), (0, 10, [DECODING]))
    assert went.kinds[0].threads == 64
    assert went.kinds[0].changed < 2.5


def test_team_loses_little_to_a_process_that_comes_and_goes(run: Run) -> None:
    for came in run(2, *[(n % 2, 2, [DECODING]) for n in range(10)]):
        assert came.share > 0.85


def test_team_takes_no_threads_from_one_kind_for_another(run: Run) -> None:
    rare = [DECODING._replace(in_a_row=20), Graph(0.004, 5)]
    *_, went = run(16, (0, 3, rare), (12, 10, rare), (0, 12, rare))
    assert went.share > 0.9
    assert [kind.threads for kind in went.kinds] == [16, 16]


def test_team_starts_a_returning_kind_with_all_threads(run: Run) -> None:
    """Run a prompt long after another process was active."""
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


def test_team_of_an_llm_with_fewer_threads_takes_none_from_others(run: Run) -> None:
    _, came = run(16, (15, 5, [DECODING._replace(most=2)]), (0, 10, [DECODING, Graph(0.05, 5, 1, 2)]))
    assert came.kinds == [Kind(16, 16, 0), Kind(2, 2, came.kinds[1].changed)]


@pytest.mark.parametrize("quota", [0.5, 1, 1.5, 2, 3, 3.5])
@pytest.mark.parametrize(
    "graphs",
    [[DECODING], [Graph(0.0004, 100)], ROUNDS, [Graph(0.0004, 100), Graph(0.0007, 60), Graph(0.0002, 100, 3)]],
    ids=["plain", "small", "rounds", "small rounds"],
)
def test_team_within_a_quota_uses_threads_that_pay_for_their_share(run: Run, quota: float, graphs: list[Graph]) -> None:
    """Throttle all kinds because of one kind; a kind with fewer threads leaves its share to others."""
    _, came = run(4, (0, 20, graphs), (0, 60, graphs), quota=quota)
    assert came.share > 0.9
    assert came.changes == 0


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("times", [1, 10, 100])
def test_team_within_a_quota_spends_none_for_little_gain(run: Run, cores: int, times: int) -> None:
    """Use kinds that are a tenth faster with two threads, which throttles all of them."""
    graphs = [Graph(0.0004, 160), Graph(0.0007, 280), Graph(0.0002, 80, 3)]
    graphs = [each._replace(seconds=times * each.seconds, added=times * each.added) for each in graphs]
    _, came = run(cores, (0, 20, graphs), (0, 60, graphs), quota=1.5)
    assert came.share > 0.97
    assert [kind.best for kind in came.kinds] == [1, 1, 1]


def test_team_trials_cost_little_if_free_cores_are_unknown(run: Run) -> None:
    for graph, least in ((DECODING, 0.95), (PROMPT, 0.9)):
        _, later = run(2, (1, 30, [graph]), (1, 60, [graph]), says=False)
        assert later.kinds[0].threads == 1
        assert later.share > least
