"""The prefill bench: it compares the modes of filling the head's cache, on prompts of several sizes.

A mode is one of PREFILL_MODES, or `none` for a model without its head. A group is one prompt at one depth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pymtp.bench.corpus import TokenSource
from pymtp.bench.machine import PeakMemory
from pymtp.bench.paired import BenchSettings, PairedBench
from pymtp.bench.synthetic import SyntheticContext
from pymtp.context.context import Context
from pymtp.context.inspect import Counters
from pymtp.context.memory import DeviceMemory
from pymtp.context.options import PREFILL_MODES
from pymtp.drafting.depth import FixedDepth
from pymtp.engine.rounds import SingleSequenceContext, generate_single
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams
from pymtp.stats import DraftStats, Stats, collect

NONE = "none"  # no head, no drafts
MODES = (NONE, *reversed(PREFILL_MODES))
WARM_UP = 512  # most tokens of the warm-up's prompt: a whole ubatch


@dataclass(frozen=True, kw_only=True)
class PrefillSettings(BenchSettings):
    """Settings of a prefill bench.

    modes: modes to compare, from MODES.
    sizes: lengths of the prompts in tokens.
    depths: numbers of drafts per round.
    gen: number of tokens to generate after each prompt.
    prompt: name of the text from which prompts are cut, for the report.
    cache_prompt: whether all bench rounds use the same prompt.
    synthetic: rates of synthetic acceptance, see SyntheticContext; None for real acceptance.
    time_budget: most seconds that the bench takes; None for no limit.
    """

    modes: tuple[str, ...]
    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    gen: int
    prompt: str
    cache_prompt: bool
    synthetic: tuple[float, ...] | None
    time_budget: float | None


@dataclass(frozen=True)
class MemoryUse:
    """The memory on one device in bytes: weights, caches and compute buffers of target and head."""

    device: str
    host: bool
    weights: int
    cache: int
    compute: int

    @classmethod
    def of(cls, m: DeviceMemory) -> MemoryUse:
        """Convert a DeviceMemory: sum up its caches, and its compute buffers."""
        cache = m.kv + m.states + m.head_kv + m.kept_rows
        return cls(m.device, m.host, m.weights, cache, m.compute + m.head_compute)


@dataclass(frozen=True)
class PrefillMeasurement:
    """The measurement of one mode on one prompt.

    round: index of the bench round.
    size: length of the prompt in tokens.
    depth: drafts per round in the other modes of the group; mode `none` makes no drafts.
    stats: figures of the prefill and of the decoding, which continues after end tokens.
    first_token_seconds: time of the prefill and of sampling the first token.
    elapsed_seconds: time of the whole measurement, with the creation and the warm-up of the context.
    hidden_bytes, logits_bytes, embeddings_bytes: data of each kind that was copied to the host during the prefill.
    host_before_bytes, host_peak_bytes: resident memory before the measurement, and its peak, see PeakMemory.
    """

    round: int
    size: int
    depth: int
    mode: str
    stats: Stats
    first_token_seconds: float
    elapsed_seconds: float
    hidden_bytes: int
    logits_bytes: int
    embeddings_bytes: int
    host_before_bytes: int | None
    host_peak_bytes: int | None
    memory: list[MemoryUse]

    @property
    def host_grown_bytes(self) -> int | None:
        """Return how much the host memory grew: the peak minus the memory before the context was made."""
        if self.host_peak_bytes is None or self.host_before_bytes is None:
            return None
        return self.host_peak_bytes - self.host_before_bytes

    @property
    def device_bytes(self) -> int | None:
        """Return the bytes used on devices that have their own memory; None if no such device is used."""
        devices = [m.weights + m.cache + m.compute for m in self.memory if not m.host]
        return sum(devices) if devices else None


@dataclass(frozen=True)
class PrefillGroup:
    """A group of measurements to compare: one prompt at one depth in one round."""

    round: int
    size: int
    depth: int
    modes: tuple[str, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the modes, for PairedBench."""
        return self.modes


