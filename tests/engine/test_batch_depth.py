"""Tests of the depth of batches: on simulated machines, it is nearly as fast as the best fixed depth."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from helpers.simulate_batch import (
    MOST,
    N_CTX,
    Batch,
    Machine,
    fixed_rates,
    known_costs,
    measured_rounds,
    phases,
    steady,
)

from pymtp.drafting.depth import AutoDepth, FixedDepth, RoundCosts, SequenceDepth, thread_changes
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.rounds import DecodeState
from pymtp.stats import DraftStats


def milliseconds(seconds: dict[int, float]) -> dict[int, float]:
    return {n: 0.001 * ms for n, ms in seconds.items()}


MACHINES = {
    # the 0.8B shape in Q4_0, one thread of an AMD Zen 5: more than 8 rows are expensive
    "zen5": Machine(
        milliseconds({1: 20, 4: 25, 8: 42, 16: 80, 32: 151, 64: 310}), milliseconds({1: 1, 4: 6, 8: 10, 16: 22})
    ),
    # the same machine with faster kernels for 9 to 64 rows
    "fast rows": Machine(
        milliseconds({1: 20, 4: 25, 8: 38, 16: 62, 32: 105, 64: 195}), milliseconds({1: 1, 4: 2, 16: 9})
    ),
    # memory-bound: reading the weights takes most of the time
    "weight-bound": Machine(milliseconds({1: 100, 8: 125, 16: 170, 64: 420}), milliseconds({1: 4, 8: 8, 16: 14})),
    # launch-bound: kernel launches take most of the time
    "GPU": Machine(milliseconds({1: 10, 8: 11, 16: 12, 64: 16}), milliseconds({1: 0.6, 16: 0.9}), each=0.0001),
}


def make_states(depths: BatchDepth, n: int, max_drafts: int | None = None) -> list[DecodeState]:
    return [
        DecodeState(
            seq,
            1,
            10,
            tokens_left=10**6,
            is_last=lambda _: False,
            draft_stats=DraftStats(),
            depth=depths.add_sequence(0.0),
            max_drafts=max_drafts,
        )
        for seq in range(n)
    ]


def relative_speed(machine: Machine, n: int, rate: float, *, tokens: int, batches: int) -> float:
    """Return the tokens/s of the last batch, relative to the best fixed depth: the mean of three simulated LLMs."""
    texts, seeds = [steady(rate)] * n, range(3)
    autos = [Batch(machine, n, seed=seed) for seed in seeds]
    found = [[auto.run(texts, tokens, n) for _ in range(batches)][-1] for auto in autos]
    best = [max(fixed_rates(replace(machine, build=0.0), texts, tokens, n, seed)) for seed in seeds]
    return sum(a / b for a, b in zip(found, best, strict=True)) / len(seeds)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.75, 0.9])
def test_batch_depth_comes_near_the_best_fixed_depth(rate: float) -> None:
    speeds = [
        relative_speed(machine, n, rate, tokens=128, batches=2) for machine in MACHINES.values() for n in (2, 4, 8)
    ]
    assert sum(speeds) / len(speeds) > 0.973
    assert min(speeds) > 0.94


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("name", MACHINES)
def test_batch_depth_is_nearly_as_fast_as_plain_rounds_if_nothing_is_accepted(name: str, n: int) -> None:
    batch = Batch(MACHINES[name], n)
    plain = n / MACHINES[name].round_seconds(n, 0)
    assert batch.run([steady(0.0)] * n, 256, n) > 0.965 * plain
    assert batch.run([steady(0.0)] * n, 64, n) > 0.97 * plain


def test_learning_in_the_first_short_batch_costs_little_speed() -> None:
    speeds = [
        relative_speed(machine, 8, rate, tokens=64, batches=1)
        for machine in MACHINES.values()
        for rate in (0.0, 0.5, 0.75, 0.9)
    ]
    assert sum(speeds) / len(speeds) > 0.96
    assert min(speeds) > 0.92


def test_sequences_of_different_acceptance_share_the_depth_that_is_best_for_all() -> None:
    for name in ("weight-bound", "GPU"):
        texts, seconds = [steady(0.9)] * 6 + [steady(0.1)] * 2, 200 * MACHINES[name].round_seconds(8, 0)
        auto = Batch(MACHINES[name], 8)
        best = max(fixed_rates(MACHINES[name], texts, 2000, 8, 0, seconds))
        assert auto.run(texts, 2000, 8, seconds) > 0.95 * best


def test_batch_depth_follows_acceptance_that_changes_within_a_text() -> None:
    texts = [phases(0.3, 0.9, 40, 7 * i) for i in range(24)]
    for name in ("fast rows", "weight-bound"):
        auto = Batch(MACHINES[name], 8)
        assert auto.run(texts, 96, 8) > 0.95 * max(fixed_rates(MACHINES[name], texts, 96, 8, 0))


def test_batch_depth_is_deterministic() -> None:
    one, other = (Batch(MACHINES["fast rows"], 4, seed=5) for _ in range(2))
    for batch in (one, other):
        batch.run([steady(0.7)] * 4, 200, 4)
    assert one.depths == other.depths


def test_batch_depth_notices_that_acceptance_has_improved() -> None:
    batch = Batch(MACHINES["fast rows"], 8)
    batch.run([lambda place: 0.98 * (place > 400)] * 8, 900, 8)
    depths = [depth for n, depth in batch.depths if n == 8]
    assert sum(depth > 0 for depth in depths[20:390]) < 20
    assert min(depths[450:470]) > 0


def test_rounds_without_drafts_are_mostly_neither_chosen_nor_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(MACHINES["zen5"], 4)
    batch.run([steady(0.0)] * 4, 100, 4)
    observe, timed = AutoDepth.observe, []

    def counted(policy: AutoDepth, *arguments: Any) -> None:
        timed.append(arguments)
        observe(policy, *arguments)

    monkeypatch.setattr(AutoDepth, "observe", counted)
    batch.depths.clear()
    batch.run([steady(0.0)] * 4, 200, 4)
    assert len(timed) < len(batch.depths) / 2
    timed.clear()
    batch.depth.add_sequence(0.0)  # a new text may be better than the last
    batch.run([steady(0.0)] * 3, 2, 3)
    assert timed


def test_last_of_the_rounds_that_are_neither_chosen_nor_timed_tells_the_time_of_plain_rounds() -> None:
    machine = replace(MACHINES["zen5"], spread=0.0, outliers=0.0, change=0.5)
    batch = Batch(machine, 4)
    batch.run([steady(0.0)] * 4, 600, 4)
    assert batch.depth._costs is not None
    assert batch.depth._costs.rounds(4, 0)[0] == pytest.approx(machine.round_seconds(4, 0), rel=0.1)


def test_rounds_before_a_sequence_began_do_not_count_for_it() -> None:
    depths = BatchDepth(N_CTX, 512, MOST, known_costs(MACHINES["zen5"]))
    counted: list[int] = []
    assert depths._auto is not None
    choose = depths._auto.choose
    depths._auto.choose = lambda *arguments: counted.append(arguments[3]) or choose(*arguments)  # type: ignore[method-assign,func-returns-value]
    (state,) = make_states(depths, 1)
    depths.choose([state])
    depths._idle_left = 9
    for _ in range(5):
        depths.choose([state])
    (other,) = make_states(depths, 1)
    depths.choose([other])
    assert counted == [0, 0]


def test_one_wrong_price_of_peeks_does_not_hide_a_good_text_for_long() -> None:
    machine = MACHINES["fast rows"]
    costs = RoundCosts()
    first = {(1, 1): 20.0}  # plain rounds that the first draft took longer, when a program disturbed the warm-up
    plain = machine.round_seconds(1, 0)
    costs.begin({k: t._replace(draft_first=first.get(k, 0.0) * plain) for k, t in measured_rounds(machine, 1).items()})
    batch = Batch(machine, 1)
    batch.depth = BatchDepth(N_CTX, 512, MOST, costs)
    batch.run([lambda place: 0.98 * (place > 20)], 900, 1)
    assert any(depth > 1 for _, depth in batch.depths[20:300])


def test_acceptance_of_sequences_without_drafts_does_not_count_for_the_depth() -> None:
    batch = Batch(MACHINES["weight-bound"], 8)
    batch.max_drafts = dict.fromkeys(range(7), 0)
    batch.run([steady(0.9)] * 8, 100, 8)
    assert sum(depth > 0 for n, depth in batch.depths if n == 8) < 10


def test_slow_first_round_of_a_new_batch_size_does_not_rule_out_its_depth() -> None:
    machine = replace(MACHINES["GPU"], build=5.0, spread=0.0, outliers=0.0)
    batch = Batch(machine, 8, timed=False)
    batch.run([steady(1.0)] * 8, 200, 8)
    depths = [depth for _, depth in batch.depths]
    deepest = depths.index(max(depths))
    assert 8 * (1 + max(depths)) > 1 + MOST  # the deepest batch has more rows than the warm-up timed
    assert min(depths[deepest : deepest + 10]) >= max(depths) - 2


@pytest.mark.parametrize("name", MACHINES)
def test_rounds_make_no_drafts_if_no_draft_is_ever_accepted(name: str) -> None:
    machine = MACHINES[name]
    depths = BatchDepth(N_CTX, 512, MOST, known_costs(machine))
    for n, max_drafts in ((2, 3), (16, None)):
        plain = 0
        for _ in range(20):
            sequences = make_states(depths, n, max_drafts)
            for _ in range(10):
                depth = depths.choose(sequences)
                for state in sequences:
                    state.made_drafts, state.n_correct = [0] * depth, 0
                kept = depths.n_to_verify(sequences) if depth else 0
                for state in sequences:
                    state.verified_drafts, state.n_by_head = [0] * kept, kept
                plain += kept == 0
                depths.observe(sequences, depth, machine.draft_seconds(n, depth), machine.verify_seconds(n, kept))
    assert plain > 0.9 * 200


def test_rounds_of_one_sequence_are_chosen_by_the_same_policy() -> None:
    own = AutoDepth(known_costs(MACHINES["fast rows"])).add_sequence(0.0)
    depths = BatchDepth(N_CTX, 512, MOST, known_costs(MACHINES["fast rows"]))
    (state,) = make_states(depths, 1)
    rng = Random(1)
    for _ in range(300):
        depth = own.choose(min(state.tokens_left - 1, N_CTX - 11), 10)
        assert depths.choose([state]) == depth
        state.made_drafts, state.confidences = [0] * depth, [rng.random() for _ in range(depth)]
        kept = own.n_to_verify(state.confidences)
        assert not depth or depths.n_to_verify([state]) == kept
        state.verified_drafts, state.n_by_head = [0] * kept, kept
        state.n_correct = rng.randint(0, kept)
        took = rng.uniform(0.005, 0.02), rng.uniform(0.01, 0.02)
        own.observe(depth, kept, state.n_correct, *took)
        depths.observe([state], depth, *took)


def test_round_after_a_change_of_threads_corrects_all_costs_and_drafting_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in (1, 4):
        costs = known_costs(MACHINES["fast rows"])
        depths = BatchDepth(N_CTX, 512, MOST, costs)
        sequences = make_states(depths, n)
        for state in sequences:
            state.made_drafts, state.verified_drafts, state.n_correct, state.confidences = (
                [0] * 3,
                [0] * 3,
                3,
                [0.9] * 3,
            )
            state.n_by_head = 3
        for _ in range(40):
            depths.choose(sequences)
            depths.observe(sequences, 3, 0.01, 0.02)
        depth, before = depths.choose(sequences), costs.rounds(n, MOST)
        assert depth > 0
        monkeypatch.setattr("pymtp.engine.batch_depth.thread_changes", lambda: thread_changes() + 1)
        depths.observe(sequences, 3, 0.02, 0.04)
        assert costs.rounds(n, MOST) == before  # the threads changed during this round
        assert depths.choose(sequences) == depth
        for factor in (20, 2):  # another program has disturbed the first
            depths.observe(sequences, 3, factor * 0.01, factor * 0.02)
        assert costs.rounds(n, MOST) == pytest.approx([2 * seconds for seconds in before], rel=0.02)
        monkeypatch.undo()


def test_round_that_tries_another_number_of_threads_changes_acceptance_but_no_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = known_costs(MACHINES["fast rows"])
    depths = BatchDepth(N_CTX, 512, MOST, costs)
    (state,) = make_states(depths, 1)
    state.made_drafts, state.verified_drafts, state.n_correct, state.confidences = [0] * 3, [0] * 3, 3, [0.9] * 3
    state.n_by_head = 3
    depth = state.depth
    assert isinstance(depth, SequenceDepth)
    trials = count(1)
    monkeypatch.setattr("pymtp.engine.batch_depth.thread_trials", lambda: next(trials))
    before, rate = costs.rounds(1, MOST), depth.acceptance.rates(1)[0]
    for _ in range(20):
        depths.choose([state])
        depths.observe([state], 3, 1.0, 2.0)
    assert costs.rounds(1, MOST) == before
    assert depth.acceptance.rates(1)[0] > rate


def test_fixed_depth_is_limited_by_rows_and_context() -> None:
    depths = BatchDepth(100, 24, 5, None)
    assert isinstance(depths.add_sequence(0.7), FixedDepth)
    assert [depths.choose(make_states(depths, n)) for n in (1, 2, 4, 6, 12, 24)] == [5, 5, 5, 3, 1, 0]
    assert depths.choose(make_states(depths, 3, max_drafts=2)) == 2
    near = make_states(depths, 3)
    near[1].n_past = 97
    assert depths.choose(near) == 2
