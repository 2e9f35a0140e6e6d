"""Simulated batches for tests of the depth policy: rounds of `pymtp.engine.rounds` on simulated machines and texts.

A policy sees noisy seconds, and is judged by the seconds without noise. Whether the draft of a token is right depends
on seed, text and token alone, so that all depths have the same luck.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from pymtp.drafting.depth import RoundCosts, RoundSeconds, RoundTime
from pymtp.drafting.warm_up import DEPTHS
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.rounds import DecodeState, run_round
from pymtp.stats import DraftStats

MOST = 7
N_CTX = 100_000
RIGHT, WRONG = 1, 2  # tokens; the first is always the target's

# a token's position in its text → the acceptance of a draft of it
Text = Callable[[int], float]


@dataclass(frozen=True)
class Machine:
    """The seconds of decodes, by their rows: linear between the given rows, and on the last line beyond them.

    verify: decodes of the target. step: steps of a draft chain. each: extra seconds per sequence in a decode of the
    target. spread: the spread of timings, lognormal. outliers: the share of timings that takes 2 to 10 times as long.
    change: the extra share of a round after a round of another shape.
    build: the extra share of the first decode with that many rows: its memory is new.
    """

    verify: Mapping[int, float]
    step: Mapping[int, float]
    each: float = 0.0
    spread: float = 0.04
    outliers: float = 0.02
    change: float = 0.03
    build: float = 1.0

    def draft_seconds(self, n: int, depth: int) -> float:
        return depth * _line(self.step, n) if depth else 0.0

    def verify_seconds(self, n: int, depth: int) -> float:
        return _line(self.verify, n * (1 + depth)) + self.each * n

    def round_seconds(self, n: int, depth: int) -> float:
        return self.draft_seconds(n, depth) + self.verify_seconds(n, depth)

    def timing(self, seconds: float, luck: Random) -> float:
        """Return `seconds` with noise, as a clock would show them."""
        seconds *= math.exp(luck.gauss(0, self.spread))
        return luck.uniform(2, 10) * seconds if luck.random() < self.outliers else seconds


def _line(points: Mapping[int, float], x: int) -> float:
    known = sorted(points)
    if x <= known[0]:
        return points[known[0]]
    right = next((i for i in range(1, len(known)) if known[i] >= x), len(known) - 1)
    a, b = known[right - 1], known[right]
    return points[a] + (points[b] - points[a]) * (x - a) / (b - a)


def steady(rate: float) -> Text:
    return lambda _: rate


def phases(low: float, high: float, length: int, offset: int = 0) -> Text:
    """Return a text of hard and easy passages of `length` tokens each."""
    return lambda place: high if (place + offset) // length % 2 else low


class Rounds:
    """A simulated context for `run_round`: its clock runs with noise, `seconds` without."""

    n_ctx = N_CTX

    def __init__(self, machine: Machine, seed: int, most_rows: int) -> None:
        """most_rows: the most rows of earlier decodes."""
        self.machine, self.now, self.seconds = machine, 0.0, 0.0
        self._luck = Random(seed)
        self._most_rows = most_rows
        self._before = (0, 0, 0)  # sequences, drafts and rows
        self._drafted = 0
        # by sequence: whether the draft of each token of its text is right, and its state
        self.texts: dict[int, tuple[list[bool], DecodeState]] = {}

    def clock(self) -> float:
        return self.now

    def _spend(self, seconds: float, longer: float) -> None:
        seconds *= 1 + longer
        self.seconds += seconds
        self.now += self.machine.timing(seconds, self._luck)

    def _right(self, seq: int, n: int) -> int:
        right, state = self.texts[seq]
        chain = right[state.n_past : state.n_past + n]
        return [*chain, False].index(False)

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        self._drafted = n
        self._spend(self.machine.draft_seconds(len(tokens), n), self.machine.change * (n != self._before[1]))
        chains = {}
        for seq in tokens:
            right = self._right(seq, n)
            chains[seq] = ([RIGHT] * right + [WRONG] * (n - right), [0.5] * n)
        return chains

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        depth = max(len(chain) for chain in chains.values()) - 1
        shape = (len(chains), self._drafted, depth)
        rows = len(chains) * (1 + depth)
        longer = self.machine.build if rows > self._most_rows else self.machine.change * (shape != self._before)
        self._spend(self.machine.verify_seconds(len(chains), depth), longer)
        self._most_rows = max(self._most_rows, rows)
        self._before, self._drafted = shape, 0
        found = {}
        for seq, chain in chains.items():
            right = [*(token == RIGHT for token in chain[1:]), False].index(False)
            found[seq] = [RIGHT] * (1 + right)
        return found

    def drafts_over(self, token: int) -> bool:
        return True

    def rewind(self, n_keep: int, seq: int = 0) -> None:
        """Do nothing: it costs no time."""


def measured_rounds(machine: Machine, n: int, luck: Random | None = None, spread: float = 0.05) -> RoundSeconds:
    """Return timed rounds of n sequences, as the warm-up measures them; their errors spread by `spread`."""
    wrong = [math.exp(luck.gauss(0, spread)) if luck else 1.0 for _ in DEPTHS]
    seconds = [(machine.draft_seconds(n, d), machine.verify_seconds(n, d)) for d in DEPTHS]
    return {(n, d): RoundTime(w * a, w * b) for d, w, (a, b) in zip(DEPTHS, wrong, seconds, strict=True)}


def known_costs(machine: Machine) -> RoundCosts:
    """Return RoundCosts that know the rounds of one sequence."""
    costs = RoundCosts()
    costs.begin(measured_rounds(machine, 1))
    return costs


class Batch:
    """A session of an LLM: one batch after the other, with costs and acceptance learned across batches."""

    def __init__(
        self, machine: Machine, n_seq_max: int, *, fixed: int | None = None, timed: bool = True, seed: int = 0
    ) -> None:
        """timed: whether rounds of all sequences were measured before the first batch."""
        self.machine, self._seed, self._numbers = machine, seed, 0
        luck = Random(seed)
        self.depth = BatchDepth(N_CTX, 512, MOST if fixed is None else fixed, RoundCosts() if fixed is None else None)
        self.rounds = Rounds(machine, seed, n_seq_max * (1 + MOST) if timed else 1 + MOST)
        for n in (1, n_seq_max) if timed else (1,):
            self.depth.set_measured_costs(measured_rounds(machine, n, luck))
        self.depths: list[tuple[int, int]] = []  # all rounds: sequences, and verified drafts
        self.max_drafts: dict[int, int] = {}  # by sequence, the maximum drafts of its texts

    def run(self, texts: Sequence[Text], tokens: int, at_once: int, seconds: float = math.inf) -> float:
        """Generate `tokens` tokens of each text, several texts at once, for a limited time, and return the tokens/s.

        Another text begins as soon as one ends.
        """
        rounds, came, began = self.rounds, 0, self.rounds.seconds
        self._numbers = 0  # the same luck in each batch
        waiting, free = deque(texts), list(range(at_once))
        running: list[DecodeState] = []
        while (waiting or running) and rounds.seconds - began < seconds:
            while waiting and free:
                running.append(self._begin(free.pop(0), waiting.popleft(), tokens))
            running.sort(key=lambda state: state.seq)
            rows = run_round(rounds, running, self.depth, rounds.clock)
            self.depths.append((len(running), rows - 1))
            came += sum(len(state.new_tokens) for state in running)
            free += [state.seq for state in running if state.ended]
            running = [state for state in running if not state.ended]
        return came / (rounds.seconds - began)

    def _begin(self, seq: int, text: Text, tokens: int) -> DecodeState:
        state = DecodeState(
            seq,
            RIGHT,
            0,
            tokens_left=tokens,
            is_last=lambda _: False,
            draft_stats=DraftStats(),
            depth=self.depth.add_sequence(0.0),
            max_drafts=self.max_drafts.get(seq),
        )
        self._numbers += 1
        luck = Random(1009 * self._seed + self._numbers)
        self.rounds.texts[seq] = ([luck.random() < text(i) for i in range(tokens + MOST)], state)
        return state


def fixed_rates(
    machine: Machine, texts: Sequence[Text], tokens: int, at_once: int, seed: int, seconds: float = math.inf
) -> list[float]:
    """Return the tokens/s of each fixed depth, measured like Batch.run."""
    batches = [Batch(machine, at_once, fixed=depth, seed=seed) for depth in range(MOST + 1)]
    return [batch.run(texts, tokens, at_once, seconds) for batch in batches]
