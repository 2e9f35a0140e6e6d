"""Machines and texts for depth policies to be tried on: what each round costs, and which drafts are right.

An outcome is told in expectations: of the depths that a policy chose, the tokens they bring and the seconds they take
on average. The policy itself meets noisy seconds and drafts that are right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from pymtp.drafting.depth import Depth

MOST = 8  # the deepest that drafts go here

Chances = Sequence[float]
UNSURE = [0.5] * MOST  # probabilities that tell nothing

# a round's number, and luck → for each draft how likely it is right, and the head's probability of it
Text = Callable[[int, Random], tuple[Chances, Sequence[float]]]


@dataclass(frozen=True)
class Machine:
    """Seconds of a round. Timings spread by `spread` (lognormal), a share of `outliers` takes ten times as long.

    draft[n]: of n draft steps. verify[n]: of 1+n rows. build: of a graph, for the first round with so many of either.
    change: of either, where the round before had another number of it: caches are cold.
    """

    draft: tuple[float, ...]
    verify: tuple[float, ...]
    build: float = 0.0005
    change: float = 0.0
    spread: float = 0.05
    outliers: float = 0.05

    def seconds(self, drafted: int, verified: int) -> float:
        """Of a round whose graphs are there."""
        return self.draft[drafted] + self.verify[verified]

    def timing(self, seconds: float, luck: Random) -> float:
        """What a clock would say."""
        seconds *= math.exp(luck.gauss(0, self.spread))
        return 10 * seconds if luck.random() < self.outliers else seconds


@dataclass
class Outcome:
    """tokens, seconds: expected, of what was chosen. came: tokens that came. depths: drafts made, round by round."""

    tokens: float = 0.0
    seconds: float = 0.0
    came: int = 0
    depths: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Expected tokens a second."""
        return self.tokens / self.seconds


def window(chances: Chances, n: int) -> float:
    """Expected tokens of a round of n drafts."""
    return 1 + sum(math.prod(chances[: i + 1]) for i in range(n))


def steady(chances: Chances) -> Text:
    """A text that stays as it is, and a head that is as sure of one draft as of the next."""
    return lambda _round, _luck: (chances, UNSURE)


def turning(before: Chances, after: Chances, turn: int) -> Text:
    """A text that changes at round `turn`; the head does not tell."""
    return lambda round, _luck: (before if round < turn else after, UNSURE)


def telling(chances: Chances, *, sharpness: float, bend: float) -> Text:
    """A text whose drafts differ, at the same average, and a head that knows: its probability of a draft is a bent
    measure of how likely it is right. sharpness near 0: drafts are right or wrong almost for sure."""

    def text(_round: int, luck: Random) -> tuple[Chances, Sequence[float]]:
        each = [luck.betavariate(sharpness * c, sharpness * (1 - c)) for c in chances]
        return each, [c**bend for c in each]

    return text


def babbling(chances: Chances) -> Text:
    """A text whose head is sure of anything at random."""
    return lambda _round, luck: (chances, [luck.random() ** 0.5 for _ in chances])


def simulate(
    policy: Depth, machine: Machine, text: Text, *, rounds: int | None = None, tokens: int | None = None, seed: int = 0
) -> Outcome:
    """Runs a policy for so many rounds, or until so many tokens are out."""
    luck = Random(seed)
    outcome = Outcome()
    built: set[tuple[str, int]] = {("draft", 0)}
    before = (0, 0)
    for number in range(rounds or tokens or 0):
        if tokens is not None and outcome.came >= tokens:
            break
        room = MOST if tokens is None else min(MOST, tokens - outcome.came - 1)
        chances, sure = text(number, luck)
        hits = [luck.random() < chance for chance in chances]
        drafted = policy.choose(room, number)
        verified = policy.keep(sure[:drafted])
        right = [*hits, False].index(False)
        accepted = min(verified, right)
        build = [machine.build * (graph not in built) for graph in (("draft", drafted), ("verify", verified))]
        built |= {("draft", drafted), ("verify", verified)}
        build[0] += machine.change * (0 < drafted != before[0])
        build[1] += machine.change * (verified != before[1])
        before = (drafted, verified)
        draft_seconds = machine.timing(machine.draft[drafted], luck) + build[0]
        verify_seconds = machine.timing(machine.verify[verified], luck) + build[1]
        policy.observe(
            drafted, verified, min(right, verified + 1, drafted), draft_seconds, verify_seconds, sure[:drafted]
        )
        outcome.tokens += window(chances, verified)
        outcome.seconds += machine.seconds(drafted, verified) + sum(build)
        outcome.came += 1 + accepted
        outcome.depths.append(drafted)
    return outcome


