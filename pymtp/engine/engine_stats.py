"""The statistics of an engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pymtp.prefix_cache.records import PrefixFigures

RECENT_ROUNDS = 256  # number of rounds that tokens_per_second covers


@dataclass(frozen=True)
class Figures:
    """The statistics of an engine, since it was created.

    running, waiting: number of requests with a sequence, and of requests without one.
    finished, failed, cancelled: number of requests that ended in each of these ways.
    tokens: number of generated tokens.
    tokens_per_second: the speed of generation over the last 256 rounds.
    rounds: number of rounds; each has one verification by the target model.
    rows: number of rows of all verification batches, padding included.
    drafted, accepted: number of drafts that were verified, and of drafts that the target model agreed with.
    drafted_per_position, accepted_per_position: the same numbers for the first, second, … draft of a round.
    depths: number of rounds for each number of drafts per sequence.
    sequences: number of rounds for each number of sequences.
    read: number of prompt tokens that were prefilled, not reused.
    prefixes: the counters of the prefix cache.
    """

    running: int = 0
    waiting: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tokens: int = 0
    tokens_per_second: float = 0.0
    rounds: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    depths: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    read: int = 0
    prefixes: PrefixFigures = field(default_factory=PrefixFigures)

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def rows_per_round(self) -> float:
        """Return rows / rounds; 0 without rounds."""
        return self.rows / self.rounds if self.rounds else 0.0


class EngineStats:
    """The counters of an engine, from which `figures` makes snapshots."""

    def __init__(self) -> None:
        self.finished = self.failed = self.cancelled = 0
        self._tokens = 0
        self._drafts: Counter[tuple[int, int]] = Counter()  # rounds of single sequences, by (verified, accepted) drafts
        self._rounds: Counter[tuple[int, int]] = Counter()  # rounds, by (sequences, rows per sequence)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_ROUNDS)  # end times, and generated tokens

    def add_drafts(self, drafted: int, accepted: int) -> None:
        """Count the verified and the accepted drafts of one sequence in a round."""
        self._drafts[drafted, accepted] += 1

    def add_round(self, n_sequences: int, rows: int, tokens: int, now: float) -> None:
        """Count a round.

        rows: number of rows of each sequence.
        tokens: number of tokens that the round generated.
        now: the time at the end of the round.
        """
        self._rounds[n_sequences, rows] += 1
        self._tokens += tokens
        self._recent.append((now, tokens))

    def add_tokens(self, count: int) -> None:
        """Count tokens that were not generated in a round: the first ones, and those that close a thinking block."""
        self._tokens += count

    def figures(self, running: int, waiting: int, read: int, prefixes: PrefixFigures) -> Figures:
        """Return a snapshot of the statistics."""
        recent = list(self._recent)
        seconds = recent[-1][0] - recent[0][0] if recent else 0.0
        depths: Counter[int] = Counter()
        sequences: Counter[int] = Counter()
        rounds, drafts = self._rounds.copy(), self._drafts.copy()
        for (n_sequences, rows), times in rounds.items():
            depths[rows - 1] += times
            sequences[n_sequences] += times
        drafted = _per_position((made, times) for (made, _), times in drafts.items())
        accepted = _per_position((right, times) for (_, right), times in drafts.items())
        return Figures(
            running=running,
            waiting=waiting,
            finished=self.finished,
            failed=self.failed,
            cancelled=self.cancelled,
            tokens=self._tokens,
            # The tokens of the first recent round were generated before the measured time begins
            tokens_per_second=sum(tokens for _, tokens in recent[1:]) / seconds if seconds else 0.0,
            rounds=sum(rounds.values()),
            rows=sum(n_sequences * rows * times for (n_sequences, rows), times in rounds.items()),
            drafted=sum(drafted),
            accepted=sum(accepted),
            drafted_per_position=drafted,
            accepted_per_position=accepted,
            depths=dict(sorted(depths.items())),
            sequences=dict(sorted(sequences.items())),
            read=read,
            prefixes=prefixes,
        )


def _per_position(lengths: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the number of first, second, … drafts of all rounds.

    lengths: pairs of a number of drafts, and the number of rounds with that many drafts.
    """
    counts = Counter[int]()
    for length, times in lengths:
        counts[length] += times
    return tuple(sum(counts[n] for n in counts if n > i) for i in range(max(counts, default=0)))
