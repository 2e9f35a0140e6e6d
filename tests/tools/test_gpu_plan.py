"""Tests of the planner of tools/gpu/gpu_bench.sh: it picks the most valuable job that fits, by corrected estimates."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_plan import (
    ALL_OUTPUTS,
    DECODE,
    FULL,
    FUSED,
    HOST_COPY,
    MARGIN,
    NONE,
    PEER,
    PREFILL,
    RATES,
    SMOKE,
    Done,
    Job,
    Scale,
    estimate,
    jobs,
    next_job,
    prior,
)
from gpu_results import CRASHED, Results

ALL = (PREFILL, DECODE, PEER)
MADE = tuple(shape.key for shape in FULL.shapes)
HOURS = 1e6  # seconds


def run(minutes: float, scale: Scale = FULL, slowness: float = 1.0, done: list[Done] | None = None) -> list[Job]:
    """Simulate a command with a limit of some minutes, in which each job takes `slowness` times its estimate."""
    left, loaded, order = 60 * minutes, None, []
    done = [] if done is None else done
    while job := next_job(scale, done, left, loaded, MADE, ALL):
        shape = next(shape for shape in scale.shapes if shape.key == job.model)
        seconds = slowness * prior(job, scale)
        left -= seconds + (shape.load if job.model != loaded else 0)
        loaded = None if job.bench == PEER else job.model
        order.append(job)
        done.append(Done(job.name, seconds))
    assert left >= 0 or slowness > MARGIN
    return order


def test_every_job_has_a_unique_name() -> None:
    names = [job.name for job in jobs(FULL)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", FULL.shapes, ids=lambda shape: shape.key)
def test_plan_covers_all_sizes_depths_and_rates_beside_none(shape: object) -> None:
    mine = [job for job in jobs(FULL) if job.model == getattr(shape, "key", "")]
    prompts = {(job.size, job.depth, mode) for job in mine for mode in job.modes if job.bench == PREFILL}
    sizes = (1024, 8192, 32_768, 65_536, 131_072, 196_608)
    assert {(size, 3, mode) for size in sizes for mode in (NONE, FUSED, HOST_COPY, ALL_OUTPUTS)} <= prompts
    assert {(size, depth, FUSED) for size in sizes for depth in (2, 3, 4)} <= prompts
    decoded = {(job.rate, arm) for job in mine for arm in job.modes if job.bench == DECODE}
    assert {(rate, arm) for rate in RATES for arm in (NONE, "1", "2", "3", "4", "auto")} <= decoded
    assert (0.75, "3:host-copy") in decoded
    assert all(job.modes[0] == NONE for job in mine if job.bench != PEER)
    assert any(job.bench == PEER for job in mine)


def test_most_valuable_jobs_cover_both_models() -> None:
    first = jobs(FULL)[: 2 * (len(FULL.first) + 2)]
    assert [job.modes for job in first if job.bench == PREFILL] == [(NONE, FUSED)] * 2 * len(FULL.first)
    assert {job.model for job in first} == set(MADE)


def test_costly_comparisons_come_last() -> None:
    order = [job.name for job in jobs(FULL)]
    costly = order.index(Job("27b", PREFILL, 196_608, 3, (NONE, ALL_OUTPUTS)).name)
    assert costly > order.index(Job("27b", PREFILL, 196_608, 3, (NONE, FUSED)).name)
    assert costly > 0.8 * len(order)


def test_all_jobs_are_done_once_if_there_is_time() -> None:
    assert sorted(job.name for job in run(HOURS)) == sorted(job.name for job in jobs(FULL))


@pytest.mark.parametrize("minutes", [1, 3, 8.5, 20])
def test_planner_starts_only_jobs_that_fit_into_the_time(minutes: float) -> None:
    run(minutes)


def test_later_command_continues_with_the_jobs_that_are_left() -> None:
    done: list[Done] = []
    first, second = run(8, done=done), run(8, done=done)
    assert first
    assert second
    assert not {job.name for job in first} & {job.name for job in second}
    assert first[: len(FULL.first)] == jobs(FULL)[: len(FULL.first)]


def test_cheaper_job_is_picked_if_a_more_valuable_job_does_not_fit() -> None:
    short = next_job(FULL, [], 60, "35b-a3b", MADE, ALL)
    assert short == Job("35b-a3b", PREFILL, 1024, 3, (NONE, FUSED))
    done = [
        Done(job.name, prior(job, FULL)) for job in jobs(FULL) if job.model == "35b-a3b" and job.size in (1024, 8192)
    ]
    large = Job("35b-a3b", PREFILL, 131_072, 3, (NONE, FUSED))
    chosen = next_job(FULL, done, 40, "35b-a3b", MADE, ALL)
    assert chosen is not None
    assert prior(chosen, FULL) < prior(large, FULL)


def test_job_of_a_missing_model_includes_the_time_to_make_and_load_it() -> None:
    shape = FULL.shapes[0]
    (job, *_) = jobs(FULL)
    alone = MARGIN * prior(job, FULL)
    only = [Done(other.name, 1) for other in jobs(FULL)[1:]]
    for loaded, made, before in ((shape.key, MADE, 0.0), (None, MADE, shape.load), (None, (), shape.load + shape.make)):
        # these jobs of the model fail, so that their times do not correct the estimate
        others = [result for result in only if not result.name.startswith(shape.key)]
        failed = [Done(result.name, 0, "failed") for result in only if result.name.startswith(shape.key)]
        assert next_job(FULL, [*others, *failed], before + alone + 0.1, loaded, made, ALL) == job
        assert next_job(FULL, [*others, *failed], before + alone - 0.1, loaded, made, ALL) is None


def test_estimates_are_corrected_by_the_most_similar_job() -> None:
    small, large = (Job("27b", PREFILL, size, 3, (NONE, FUSED)) for size in (1024, 131_072))
    between = Job("27b", PREFILL, 65_536, 3, (NONE, FUSED))
    done = {
        small.name: Done(small.name, 2 * prior(small, FULL)),
        large.name: Done(large.name, 3 * prior(large, FULL)),
    }
    assert estimate(between, done, FULL) == pytest.approx(3 * prior(between, FULL))
    other = Job("27b", PREFILL, 65_536, 3, (NONE, HOST_COPY))
    assert estimate(other, done, FULL) == pytest.approx(3 * prior(other, FULL))
    assert estimate(Job("27b", DECODE, modes=(NONE,), rate=0.5), done, FULL) == prior(
        Job("27b", DECODE, modes=(NONE,), rate=0.5), FULL
    )
    assert estimate(Job("35b-a3b", PREFILL, 65_536, 3, (NONE, FUSED)), done, FULL) == prior(
        Job("35b-a3b", PREFILL, 65_536, 3, (NONE, FUSED)), FULL
    )


def test_slow_machine_starts_fewer_jobs() -> None:
    assert len(run(8, slowness=3)) < len(run(8))


def test_failed_job_is_not_retried_but_a_cut_off_job_is_retried_with_more_time() -> None:
    (job, following, *_) = jobs(FULL)
    assert next_job(FULL, [Done(job.name, 0, "no memory")], HOURS, job.model, MADE, ALL) == following
    cut = [Done(job.name, 100, cut=True)]
    assert next_job(FULL, cut, HOURS, job.model, MADE, ALL) == job
    assert next_job(FULL, cut, MARGIN * 99, job.model, MADE, (PREFILL,)) != job


def test_results_name_the_job_that_a_dead_process_was_running(tmp_path: Path) -> None:
    first, second, third, *_ = jobs(SMOKE)
    results = Results(tmp_path)
    results.begin(first)
    results.end(first, 1.5)
    results.begin(second)
    assert Results(tmp_path).cut_off(time_up=False) == second.name
    results.begin(third)
    assert Results(tmp_path).cut_off(time_up=True) == third.name
    assert Results(tmp_path).cut_off(time_up=True) == ""
    assert [(result.name, result.error, result.cut) for result in Results(tmp_path).done()] == [
        (first.name, "", False),
        (second.name, CRASHED, False),
        (third.name, "", True),
    ]
    results.end(third, 2)  # the retry succeeded
    assert [result.cut for result in Results(tmp_path).done()] == [False] * 3
