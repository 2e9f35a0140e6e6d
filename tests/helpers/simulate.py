"""Simulated machines and texts for tests of depth policies: the cost of each round, and which drafts are right.

An outcome has expectations: the mean tokens and the mean seconds of the depths that a policy chose. The policy itself
sees noisy seconds, and drafts that are right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from pymtp.drafting.depth import AutoDepth, DepthPolicy, RoundCosts, RoundTime, SequenceDepth
from pymtp.drafting.warm_up import DEPTHS

MOST = 8  # the maximum depth

Chances = Sequence[float]
UNSURE = [0.5] * MOST  # uninformative probabilities

# (round number, random numbers) → for each draft its true acceptance, and the head's probability
Text = Callable[[int, Random], tuple[Chances, Sequence[float]]]


@dataclass(frozen=True)
class Machine:
    """The seconds of a round.

    Timings spread by `spread` (lognormal), and a share of `outliers` takes ten times as long.
    draft[n]: n draft steps. verify[n]: 1 + n rows. build: building a graph, in the first round with a number of steps
    or rows. change: extra seconds of a phase with another number than in the round before: caches are cold.
    """

    draft: tuple[float, ...]
    verify: tuple[float, ...]
    build: float = 0.0005
    change: float = 0.0
    spread: float = 0.05
    outliers: float = 0.05

    def seconds(self, drafted: int, verified: int) -> float:
        """Return the seconds of a round whose graphs are built."""
        return self.draft[drafted] + self.verify[verified]

    def timing(self, seconds: float, luck: Random) -> float:
        """Return `seconds` with noise, as a clock would show them."""
        seconds *= math.exp(luck.gauss(0, self.spread))
        return 10 * seconds if luck.random() < self.outliers else seconds


@dataclass
class Outcome:
    """The result of a simulation.

    tokens, seconds: the expectations for the chosen depths. came: the generated tokens. depths: drafts of each round.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    came: int = 0
    depths: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the expected tokens/s."""
        return self.tokens / self.seconds


def expected_tokens(chances: Chances, n: int) -> float:
    """Return the expected tokens of a round of n drafts."""
    return 1 + sum(math.prod(chances[: i + 1]) for i in range(n))


def steady_text(chances: Chances) -> Text:
    """Return a text that does not change, with a head that has the same confidence in all drafts."""
    return lambda _round, _luck: (chances, UNSURE)


def text_that_changes(before: Chances, after: Chances, turn: int) -> Text:
    """Return a text that changes at round `turn`; the head's confidence does not show it."""
    return lambda round, _luck: (before if round < turn else after, UNSURE)


def text_with_informative_head(chances: Chances, *, sharpness: float, bend: float) -> Text:
    """Return a text whose drafts differ in acceptance, with the same mean, and a head that knows it.

    The head's probability of a draft is a bent measure of its true acceptance. With a sharpness near 0, drafts are
    almost certainly right or wrong.
    """

    def text(_round: int, luck: Random) -> tuple[Chances, Sequence[float]]:
        each = [luck.betavariate(sharpness * c, sharpness * (1 - c)) for c in chances]
        return each, [c**bend for c in each]

    return text


def text_with_random_confidence(chances: Chances) -> Text:
    """Return a text with a head of random confidence."""
    return lambda _round, luck: (chances, [luck.random() ** 0.5 for _ in chances])


def new_policy(costs: RoundCosts | None = None, most: int = MOST) -> SequenceDepth:
    """Return the policy of the first sequence of a new LLM. costs: the costs of rounds; None: they are not known."""
    return AutoDepth(costs or RoundCosts(), most).add_sequence(0.0)


def next_policy(policy: SequenceDepth) -> SequenceDepth:
    """Return the policy of the next sequence of the LLM."""
    return policy.policy.add_sequence(0.0)


def measured_costs(machine: Machine) -> RoundCosts:
    """Return RoundCosts that begin with the machine's true seconds."""
    costs = RoundCosts()
    costs.begin({(1, depth): RoundTime(machine.draft[depth], machine.verify[depth]) for depth in DEPTHS})
    return costs


