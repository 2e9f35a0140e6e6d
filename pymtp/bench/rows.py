"""The rows bench: the time of verifications of n rows and of chains of n drafts, relative to one row, and by operation.

In each bench round, the context is cleared, and every number of rows and every length of chain is measured once, one
right after the other. A measurement decodes several times: first once, to warm up graphs and caches, then some times
with a timer of the whole, then some times with a timer of each operation, which slows the decode down by its clock
calls. Each bench round also times reads of memory by the same number of threads.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pymtp.bench.corpus import TokenSource
from pymtp.bench.paired import BenchSettings, Group, PairedBench
from pymtp.context.context import Context
from pymtp.context.inspect import Counters, Operation, memory_seconds
from pymtp.context.options import draft_vocab_size
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

ROWS, DRAFT = "rows", "draft"
REPEATS = 3  # decodes of a measurement that are timed as a whole, and number of those that are timed by operation
PART = 2048  # tokens of a prompt between two reports of progress
READS = 4  # reads of memory in a bench round; the first is not counted, as its caches and pages are cold


@dataclass(frozen=True, kw_only=True)
class RowsSettings(BenchSettings):
    """Settings of a rows bench.

    rows: numbers of rows of the verifications to measure.
    steps: numbers of drafts of the chains to measure.
    memory: number of bytes that a timed read of memory reads; 0 to read none.
    alike: whether all rows of a verification have the same token, so that they use mostly the same experts.
    prompt_tokens: number of tokens before the rows.
    """

    rows: tuple[int, ...]
    steps: tuple[int, ...]
    memory: int
    alike: bool = False
    prompt_tokens: int = 64


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


class TimedOperations(Protocol):
    """The methods of Context.inspect that the rows bench needs."""

    def time_operations(self, on: bool = True) -> None: ...
    def operations(self) -> list[Operation]: ...


class RowsContext(Protocol):
    """The methods of Context that the rows bench needs."""

    @property
    def inspect(self) -> TimedOperations: ...
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


def open_context(model: Model, settings: RowsSettings) -> Context:
    """Make the context for the bench. Raises NativeError if there is too little memory."""
    n_drafts = max((max(settings.rows) - 1, *settings.steps)) if model.mtp else 0
    n_decodes = (1 + 2 * REPEATS) * (len(settings.rows) + len(settings.steps) + 1)
    return Context(
        model,
        n_ctx=settings.prompt_tokens + n_decodes + n_drafts + 1,
        **settings.keywords,
        draft_tokens=n_drafts,
        # a fixed size instead of "auto", because "auto" finds the best size only while text is generated
        draft_vocab=draft_vocab_size("auto", model.n_vocab) or "all",
    )


def describe(what: str, n: int) -> str:
    """Name a verification of n rows or a chain of n drafts: "1 row", "3 drafts"."""
    return f"{n} {what.removesuffix('s')}{'s' if n > 1 else ''}"


def groups(settings: RowsSettings) -> list[Group]:
    """List the bench rounds in order. Their arms are all verifications and chains, see `describe`."""
    return settings.plan([describe(ROWS, n) for n in settings.rows] + [describe(DRAFT, n) for n in settings.steps])


class RowsArms:
    """The verifications and chains of a rows bench on one context.

    reads: timed reads of memory, for each bench round.
    failed: number of failed reads of memory, by a description.
    on_step: see PairedBench.
    """

    def __init__(
        self,
        settings: RowsSettings,
        context: RowsContext,
        tokens: Sequence[int],
        read: Callable[[int, int, int], list[float]] = memory_seconds,
    ) -> None:
        """Make the arms.

        tokens: at least settings.prompt_tokens tokens, for the prompt and the rows.
        read: reads memory and returns the time of each read, see memory_seconds.
        """
        self._settings, self._context, self._tokens, self._read = settings, context, tokens, read
        kinds = {ROWS: settings.rows, DRAFT: settings.steps}
        self._arms = {describe(what, n): (what, n) for what, numbers in kinds.items() for n in numbers}
        self._round: int | None = None
        self.reads: list[MemoryReads] = []
        self.failed: Counter[str] = Counter()
        self.on_step: Callable[[str], object] = lambda step: None
        context.set_sampling(Sampler(SamplingParams()))

    def measure(self, group: Group, arm: str) -> RowsMeasurement:
        """Measure an arm. The first of a bench round reads memory and prefills the prompt before."""
        if self._round != group.round:
            self._round = group.round
            self._read_memory(group.round)
            self._context.clear()
            self._prefill(self._tokens[: self._settings.prompt_tokens])
        return self._measure(group.round, *self._arms[arm])

    def _prefill(self, prompt: Sequence[int]) -> None:
        """Prefill in parts, and tell before each part of a prompt that has several how far it is."""
        for start in range(0, len(prompt), PART):
            if len(prompt) > PART:
                self.on_step(f"prompt: {start:,} of {len(prompt):,} tokens")
            self._context.prefill(prompt[start : start + PART])

    def _read_memory(self, turn: int) -> None:
        if not self._settings.memory or self.failed:
            return
        try:
            seconds = self._read(self._settings.memory, self._settings.threads, READS)
        except NativeError as error:
            self.failed[f"reading memory: {error}"] += 1
        else:
            self.reads.append(MemoryReads(turn, seconds[1:]))

    def _measure(self, turn: int, kind: str, n: int) -> RowsMeasurement:
        decode = self._verify if kind == ROWS else self._draft
        if kind == DRAFT:
            self._verify(2)  # so that the head has processed all tokens, as after a round with drafts
        decode(n)
        seconds = [decode(n) for _ in range(REPEATS)]
        self._context.inspect.time_operations()
        observed = [(decode(n), self._context.inspect.operations()) for _ in range(REPEATS)]
        self._context.inspect.time_operations(False)
        by_operation: dict[tuple[str, str], list[Operation]] = {}
        for _, operations in observed:
            for o in operations:
                by_operation.setdefault((o.op, o.weights), []).append(o)
        medians = [sorted(same, key=lambda o: o.seconds)[len(same) // 2] for same in by_operation.values()]
        outside = statistics.median(s - sum(o.seconds for o in operations) for s, operations in observed)
        return RowsMeasurement(turn, kind, n, seconds, [s for s, _ in observed], medians, outside)

    def _verify(self, rows: int) -> float:
        n_past, before = self._context.n_past, self._context.counters.verify_seconds
        n_different = 1 if self._settings.alike else len(self._tokens)
        self._context.verify_chain([self._tokens[(n_past + i) % n_different] for i in range(rows)])
        seconds = self._context.counters.verify_seconds - before
        if rows > 1:
            self._context.rewind(n_past + 1)
        return seconds

    def _draft(self, steps: int) -> float:
        before = self._context.counters.draft_seconds
        self._context.draft_chain(self._tokens[0], steps)
        return self._context.counters.draft_seconds - before


def rows_bench(
    settings: RowsSettings,
    context: RowsContext,
    tokens: Sequence[int],
    read: Callable[[int, int, int], list[float]] = memory_seconds,
    **more: Any,
) -> PairedBench[RowsMeasurement]:
    """Make a rows bench. context, tokens, read: see RowsArms. more: further fields of PairedBench."""
    arms = RowsArms(settings, context, tokens, read)
    bench = PairedBench(groups(settings), arms.measure, fields={"reads": arms.reads}, failed=arms.failed, **more)
    arms.on_step = lambda step: bench.on_step(step)
    return bench


@contextmanager
def open_bench(model: Model, settings: RowsSettings) -> Iterator[PairedBench[RowsMeasurement]]:
    """Make a rows bench of a model, and free its context at the end."""
    with closing(open_context(model, settings)) as context:
        yield rows_bench(settings, context, TokenSource.of(model).take(max(256, settings.prompt_tokens)))
