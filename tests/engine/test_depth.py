"""Claims about the depths of rounds that several sequences share, on simulated machines: no model takes part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from helpers.simulate import falling, window

from pymtp.depth import AutoDepth, Costs, FixedDepth
from pymtp.engine.depth import BatchDepth
from pymtp.engine.rounds import Writer
from pymtp.stats import Tally

MOST = 7
N_CTX = 100_000


class Machine:
    """What rounds of n sequences cost: rows and steps in all. share: of a row, against the first one."""

    def __init__(self, share: float, step: float = 0.06, spread: float = 0.05) -> None:
        self.share, self.step, self.spread = share, step, spread

    def draft(self, n: int, depth: int) -> float:
        return depth * self.step * (1 + self.share * (n - 1)) if depth else 0.0

    def verify(self, n: int, depth: int) -> float:
        return 1 + self.share * (n * (1 + depth) - 1)

    def timing(self, seconds: float, luck: Random) -> float:
        seconds *= 0.01 * math.exp(luck.gauss(0, self.spread))
        return 10 * seconds if luck.random() < 0.03 else seconds


def writers(depths: BatchDepth, n: int, cap: int | None = None) -> list[Writer]:
    return [
        Writer(seq, 1, 10, left=10**6, ends=lambda _: False, tally=Tally(), depth=depths.open(0.0), cap=cap)
        for seq in range(n)
    ]


def known(machine: Machine) -> Costs:
    """As first_costs times them: a few counts of one sequence."""
    costs = Costs()
    costs.begin({1 + d: 0.01 * machine.verify(1, d) for d in (0, 1, 3, 7)}, {3: 0.01 * machine.draft(1, 3)})
    return costs


def simulate(
    machine: Machine, each: Sequence[Sequence[float]], rounds: int, seed: int = 0, fixed: int | None = None
) -> float:
    """Expected tokens a second. each: for each sequence, how likely its drafts are right."""
    luck = Random(seed)
    depths = BatchDepth(N_CTX, 512, MOST if fixed is None else fixed, known(machine) if fixed is None else None)
    sequences = writers(depths, len(each))
    tokens = seconds = 0.0
    n = len(each)
    for _ in range(rounds):
        depth = depths.choose(sequences)
        for writer, chances in zip(sequences, each, strict=True):
            hits = [luck.random() < chance for chance in chances[:depth]]
            writer.made = writer.drafts = [0] * depth
            writer.confidences = [0.5] * depth
            writer.right = [*hits, False].index(False)
            tokens += window(chances, depth)
        draft, verify = machine.draft(n, depth), machine.verify(n, depth)
        seconds += draft + verify
        depths.observe(sequences, depth, machine.timing(draft, luck), machine.timing(verify, luck))
    return tokens / seconds


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_the_chosen_depths_bring_nearly_as_much_as_the_best_fixed_depth(n: int, rate: float) -> None:
    shares = []
    for share in (0.05, 0.2, 0.5, 0.9):
        machine = Machine(share)
        each = [falling(rate, 0.98)] * n
        best = max(simulate(machine, each, 1, fixed=depth) for depth in range(MOST + 1))
        shares.append(simulate(machine, each, 400) / best)
    assert min(shares) > 0.94
    assert sum(shares) / len(shares) > 0.955


def test_sequences_of_different_acceptance_share_the_depth_that_is_best_for_all() -> None:
    machine = Machine(0.1)
    each = [falling(0.95, 0.98)] * 6 + [falling(0.1, 0.9)] * 2
    best = max(simulate(machine, each, 1, fixed=depth) for depth in range(MOST + 1))
    assert simulate(machine, each, 400) > 0.95 * best


def test_the_same_rounds_lead_to_the_same_depths() -> None:
    machine = Machine(0.3)
    assert simulate(machine, [falling(0.7, 0.95)] * 4, 200, 5) == simulate(machine, [falling(0.7, 0.95)] * 4, 200, 5)


def test_plain_rounds_are_left_when_acceptance_has_become_better() -> None:
    machine = Machine(0.1)
    depths = BatchDepth(N_CTX, 512, MOST, known(machine))
    sequences = writers(depths, 4)
    chosen = []
    for number in range(1500):
        depth = depths.choose(sequences)
        chosen.append(depth)
        for writer in sequences:
            writer.made = writer.drafts = [0] * depth
            writer.right = 0 if number < 500 else depth
        depths.observe(sequences, depth, 0.01 * machine.draft(4, depth), 0.01 * machine.verify(4, depth))
    assert sum(chosen[400:500]) < 20
    assert min(chosen[-100:]) >= 4


def test_one_sequence_has_the_depth_of_its_own_policy() -> None:
    machine = Machine(0.2)
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


def test_a_fixed_depth_is_that_of_all_and_no_more_than_there_are_rows_and_room() -> None:
    depths = BatchDepth(100, 24, 5, None)
    assert isinstance(depths.open(0.7), FixedDepth)
    assert [depths.choose(writers(depths, n)) for n in (1, 2, 4, 6, 12, 24)] == [5, 5, 5, 3, 1, 0]
    assert depths.choose(writers(depths, 3, cap=2)) == 2
    near = writers(depths, 3)
    near[1].n_past = 97
    assert depths.choose(near) == 2


def test_rounds_of_several_tell_one_by_itself_nothing_of_what_its_rounds_cost() -> None:
    costs = known(Machine(0.2))
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