def simulate(
    policy: DepthPolicy,
    machine: Machine,
    text: Text,
    *,
    rounds: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
) -> Outcome:
    """Run a policy for a number of rounds, or until a number of tokens."""
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
        verified = policy.n_to_verify(sure[:drafted])
        right = [*hits, False].index(False)
        accepted = min(verified, right)
        build = [machine.build * (graph not in built) for graph in (("draft", drafted), ("verify", verified))]
        built |= {("draft", drafted), ("verify", verified)}
        build[0] += machine.change * (0 < drafted != before[0])
        build[1] += machine.change * (verified != before[1])
        before = (drafted, verified)
        draft_seconds = machine.timing(machine.draft[drafted], luck) + build[0]
        verify_seconds = machine.timing(machine.verify[verified], luck) + build[1]
        policy.observe(drafted, verified, min(right, verified + 1, drafted), draft_seconds, verify_seconds)
        outcome.tokens += expected_tokens(chances, verified)
        outcome.seconds += machine.seconds(drafted, verified) + sum(build)
        outcome.came += 1 + accepted
        outcome.depths.append(drafted)
    return outcome


def best_fixed(machine: Machine, chances: Chances) -> tuple[int, float]:
    """Return the best depth, plain decoding included, and its tokens/s."""
    rates = [expected_tokens(chances, n) / machine.seconds(n, n) for n in range(MOST + 1)]
    depth = max(range(MOST + 1), key=rates.__getitem__)
    return depth, rates[depth]


def falling_rates(first: float, fade: float) -> Chances:
    """Return the acceptance of each position: `first`, and slightly less at each further one."""
    return [first * fade**i for i in range(MOST)]


def _draw(family: str, luck: Random) -> list[float]:
    """Return the random cost of verifying 1, 2, … rows, relative to that of one row."""
    rows = range(MOST + 1)
    if family == "small":  # arithmetic dominates: a small model on a CPU
        share = luck.uniform(0.5, 1)
        return [1 + share * r for r in rows]
    if family == "weight-bound":  # reading the weights dominates: a larger model
        share = luck.uniform(0.08, 0.3)
        return [1 + share * r for r in rows]
    if family == "steps":  # other kernels from 2 and from 4 rows
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
    """Return a random machine of a family: one row takes 2 to 125 ms, a draft step 3 to 15% of that."""
    one = 10 ** luck.uniform(-2.7, -0.9)
    verify = tuple(one * cost for cost in _draw(family, luck))
    step, start = one * luck.uniform(0.03, 0.15), one * luck.uniform(0, 0.05)
    return Machine((0.0, *(start + step * n for n in range(1, MOST + 1))), verify)


def without_noise(machine: Machine) -> Machine:
    """Return the same machine without noise."""
    return replace(machine, spread=0.0, outliers=0.0)


def replay(
    policy: DepthPolicy, machine: Machine, right: Sequence[int], sure: Sequence[Sequence[float]] | None
) -> float:
    """Return the tokens/s of a policy on a recorded text.

    right[p]: the number of right drafts at position p. sure[p]: the head's probabilities there.
    """
    luck = Random(0)
    position, seconds = 0, 0.0
    built: set[tuple[str, int]] = {("draft", 0)}
    while position < len(right):
        drafted = policy.choose(min(MOST, len(right) - position - 1), position)
        confidences = sure[position][:drafted] if sure else ()
        verified = policy.n_to_verify(confidences) if sure else drafted
        accepted = min(verified, right[position])
        told = min(right[position], verified + 1, drafted)
        build = [machine.build * (graph not in built) for graph in (("draft", drafted), ("verify", verified))]
        built |= {("draft", drafted), ("verify", verified)}
        draft_seconds = machine.timing(machine.draft[drafted], luck) + build[0]
        verify_seconds = machine.timing(machine.verify[verified], luck) + build[1]
        policy.observe(drafted, verified, told, draft_seconds, verify_seconds)
        seconds += machine.seconds(drafted, verified) + sum(build)
        position += 1 + accepted
    return len(right) / seconds
