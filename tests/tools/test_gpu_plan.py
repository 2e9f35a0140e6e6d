"""Claims about the planner of tools/gpu/gpu_bench.sh: the most valuable job that fits, by estimates that learn."""

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
    """What is measured in so many minutes, on a machine that takes `slowness` times what was guessed."""
    left, loaded, order = 60 * minutes, None, []
    done = [] if done is None else done
    while job := next_job(scale, done, left, loaded, MADE, ALL):
        shape = next(shape for shape in scale.shapes if shape.key == job.model)
        took = slowness * prior(job, scale)
        left -= took + (shape.load if job.model != loaded else 0)
        loaded = None if job.bench == PEER else job.model
        order.append(job)
        done.append(Done(job.name, took))
    assert left >= 0 or slowness > MARGIN
    return order


def test_every_job_has_a_name_of_its_own() -> None:
    names = [job.name for job in jobs(FULL)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", FULL.shapes, ids=lambda shape: shape.key)
def test_all_that_is_asked_for_is_planned_and_always_beside_none(shape: object) -> None:
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


def test_both_models_have_their_table_before_either_has_the_rest() -> None:
    first = jobs(FULL)[: 2 * (len(FULL.first) + 2)]
    assert [job.modes for job in first if job.bench == PREFILL] == [(NONE, FUSED)] * 2 * len(FULL.first)
    assert {job.model for job in first} == set(MADE)


def test_the_costliest_comes_last_but_for_what_says_least() -> None:
    order = [job.name for job in jobs(FULL)]
    costly = order.index(Job("27b", PREFILL, 196_608, 3, (NONE, ALL_OUTPUTS)).name)
    assert costly > order.index(Job("27b", PREFILL, 196_608, 3, (NONE, FUSED)).name)
    assert costly > 0.8 * len(order)


def test_all_jobs_are_done_once_where_there_is_time() -> None:
    assert sorted(job.name for job in run(HOURS)) == sorted(job.name for job in jobs(FULL))


@pytest.mark.parametrize("minutes", [1, 3, 8.5, 20])
def test_what_is_begun_fits_into_the_time(minutes: float) -> None:
    run(minutes)


def test_a_later_command_goes_on_where_the_last_one_ended() -> None:
    done: list[Done] = []
    first, second = run(8, done=done), run(8, done=done)
    assert first
    assert second
    assert not {job.name for job in first} & {job.name for job in second}
    assert first[: len(FULL.first)] == jobs(FULL)[: len(FULL.first)]


def test_a_job_that_does_not_fit_lets_a_cheaper_one_go_before() -> None:
    short = next_job(FULL, [], 60, "35b-a3b", MADE, ALL)
    assert short == Job("35b-a3b", PREFILL, 1024, 3, (NONE, FUSED))
    done = [
        Done(job.name, prior(job, FULL)) for job in jobs(FULL) if job.model == "35b-a3b" and job.size in (1024, 8192)
    ]
    large = Job("35b-a3b", PREFILL, 131_072, 3, (NONE, FUSED))
    chosen = next_job(FULL, done, 40, "35b-a3b", MADE, ALL)
    assert chosen is not None
    assert prior(chosen, FULL) < prior(large, FULL)


def test_a_model_that_is_not_there_costs_its_making_and_its_loading() -> None:
    shape = FULL.shapes[0]
    (job, *_) = jobs(FULL)
    alone = MARGIN * prior(job, FULL)
    only = [Done(other.name, 1) for other in jobs(FULL)[1:]]
    for loaded, made, before in ((shape.key, MADE, 0.0), (None, MADE, shape.load), (None, (), shape.load + shape.make)):
        # others are done, so their time corrects nothing that is asked here
        others = [one for one in only if not one.name.startswith(shape.key)]
        keep = [Done(one.name, 0, "failed") for one in only if one.name.startswith(shape.key)]
        assert next_job(FULL, [*others, *keep], before + alone + 0.1, loaded, made, ALL) == job
        assert next_job(FULL, [*others, *keep], before + alone - 0.1, loaded, made, ALL) is None


def test_estimates_follow_what_was_measured_of_the_nearest_like_it() -> None:
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


def test_a_slow_machine_is_noticed_and_less_is_begun() -> None:
    assert len(run(8, slowness=3)) < len(run(8))


def test_a_failed_job_is_not_tried_again_and_one_that_was_cut_off_is_with_more_time() -> None:
    (job, following, *_) = jobs(FULL)
    assert next_job(FULL, [Done(job.name, 0, "no memory")], HOURS, job.model, MADE, ALL) == following
    cut = [Done(job.name, 100, cut=True)]
    assert next_job(FULL, cut, HOURS, job.model, MADE, ALL) == job
    assert next_job(FULL, cut, MARGIN * 99, job.model, MADE, (PREFILL,)) != job


def test_results_survive_and_say_what_a_dead_process_left(tmp_path: Path) -> None:
    first, second, third, *_ = jobs(SMOKE)
    results = Results(tmp_path)
    results.begin(first)
    results.end(first, 1.5)
    results.begin(second)
    assert Results(tmp_path).cut_off(time_up=False) == second.name
    results.begin(third)
    assert Results(tmp_path).cut_off(time_up=True) == third.name
    assert Results(tmp_path).cut_off(time_up=True) == ""
    assert [(one.name, one.error, one.cut) for one in Results(tmp_path).done()] == [
        (first.name, "", False),
        (second.name, CRASHED, False),
        (third.name, "", True),
    ]
    results.end(third, 2)  # in the end it was measured
    assert [one.cut for one in Results(tmp_path).done()] == [False] * 3
