"""The rows bench: the time of verifications of n rows and of draft chains, relative to one row, and by operation.

A round runs every number of rows and every chain once, one right after the other, in a cleared context. Each is decoded
several times: once to warm up graphs and caches, then with a timer, then with a timer for each operation, which adds
clock calls. Each round also times reads of memory by the same number of threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pymtp.bench.order import balanced_order
from pymtp.context.context import Context
from pymtp.context.inspect import Counters, Operation, memory_seconds
from pymtp.context.options import draft_vocab_size
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

ROWS, DRAFT = "rows", "draft"
PROMPT = 64  # tokens before the rows
REPEATS = 3  # timed decodes of each in a round, and again so many timed by operation
READS = 4  # reads of memory in a round; the first one, with cold caches and pages, is dropped


@dataclass(frozen=True)
class RowsSettings:
    """Settings of a rows bench.

    model: its name, for the report. rows, steps: numbers of rows, and of drafts of a chain. memory: bytes that are
    read, 0 for none. alike: all rows have the same token, so they use mostly the same experts.
    placing: further keywords of Model.
    """

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
class RowsMeasurement:
    """The measurement of a verification of n rows, or of a chain of n drafts.

    round: from 0. what: ROWS or DRAFT. seconds: of each decode. observed_seconds: of each decode that was timed by
    operation. operations: the median of each operation in these; outside_seconds: the median of the remaining time.
    """

    round: int
    what: str
    n: int
    seconds: list[float]
    observed_seconds: list[float]
    operations: list[Operation]
    outside_seconds: float


@dataclass(frozen=True)
class MemoryReads:
    """The seconds of each read of the memory in a round."""

    round: int
    seconds: list[float]


class RowsContext(Protocol):
    """The methods of pymtp.context.context.Context that the bench needs."""

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


def open_context(model: Model, settings: RowsSettings) -> Context:
    """Open the context of the bench. Raises NativeError if there is too little memory for it."""
    n_drafts = max((max(settings.rows) - 1, *settings.steps)) if model.mtp else 0
    n_decodes = (1 + 2 * REPEATS) * (len(settings.rows) + len(settings.steps) + 1)
    return Context(
        model,
        n_ctx=PROMPT + n_decodes + n_drafts + 1,
        n_threads=settings.threads,
        type_k=settings.cache_type,
        type_v=settings.cache_type,
        draft_tokens=n_drafts,
        # a number, not "auto": without generated text, "auto" could not find the best size
        draft_vocab=draft_vocab_size("auto", model.n_vocab) or "all",
    )


def planned(settings: RowsSettings, turn: int) -> tuple[tuple[str, int], ...]:
    """List the measurements of a round in order."""
    return balanced_order([(ROWS, n) for n in settings.rows] + [(DRAFT, n) for n in settings.steps], turn)


@dataclass
class RowsBench:
    """A run of a rows bench. `measurements`, `reads` and `failed` hold its results, also after an interruption.

    tokens: for rows and prompts, at least PROMPT. on_start: called before each measurement with ROWS or DRAFT, their
    number, and the seconds left (None if not known yet). on_done: called after each measurement.
    """

    settings: RowsSettings
    context: RowsContext
    tokens: Sequence[int]
    on_start: Callable[[str, int, float | None], object] = lambda kind, n, left: None
    on_done: Callable[[RowsMeasurement], object] = lambda measurement: None
    read: Callable[[int, int, int], list[float]] = memory_seconds
    clock: Callable[[], float] = time.perf_counter
    measurements: list[RowsMeasurement] = field(default_factory=list)
    reads: list[MemoryReads] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Measure all rounds."""
        self.context.set_sampling(Sampler(SamplingParams()))
        started = self.clock()
        total = self.settings.rounds * len(planned(self.settings, 0))
        for turn in range(self.settings.rounds):
            self._read_memory(turn)
            self.context.clear()
            self.context.prefill(self.tokens[:PROMPT])
            for kind, n in planned(self.settings, turn):
                n_done = len(self.measurements)
                seconds_left = (self.clock() - started) / n_done * (total - n_done) if n_done else None
                self.on_start(kind, n, seconds_left)
                self.measurements.append(self._measure(turn, kind, n))
                self.on_done(self.measurements[-1])

    def _read_memory(self, turn: int) -> None:
        if not self.settings.memory or self.failed:
            return
        try:
            seconds = self.read(self.settings.memory, self.settings.threads, READS)
        except NativeError as error:
            self.failed.append(f"reading memory: {error}")
        else:
            self.reads.append(MemoryReads(turn, seconds[1:]))

    def _measure(self, turn: int, kind: str, n: int) -> RowsMeasurement:
        decode = self._verify if kind == ROWS else self._draft
        if kind == DRAFT:
            self._verify(2)  # then the head is up to date, as after a round with drafts
        decode(n)
        seconds = [decode(n) for _ in range(REPEATS)]
        self.context.time_operations()
        observed = [(decode(n), self.context.operations()) for _ in range(REPEATS)]
        self.context.time_operations(False)
        by_operation: dict[tuple[str, str], list[Operation]] = {}
        for _, operations in observed:
            for o in operations:
                by_operation.setdefault((o.op, o.weights), []).append(o)
        medians = [sorted(same, key=lambda o: o.seconds)[len(same) // 2] for same in by_operation.values()]
        outside = statistics.median(s - sum(o.seconds for o in operations) for s, operations in observed)
        return RowsMeasurement(turn, kind, n, seconds, [s for s, _ in observed], medians, outside)

    def _verify(self, rows: int) -> float:
        n_past, before = self.context.n_past, self.context.counters.verify_seconds
        n_different = 1 if self.settings.alike else len(self.tokens)
        self.context.verify_chain([self.tokens[(n_past + i) % n_different] for i in range(rows)])
        seconds = self.context.counters.verify_seconds - before
        if rows > 1:
            self.context.rewind(n_past + 1)
        return seconds

    def _draft(self, steps: int) -> float:
        before = self.context.counters.draft_seconds
        self.context.draft_chain(self.tokens[0], steps)
        return self.context.counters.draft_seconds - before
