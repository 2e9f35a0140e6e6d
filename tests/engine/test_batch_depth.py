"""Claims about the depths of rounds that several sequences share, on simulated machines: no model takes part."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from helpers.estimates import BatchCosts
from helpers.simulate_batch import MOST, N_CTX, Batch, Machine, fixed_rates, known, phases, steady

from pymtp.drafting.depth import AutoDepth, Costs, FixedDepth, thread_changes
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.rounds import Writer
from pymtp.stats import Tally


def thousandths(seconds: dict[int, float]) -> dict[int, float]:
    return {n: 0.001 * each for n, each in seconds.items()}


MACHINES = {
    # the 0.8B shape in Q4_0, one thread of an AMD Zen 5: more than 8 rows are dear
    "zen5": Machine(
        thousandths({1: 20, 4: 25, 8: 42, 16: 80, 32: 151, 64: 310}), thousandths({1: 1, 4: 6, 8: 10, 16: 22})
    ),
    # the same with kernels for 9 to 64 rows that are faster than today's
    "fast rows": Machine(
        thousandths({1: 20, 4: 25, 8: 38, 16: 62, 32: 105, 64: 195}), thousandths({1: 1, 4: 2, 16: 9})
    ),
    # reading the weights decides
    "weight-bound": Machine(thousandths({1: 100, 8: 125, 16: 170, 64: 420}), thousandths({1: 4, 8: 8, 16: 14})),
    # launches decide
    "GPU": Machine(thousandths({1: 10, 8: 11, 16: 12, 64: 16}), thousandths({1: 0.6, 16: 0.9}), each=0.0001),
}


def writers(depths: BatchDepth, n: int, cap: int | None = None) -> list[Writer]:
    return [
        Writer(seq, 1, 10, left=10**6, ends=lambda _: False, tally=Tally(), depth=depths.open(0.0), cap=cap)
        for seq in range(n)
    ]


def share(machine: Machine, n: int, rate: float, *, tokens: int, batches: int) -> float:
    """Tokens a second, of those of the best fixed depth, in the last of so many batches of an LLM: the mean of
    three LLMs."""
    texts, seeds = [steady(rate)] * n, range(3)
    autos = [Batch(machine, n, seed=seed) for seed in seeds]
    found = [[auto.run(texts, tokens, n) for _ in range(batches)][-1] for auto in autos]
    best = [max(fixed_rates(replace(machine, build=0.0), texts, tokens, n, seed)) for seed in seeds]
    return sum(a / b for a, b in zip(found, best, strict=True)) / len(seeds)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.75, 0.9])
def test_the_chosen_depths_bring_nearly_as_much_as_the_best_fixed_depth(rate: float) -> None:
    shares = [share(machine, n, rate, tokens=128, batches=2) for machine in MACHINES.values() for n in (2, 4, 8)]
    assert sum(shares) / len(shares) > 0.975
    assert min(shares) > 0.94


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("name", MACHINES)
def test_where_nothing_is_accepted_auto_is_nearly_as_fast_as_plain_rounds(name: str, n: int) -> None:
    batch = Batch(MACHINES[name], n)
    plain = n / MACHINES[name].round_seconds(n, 0)
    assert batch.run([steady(0.0)] * n, 256, n) > 0.965 * plain
    assert batch.run([steady(0.0)] * n, 64, n) > 0.97 * plain


def test_a_first_short_batch_pays_little_for_what_is_to_be_learnt() -> None:
    shares = [
        share(machine, 8, rate, tokens=64, batches=1) for machine in MACHINES.values() for rate in (0.0, 0.5, 0.75, 0.9)
    ]
    assert sum(shares) / len(shares) > 0.96
    assert min(shares) > 0.92


def test_texts_of_different_acceptance_share_the_depth_that_is_best_for_all() -> None:
    for name in ("weight-bound", "GPU"):
        texts, seconds = [steady(0.9)] * 6 + [steady(0.1)] * 2, 200 * MACHINES[name].round_seconds(8, 0)
        auto = Batch(MACHINES[name], 8)
        best = max(fixed_rates(MACHINES[name], texts, 2000, 8, 0, seconds))
        assert auto.run(texts, 2000, 8, seconds) > 0.95 * best


def test_texts_in_passages_and_one_after_the_other_are_written_as_fast_as_at_the_best_fixed_depth() -> None:
    texts = [phases(0.3, 0.9, 40, 7 * i) for i in range(24)]
    for name in ("fast rows", "weight-bound"):
        auto = Batch(MACHINES[name], 8)
        assert auto.run(texts, 96, 8) > 0.95 * max(fixed_rates(MACHINES[name], texts, 96, 8, 0))


def test_the_same_rounds_lead_to_the_same_depths() -> None:
    one, other = (Batch(MACHINES["fast rows"], 4, seed=5) for _ in range(2))
    for batch in (one, other):
        batch.run([steady(0.7)] * 4, 200, 4)
    assert one.depths == other.depths


def test_peeks_find_that_acceptance_has_become_better() -> None:
    batch = Batch(MACHINES["fast rows"], 8)
    batch.run([lambda place: 0.98 * (place > 400)] * 8, 900, 8)
    depths = [depth for n, depth in batch.depths if n == 8]
    assert sum(depth > 0 for depth in depths[20:390]) < 20
    assert min(depths[450:470]) > 0


def test_texts_that_want_no_drafts_count_for_none() -> None:
    batch = Batch(MACHINES["weight-bound"], 8)
    batch.caps = dict.fromkeys(range(7), 0)
    batch.run([steady(0.9)] * 8, 100, 8)
    assert sum(depth > 0 for n, depth in batch.depths if n == 8) < 10


def test_rounds_that_found_new_memory_do_not_keep_from_a_depth() -> None:
    machine = replace(MACHINES["GPU"], build=5.0, spread=0.0, outliers=0.0)
    batch = Batch(machine, 8, timed=False)
    batch.run([steady(1.0)] * 8, 200, 8)
    depths = [depth for _, depth in batch.depths]
    deepest = depths.index(max(depths))
    assert 8 * (1 + max(depths)) > 1 + MOST  # more rows than were timed
    assert min(depths[deepest : deepest + 10]) >= max(depths) - 2


def test_rounds_of_some_sequences_tell_what_rounds_of_others_cost() -> None:
    machine = replace(MACHINES["zen5"], outliers=0.0)
    costs = BatchCosts(known(MACHINES["GPU"]))  # wrong in all
    for _ in range(20):
        for depth in (0, 1, 3):
            draft, verify = machine.draft_seconds(8, depth), machine.verify_seconds(8, depth)
            costs.observe(8, 100, depth, draft, 1 + depth, verify, cold=False)
    found = costs.rounds(7, 3, 100)
    assert found is not None
    for depth in (0, 1, 3):
        assert found[0][depth] == pytest.approx(machine.round_seconds(7, depth), rel=0.25)


def test_a_launch_that_finds_new_memory_does_not_count_as_what_its_rows_take() -> None:
    costs = BatchCosts(known(MACHINES["zen5"]))
    before = costs.rounds(8, 3, 0)
    assert before is not None
    costs.observe(8, 0, 3, 0.08, 4, 1.0, cold=True)
    assert costs.rounds(8, 3, 0)[0][3] < 1.1 * before[0][3]  # type: ignore[index]
    costs.observe(8, 0, 3, 0.08, 4, 1.0, cold=False)
    assert costs.rounds(8, 3, 0)[0][3] > 1.2 * before[0][3]  # type: ignore[index]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_times_that_no_launch_takes_tell_nothing(seconds: float) -> None:
    costs = BatchCosts(known(MACHINES["zen5"]))
    before = costs.rounds(2, MOST, 10)
    for _ in range(3):
        costs.observe(2, 10, 2, seconds, 3, seconds, cold=False)
    assert costs.rounds(2, MOST, 10) == before


def test_a_timing_that_was_spoilt_does_not_make_many_rows_dear() -> None:
    costs = Costs()
    costs.begin({1: 0.020, 4: 0.080, 8: 0.020}, {3: 0.003})  # so eight rows take less than four
    found = BatchCosts(costs).rounds(16, MOST, 0)
    assert found is not None
    assert min(found[0]) > 0.02
    assert max(found[0]) < 0.1


@pytest.mark.parametrize("name", MACHINES)
def test_where_drafting_lost_all_it_may_rounds_of_more_rows_than_were_timed_are_plain(name: str) -> None:
    machine = MACHINES[name]
    depths = BatchDepth(N_CTX, 512, MOST, known(machine))
    for n, cap in ((2, 3), (16, None)):
        plain = 0
        for _ in range(20):
            sequences = writers(depths, n, cap)
            for _ in range(10):
                depth = depths.choose(sequences)
                for writer in sequences:
                    writer.made, writer.right = [0] * depth, 0
                kept = depths.keep(sequences) if depth else 0
                for writer in sequences:
                    writer.drafts = [0] * kept
                plain += kept == 0
                depths.observe(sequences, depth, machine.draft_seconds(n, depth), machine.verify_seconds(n, kept))
    assert plain > 0.9 * 200


def test_one_sequence_has_the_depth_of_its_own_policy() -> None:
    machine = MACHINES["fast rows"]
    own, shared = (AutoDepth(known(machine), MOST) for _ in range(2))
    depths = BatchDepth(N_CTX, 512, MOST, known(machine))
    (writer,) = writers(depths, 1)
    writer.depth = shared
    luck = Random(1)
    for _ in range(300):
        depth = own.choose(min(writer.left - 1, N_CTX - 11), 10)
        assert depths.choose([writer]) == depth
        writer.made, writer.confidences = [0] * depth, [luck.random() for _ in range(depth)]
        kept = own.keep(writer.confidences)
        assert not depth or depths.keep([writer]) == kept
        writer.drafts = [0] * kept
        writer.right = luck.randint(0, kept)
        took = luck.uniform(0.005, 0.02), luck.uniform(0.01, 0.02)
        own.observe(depth, kept, writer.right, *took, writer.confidences)
        depths.observe([writer], depth, *took)


def test_costs_are_forgotten_where_other_programs_change_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (1, 4):
        costs = known(MACHINES["fast rows"])
        depths = BatchDepth(N_CTX, 512, MOST, costs)
        sequences = writers(depths, n)
        for writer in sequences:
            writer.made, writer.drafts, writer.right, writer.confidences = [0] * 3, [0] * 3, 3, [0.9] * 3
        depths.choose(sequences)
        depths.observe(sequences, 3, 0.01, 0.02)
        assert costs.verify_seconds(1) < 1
        monkeypatch.setattr("pymtp.engine.batch_depth.thread_changes", lambda: thread_changes() + 1)
        depths.observe(sequences, 3, 0.01, 0.02)
        assert costs.verify_seconds(1) == float("inf")
        assert depths.choose(sequences) == 0  # plain, to be timed anew
        monkeypatch.undo()


def test_a_round_that_another_number_of_threads_was_tried_in_teaches_acceptance_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = known(MACHINES["fast rows"])
    depths = BatchDepth(N_CTX, 512, MOST, costs)
    (writer,) = writers(depths, 1)
    writer.made, writer.drafts, writer.right, writer.confidences = [0] * 3, [0] * 3, 3, [0.9] * 3
    depth = writer.depth
    assert isinstance(depth, AutoDepth)
    trials = count(1)
    monkeypatch.setattr("pymtp.engine.batch_depth.thread_trials", lambda: next(trials))
    before, rate = costs.rounds(MOST), depth.rates(1)[0]
    for _ in range(20):
        depths.choose([writer])
        depths.observe([writer], 3, 1.0, 2.0)
    assert costs.rounds(MOST) == before
    assert depth.rates(1)[0] > rate


def test_a_fixed_depth_is_that_of_all_and_no_more_than_there_are_rows_and_room() -> None:
    depths = BatchDepth(100, 24, 5, None)
    assert isinstance(depths.open(0.7), FixedDepth)
    assert [depths.choose(writers(depths, n)) for n in (1, 2, 4, 6, 12, 24)] == [5, 5, 5, 3, 1, 0]
    assert depths.choose(writers(depths, 3, cap=2)) == 2
    near = writers(depths, 3)
    near[1].n_past = 97
    assert depths.choose(near) == 2


def test_rounds_of_several_tell_one_by_itself_nothing_of_what_its_rounds_cost() -> None:
    costs = known(MACHINES["fast rows"])
    before = costs.rounds(MOST)
    depths = BatchDepth(N_CTX, 512, MOST, costs)
    sequences = writers(depths, 4)
    for writer in sequences:
        writer.made = writer.drafts = [0] * 3
        writer.right = 3
    for _ in range(50):
        depths.choose(sequences)
        depths.observe(sequences, 3, 1.0, 1.0)
    assert costs.rounds(MOST) == before
    depth = sequences[0].depth
    assert isinstance(depth, AutoDepth)
    assert depth.rates(1)[0] > 0.9
