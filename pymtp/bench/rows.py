"""The rows bench: what a verification of so many rows takes, and a chain of drafts, against one row; where time goes.

A round runs every number of rows and every chain once, one right after the other, in a context that was emptied. Each
is launched a few times: once for graphs and caches, then to be timed, then to be timed by operation, which adds looks
at a clock. Memory is read in each round, too, by as many threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pymtp.bench.order import in_turn
from pymtp.context.context import Context
from pymtp.context.inspect import Counters, Operation, memory_seconds
from pymtp.context.options import draft_vocab_size
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

ROWS, DRAFT = "rows", "draft"
PROMPT = 64  # tokens before the rows
LAUNCHES = 3  # of each in a round, timed; and as many timed by operation
READS = 4  # of the memory in a round, the first of which finds cold caches and pages


@dataclass(frozen=True)
class Settings:
    """What is measured. rows, steps: numbers of rows and of draft steps. memory: bytes that are read, 0 for none.
    alike: all rows are of one token, so that they choose much the same experts. model: its name, for the record.
    placing: further keywords of Model."""

    model: str
    rows: tuple[int, ...]
    steps: tuple[int, ...]
    rounds: int
    memory: int
    threads: int
    gpu_layers: int
    cache_type: str
    alike: bool = False
    placing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """A launch of n rows or of a chain of n steps. round: from 0. seconds: each time. observed_seconds: each time while
    it was timed by operation. operations: of these launches, each operation's median; outside_seconds: of the rest."""

    round: int
    what: str
    n: int
    seconds: list[float]
    observed_seconds: list[float]
    operations: list[Operation]
    outside_seconds: float


@dataclass(frozen=True)
class Reads:
    """Seconds of reading the memory, each time."""

    round: int
    seconds: list[float]


class RowsContext(Protocol):
    """What the bench asks of a context; see context.Context."""

    @property
    def n_past(self) -> int: ...
    @property
    def counters(self) -> Counters: ...
    def set_sampling(self, sampler: Sampler) -> None: ...
    def prefill(self, tokens: Sequence[int]) -> object: ...
    def draft_chain(self, token: int, n: int) -> object: ...
    def verify_chain(self, tokens: Sequence[int]) -> object: ...
    def rewind(self, n_keep: int) -> None: ...
    def clear(self) -> None: ...
    def time_operations(self, on: bool = True) -> None: ...
    def operations(self) -> list[Operation]: ...


def open_context(model: Model, settings: Settings) -> Context:
    """A context for all of the bench. Raises NativeError when there is no memory for it."""
    most = max((max(settings.rows) - 1, *settings.steps)) if model.mtp else 0
    rounds = (1 + 2 * LAUNCHES) * (len(settings.rows) + len(settings.steps) + 1)
    return Context(
        model,
        n_ctx=PROMPT + rounds + most + 1,
        n_threads=settings.threads,
        type_k=settings.cache_type,
        type_v=settings.cache_type,
        draft_tokens=most,
        # a number, not "auto": no text is written that could tell which size is better
        draft_vocab=draft_vocab_size("auto", model.n_vocab) or "all",
    )


def planned(settings: Settings, turn: int) -> tuple[tuple[str, int], ...]:
    """What a round measures, in order."""
    return in_turn([(ROWS, n) for n in settings.rows] + [(DRAFT, n) for n in settings.steps], turn)


@dataclass
class RowsBench:
    """A run. However it ends, what is done is in `measurements` and `reads`; `failed` says what went wrong.

    tokens: for rows and prompts, at least PROMPT. on_start: called before each measurement with what it is, how many
    rows or steps, and the seconds left (None: not known yet). on_done: called after it.
    """

    settings: Settings
    context: RowsContext
    tokens: Sequence[int]
    on_start: Callable[[str, int, float | None], object] = lambda what, n, left: None
    on_done: Callable[[Measurement], object] = lambda measurement: None
    read: Callable[[int, int, int], list[float]] = memory_seconds
    clock: Callable[[], float] = time.perf_counter
    measurements: list[Measurement] = field(default_factory=list)
    reads: list[Reads] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Measures all rounds."""
        self.context.set_sampling(Sampler(SamplingParams()))
        started = self.clock()
        total = self.settings.rounds * len(planned(self.settings, 0))
        for turn in range(self.settings.rounds):
            self._read_memory(turn)
            self.context.clear()
            self.context.prefill(self.tokens[:PROMPT])
            for what, n in planned(self.settings, turn):
                done = len(self.measurements)
                left = (self.clock() - started) / done * (total - done) if done else None
                self.on_start(what, n, left)
                self.measurements.append(self._measure(turn, what, n))
                self.on_done(self.measurements[-1])

    def _read_memory(self, turn: int) -> None:
        if not self.settings.memory or self.failed:
            return
        try:
            seconds = self.read(self.settings.memory, self.settings.threads, READS)
        except NativeError as error:
            self.failed.append(f"reading memory: {error}")
        else:
            self.reads.append(Reads(turn, seconds[1:]))

    def _measure(self, turn: int, what: str, n: int) -> Measurement:
        launch = self._verify if what == ROWS else self._draft
        if what == DRAFT:
            self._verify(2)  # the head has nothing to catch up with then, as after drafts
        launch(n)
        seconds = [launch(n) for _ in range(LAUNCHES)]
        self.context.time_operations()
        observed = [(launch(n), self.context.operations()) for _ in range(LAUNCHES)]
        self.context.time_operations(False)
        by_kind: dict[tuple[str, str], list[Operation]] = {}
        for _, operations in observed:
            for o in operations:
                by_kind.setdefault((o.op, o.weights), []).append(o)
        medians = [sorted(found, key=lambda o: o.seconds)[len(found) // 2] for found in by_kind.values()]
        outside = statistics.median(s - sum(o.seconds for o in operations) for s, operations in observed)
        return Measurement(turn, what, n, seconds, [s for s, _ in observed], medians, outside)

    def _verify(self, rows: int) -> float:
        n_past, before = self.context.n_past, self.context.counters.verify_seconds
        different = 1 if self.settings.alike else len(self.tokens)
        self.context.verify_chain([self.tokens[(n_past + i) % different] for i in range(rows)])
        seconds = self.context.counters.verify_seconds - before
        if rows > 1:
            self.context.rewind(n_past + 1)
        return seconds

    def _draft(self, steps: int) -> float:
        before = self.context.counters.draft_seconds
        self.context.draft_chain(self.tokens[0], steps)
        return self.context.counters.draft_seconds - before