def best_fixed(machine: Machine, chances: Chances) -> tuple[int, float]:
    """The best depth, plain decoding included, and its tokens a second."""
    rates = [window(chances, n) / machine.seconds(n, n) for n in range(MOST + 1)]
    depth = max(range(MOST + 1), key=rates.__getitem__)
    return depth, rates[depth]


def falling(first: float, fade: float) -> Chances:
    """Acceptance of each position: `first`, and each a little lower than the one before it."""
    return [first * fade**i for i in range(MOST)]


def _draw(family: str, luck: Random) -> list[float]:
    """The cost of verifying 1, 2, … rows, against that of one."""
    rows = range(MOST + 1)
    if family == "small":  # arithmetic decides: a small model on a CPU
        share = luck.uniform(0.5, 1)
        return [1 + share * r for r in rows]
    if family == "weight-bound":  # reading the weights decides: a larger one
        share = luck.uniform(0.08, 0.3)
        return [1 + share * r for r in rows]
    if family == "steps":  # other kernels from 2 rows and from 4 on
        two, four, share = luck.uniform(0.1, 1), luck.uniform(0, 0.6), luck.uniform(0, 0.15)
        return [1 + two * (r >= 1) + four * (r >= 3) + share * max(0, r - 3) for r in rows]
    if family == "GPU":  # nearly flat
        share = luck.uniform(0, 0.03)
        return [1 + share * r + 0.1 * max(0, r - 7) for r in rows]
    assert family == "experts"  # the first rows each bring their own experts
    more, reach = luck.uniform(0.8, 2.2), luck.uniform(2, 5)
    return [1 + more * (1 - math.exp(-r / reach)) for r in rows]


FAMILIES = ("small", "weight-bound", "steps", "GPU", "experts")


def sample_machine(family: str, luck: Random) -> Machine:
    """A machine of a family: one row takes 2 to 125 ms, a draft step 3 to 15% of that."""
    one = 10 ** luck.uniform(-2.7, -0.9)
    verify = tuple(one * cost for cost in _draw(family, luck))
    step, start = one * luck.uniform(0.03, 0.15), one * luck.uniform(0, 0.05)
    return Machine((0.0, *(start + step * n for n in range(1, MOST + 1))), verify)


def quiet(machine: Machine) -> Machine:
    """The same machine with nothing else running on it."""
    return replace(machine, spread=0.0, outliers=0.0)


def replay(policy: Depth, machine: Machine, right: Sequence[int], sure: Sequence[Sequence[float]] | None) -> float:
    """Tokens a second on a recorded text: right[p] drafts made at position p were right, with the head's probabilities
    sure[p]."""
    luck = Random(0)
    position, seconds = 0, 0.0
    built: set[tuple[str, int]] = {("draft", 0)}
    while position < len(right):
        drafted = policy.choose(min(MOST, len(right) - position - 1), position)
        confidences = sure[position][:drafted] if sure else ()
        verified = policy.keep(confidences) if sure else drafted
        accepted = min(verified, right[position])
        told = min(right[position], verified + 1, drafted)
        build = [machine.build * (graph not in built) for graph in (("draft", drafted), ("verify", verified))]
        built |= {("draft", drafted), ("verify", verified)}
        draft_seconds = machine.timing(machine.draft[drafted], luck) + build[0]
        verify_seconds = machine.timing(machine.verify[verified], luck) + build[1]
        policy.observe(drafted, verified, told, draft_seconds, verify_seconds, confidences)
        seconds += machine.seconds(drafted, verified) + sum(build)
        position += 1 + accepted
    return len(right) / seconds