def groups(settings: PrefillSettings) -> list[PrefillGroup]:
    """List all groups in the order in which they are measured."""
    cells = [(size, depth) for size in settings.sizes for depth in settings.depths]
    return settings.plan(PrefillGroup, settings.modes, cells)


class BenchContext(SingleSequenceContext, Protocol):
    """The methods of Context that the prefill bench needs, besides those of SingleSequenceContext."""

    @property
    def counters(self) -> Counters: ...
    def set_sampling(self, sampler: Sampler) -> None: ...
    def memory(self) -> list[DeviceMemory]: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


# called with the mode, the number of drafts per round and n_ctx; returns a new context
ContextFactory = Callable[[str, int, int], BenchContext]


def contexts(model: Model, settings: PrefillSettings) -> ContextFactory:
    """Return a function that makes contexts of a model for the bench."""

    def make(mode: str, draft_tokens: int, n_ctx: int) -> BenchContext:
        context = Context(
            model,
            n_ctx=n_ctx,
            **settings.keywords,
            draft_tokens=0 if mode == NONE else draft_tokens,
            prefill=PREFILL_MODES[0] if mode == NONE else mode,
        )
        if mode == NONE or settings.synthetic is None:
            return context
        return cast(BenchContext, SyntheticContext(context, settings.synthetic))

    return make


def measure(
    make: ContextFactory,
    group: PrefillGroup,
    mode: str,
    prompt: Sequence[int],
    warm_up: Sequence[int],
    gen: int,
    clock: Callable[[], float] = time.perf_counter,
) -> PrefillMeasurement:
    """Prefill `prompt` and generate `gen` tokens greedily, in a new context that is first warmed up with `warm_up`."""
    started = clock()
    host = PeakMemory()
    draft_tokens = 0 if mode == NONE else group.depth
    with closing(make(mode, group.depth, group.size + gen)) as context:
        # enough tokens for two rounds, so that the warm-up includes a round after a rewind
        _generate(context, warm_up[: group.size], draft_tokens, 2 * (draft_tokens + 1), clock)
        context.clear()
        before = context.counters
        run = _generate(context, prompt, draft_tokens, gen, clock)
        after = context.counters
        memory = [MemoryUse.of(device) for device in context.memory()]
        peak = host.peak
    return PrefillMeasurement(
        round=group.round,
        size=group.size,
        depth=group.depth,
        mode=mode,
        stats=collect(len(prompt), gen, run.prefill_seconds, run.decode_seconds, run.draft_stats, before, after),
        first_token_seconds=run.first_token_seconds,
        elapsed_seconds=clock() - started,
        hidden_bytes=run.prefilled.hidden_bytes - before.hidden_bytes,
        logits_bytes=run.prefilled.logits_bytes - before.logits_bytes,
        embeddings_bytes=run.prefilled.embeddings_bytes - before.embeddings_bytes,
        host_before_bytes=host.before,
        host_peak_bytes=peak,
        memory=memory,
    )


@dataclass(frozen=True)
class _Generated:
    """The times and figures of one generation.

    prefill_seconds: time to the first token, without sampling it.
    prefilled: the context's counters after the first token.
    """

    first_token_seconds: float
    prefill_seconds: float
    decode_seconds: float
    draft_stats: DraftStats
    prefilled: Counters


def _generate(
    context: BenchContext, prompt: Sequence[int], draft_tokens: int, n: int, clock: Callable[[], float]
) -> _Generated:
    draft_stats = DraftStats()
    context.set_sampling(Sampler(SamplingParams()))
    rounds = generate_single(context, prompt, lambda token: False, draft_stats, FixedDepth(draft_tokens), max_tokens=n)
    before = context.counters.sample_seconds
    started = clock()
    next(rounds)  # only the prefill and the first token
    first = clock() - started
    prefilled = context.counters
    prefill = first - (prefilled.sample_seconds - before)
    started = clock()
    for _ in rounds:
        pass
    return _Generated(first, prefill, clock() - started, draft_stats, prefilled)


