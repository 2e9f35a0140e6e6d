"""The rows bench: the time of verifications of n rows and of chains of n drafts, relative to one row, and by operation.

In each bench round, the context is cleared, and every number of rows and every length of chain is measured once, one
right after the other. A measurement decodes several times: first once, to warm up graphs and caches, then some times
with a timer of the whole, then some times with a timer of each operation, which slows the decode down by its clock
calls. Each bench round also times reads of memory by the same number of threads.
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
REPEATS = 3  # decodes of a measurement that are timed as a whole, and number of those that are timed by operation
READS = 4  # reads of memory in a bench round; the first is not counted, as its caches and pages are cold


@dataclass(frozen=True)
class RowsSettings:
    """Settings of a rows bench.

    model: name of the model, for the report.
    rows: numbers of rows of the verifications to measure.
    steps: numbers of drafts of the chains to measure.
    rounds: number of measurements of each verification and chain.
    memory: number of bytes that a timed read of memory reads; 0 to read none.
    alike: whether all rows of a verification have the same token, so that they use mostly the same experts.
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

    round: index of the bench round.
    what: ROWS for a verification, or DRAFT for a chain.
    n: number of rows, or of drafts.
    seconds: time of each decode that was timed as a whole.
    observed_seconds: time of each decode that was timed by operation.
    operations: median time of each operation in the decodes that were timed by operation.
    outside_seconds: median time outside of all operations in these decodes.
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
    """The seconds of each read of memory in a bench round."""

    round: int
    seconds: list[float]


class RowsContext(Protocol):
    """The methods of Context that the rows bench needs."""

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
    """Make the context for the bench. Raises NativeError if there is too little memory."""
    n_drafts = max((max(settings.rows) - 1, *settings.steps)) if model.mtp else 0
    n_decodes = (1 + 2 * REPEATS) * (len(settings.rows) + len(settings.steps) + 1)
    return Context(
        model,
        n_ctx=PROMPT + n_decodes + n_drafts + 1,
        n_threads=settings.threads,
        type_k=settings.cache_type,
        type_v=settings.cache_type,
        draft_tokens=n_drafts,
        # a fixed size instead of "auto", because "auto" finds the best size only while text is generated
        draft_vocab=draft_vocab_size("auto", model.n_vocab) or "all",
    )


def planned(settings: RowsSettings, turn: int) -> tuple[tuple[str, int], ...]:
    """List the measurements of a bench round in order, as pairs of ROWS or DRAFT and their number. turn: the round."""
    return balanced_order([(ROWS, n) for n in settings.rows] + [(DRAFT, n) for n in settings.steps], turn)


@dataclass
class RowsBench:
    """A rows bench. `measurements`, `reads` and `failed` keep the results if `run` is interrupted.

    tokens: at least PROMPT tokens, for the prompt and the rows.
    on_start: called before each measurement with ROWS or DRAFT, the number of rows or drafts, and the estimated seconds
        until the bench ends (None before the first measurement).
    on_done: called after each measurement.
    read: reads memory and returns the time of each read, see memory_seconds.
    failed: a line for a failed read of memory.
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
        """Run all bench rounds."""
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
            self._verify(2)  # so that the head has processed all tokens, as after a round with drafts
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
