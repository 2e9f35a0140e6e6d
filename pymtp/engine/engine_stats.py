"""What an engine is doing, in figures."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pymtp.prefix_cache.records import PrefixFigures

RECENT = 256  # rounds that tokens_per_second is taken over


@dataclass(frozen=True)
class Figures:
    """running, waiting: requests with a sequence, and without one yet. finished, failed, cancelled: those that ended.
    tokens: that were generated. tokens_per_second: over the last 256 rounds.
    rounds: launches of the target that verified. rows: of these launches, padding included.
    drafted, accepted: drafts that were verified, and those that the target agreed with.
    drafted_per_position, accepted_per_position: of them, the first, second, … of a sequence's round.
    depths: rounds by the drafts of each sequence in them. sequences: rounds by the sequences in them.
    read: tokens of prompts that were computed. prefixes: what prompts may go on from, and did.
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
        """accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def rows_per_round(self) -> float:
        """rows / rounds; 0 without rounds."""
        return self.rows / self.rounds if self.rounds else 0.0


class Counts:
    """What was done since the engine was made."""

    def __init__(self) -> None:
        self.finished = self.failed = self.cancelled = 0
        self._tokens = 0
        self._drafts: Counter[tuple[int, int]] = Counter()  # rounds of a sequence, by drafts verified and accepted
        self._rounds: Counter[tuple[int, int]] = Counter()  # by sequences and rows of each
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def add_drafts(self, drafted: int, accepted: int) -> None:
        """A sequence's part of a round."""
        self._drafts[drafted, accepted] += 1

    def add_round(self, n: int, rows: int, tokens: int, now: float) -> None:
        """A round of n sequences with so many rows each."""
        self._rounds[n, rows] += 1
        self._tokens += tokens
        self._recent.append((now, tokens))

    def add_tokens(self, n: int) -> None:
        """Tokens that came with a prompt, or closed the thinking of a text."""
        self._tokens += n

    def figures(self, running: int, waiting: int, read: int, prefixes: PrefixFigures) -> Figures:
        """A snapshot."""
        recent = list(self._recent)
        seconds = recent[-1][0] - recent[0][0] if recent else 0.0
        depths: Counter[int] = Counter()
        sequences: Counter[int] = Counter()
        rounds, drafts = self._rounds.copy(), self._drafts.copy()
        for (n, rows), times in rounds.items():
            depths[rows - 1] += times
            sequences[n] += times
        drafted = _per_position((made, times) for (made, _), times in drafts.items())
        accepted = _per_position((right, times) for (_, right), times in drafts.items())
        return Figures(
            running=running,
            waiting=waiting,
            finished=self.finished,
            failed=self.failed,
            cancelled=self.cancelled,
            tokens=self._tokens,
            # the first of them only says when the others began
            tokens_per_second=sum(tokens for _, tokens in recent[1:]) / seconds if seconds else 0.0,
            rounds=sum(rounds.values()),
            rows=sum(n * rows * times for (n, rows), times in rounds.items()),
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
    """How often there was a first, second, … element in sequences of these lengths, each with how often it came."""
    counts = Counter[int]()
    for length, times in lengths:
        counts[length] += times
    return tuple(sum(counts[n] for n in counts if n > i) for i in range(max(counts, default=0)))