def estimate(done: Sequence[PrefillMeasurement], size: int, mode: str) -> float:
    """Estimate the seconds of a measurement from finished measurements at the two nearest sizes.

    Measurements of the same mode are used, or of all modes if there are none. Two figures are extrapolated linearly in
    the size: the prefill time per token, which grows as attention takes longer, and the time of everything else.
    """
    latest = {m.size: m for m in done if m.mode == mode} or {m.size: m for m in done}
    near = sorted(latest, key=lambda measured: abs(measured - size))[:2]
    if not near:
        return 0.0

    def extrapolate(seconds: Callable[[PrefillMeasurement], float]) -> float:
        nearest, second = seconds(latest[near[0]]), seconds(latest[near[-1]])
        slope = (nearest - second) / (near[0] - near[1]) if len(near) == 2 else 0.0
        return max(0.0, nearest + max(0.0, slope) * (size - near[0]))

    prefill = size * extrapolate(lambda m: m.stats.prefill_seconds / m.size)
    return prefill + extrapolate(lambda m: m.elapsed_seconds - m.stats.prefill_seconds)


class PrefillArms:
    """The modes of a prefill bench: all modes and depths of a bench round and size have one prompt."""

    def __init__(
        self,
        settings: PrefillSettings,
        make: ContextFactory,
        source: TokenSource,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._settings, self._make, self._source, self._clock = settings, make, source, clock
        self._warm_up = source.take(WARM_UP)
        self._fixed = source.take(max(settings.sizes)) if settings.cache_prompt else None
        self._prompt: tuple[tuple[int, int], list[int]] | None = None  # with the bench round and size that it is of

    def measure(self, group: PrefillGroup, mode: str) -> PrefillMeasurement:
        """Measure a mode. Raises NativeError if there is too little memory for its context."""
        if self._prompt is None:
            # the first use of a model reads its weights into memory; no measurement should include that time
            with suppress(NativeError):
                measure(self._make, group, self._settings.modes[-1], self._warm_up[: group.size], self._warm_up, 2)
        if self._prompt is None or self._prompt[0] != (group.round, group.size):
            prompt = self._source.take(group.size) if self._fixed is None else self._fixed[: group.size]
            self._prompt = (group.round, group.size), prompt
        return measure(self._make, group, mode, self._prompt[1], self._warm_up, self._settings.gen, self._clock)


def prefill_bench(
    settings: PrefillSettings, make: ContextFactory, source: TokenSource, **more: Any
) -> PairedBench[PrefillGroup, PrefillMeasurement]:
    """Make a prefill bench. make: makes a context, see `contexts`. more: further fields of PairedBench."""

    def name(group: PrefillGroup, mode: str | None) -> str:
        return format_size(group.size) + ("" if mode is None else f" {mode}, {group.depth} drafts")

    arms = PrefillArms(settings, make, source, more.get("clock", time.perf_counter))
    return PairedBench(
        groups(settings),
        arms.measure,
        estimate=lambda done, group, mode: estimate(done, group.size, mode),
        time_budget=settings.time_budget,
        name=name,
        **more,
    )


@contextmanager
def open_bench(
    model: Model, settings: PrefillSettings, text: str | None = None
) -> Iterator[PairedBench[PrefillGroup, PrefillMeasurement]]:
    """Make a prefill bench of a model. text: cut prompts from this text; None for the standard library."""
    yield prefill_bench(settings, contexts(model, settings), TokenSource.of(model, text))


def format_size(n_tokens: int) -> str:
    """Format a number of tokens: 8192 → "8k"."""
    return f"{n_tokens // 1024}k" if n_tokens % 1024 == 0 else str(n_tokens)
