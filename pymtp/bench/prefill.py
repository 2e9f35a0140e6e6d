"""The prefill bench: every way to fill the head's cache, over prompts of several sizes, in rounds.

What is compared stands side by side: a group, which is one prompt at one depth, runs every mode once, `none` among
them, one right after the other. What the machine does meanwhile meets all alike, and ratios are taken within a group.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from pymtp.bench.corpus import TokenSource
from pymtp.bench.machine import PeakMemory
from pymtp.bench.order import in_turn
from pymtp.bench.synthetic import SyntheticContext
from pymtp.context.context import Context
from pymtp.context.inspect import Counters
from pymtp.context.memory import DeviceMemory
from pymtp.context.options import PREFILL_MODES
from pymtp.drafting.depth import FixedDepth
from pymtp.engine.rounds import SingleContext, write_alone
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams
from pymtp.stats import Stats, Tally, collect

NONE = "none"  # no head, no drafts
MODES = (NONE, *reversed(PREFILL_MODES))
WARM_UP = 512  # tokens before the prompt, a whole ubatch of the context


@dataclass(frozen=True)
class Settings:
    """What is measured. sizes: tokens a prompt. gen: tokens generated after it. depths: drafts per round.
    synthetic: the rates of made-up acceptance of the latter, see SyntheticContext; None for what the target says.
    time_budget: seconds, None for all it takes. prompt, model: names, for the record. placing: further keywords of
    Model."""

    model: str
    modes: tuple[str, ...]
    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    gen: int
    rounds: int
    prompt: str
    cache_prompt: bool
    synthetic: tuple[float, ...] | None
    time_budget: float | None
    threads: int
    gpu_layers: int
    cache_type: str
    placing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device: weights, caches and compute buffers of both contexts."""

    device: str
    host: bool
    weights: int
    cache: int
    compute: int

    @classmethod
    def of(cls, m: DeviceMemory) -> MemoryUse:
        """The same in three sums."""
        cache = m.kv + m.states + m.head_kv + m.kept_rows
        return cls(m.device, m.host, m.weights, cache, m.compute + m.head_compute)


@dataclass(frozen=True)
class Measurement:
    """One mode on one prompt. stats: prefill and decode, which ignores the model's end.

    depth: the group's; `none` drafts none. round: from 0.
    first_token_seconds: prefill and the first draw. elapsed_seconds: making the context and warming it up included.
    hidden_bytes, logits_bytes, embeddings_bytes: copied to the host for the prompt.
    host_before_bytes, host_peak_bytes: see PeakMemory.
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
        """The peak above what was in use before the context was made."""
        if self.host_peak_bytes is None or self.host_before_bytes is None:
            return None
        return self.host_peak_bytes - self.host_before_bytes

    @property
    def device_bytes(self) -> int | None:
        """Weights, cache and compute buffers on devices with memory of their own; None without such a device."""
        devices = [m.weights + m.cache + m.compute for m in self.memory if not m.host]
        return sum(devices) if devices else None


@dataclass(frozen=True)
class Group:
    """One prompt at one depth in one round: what is compared with each other."""

    round: int
    size: int
    depth: int
    modes: tuple[str, ...]


def groups(settings: Settings) -> list[Group]:
    """All groups in order."""
    cells = [(size, depth) for size in settings.sizes for depth in settings.depths]
    return [
        Group(turn, size, depth, in_turn(settings.modes, turn + i))
        for turn in range(settings.rounds)
        for i, (size, depth) in enumerate(cells)
    ]


class BenchContext(SingleContext, Protocol):
    """What the bench asks of a context beyond the loop; see context.Context."""

    @property
    def counters(self) -> Counters: ...
    def set_sampling(self, sampler: Sampler) -> None: ...
    def memory(self) -> list[DeviceMemory]: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


# (mode, drafts per round, n_ctx) → a fresh context
ContextFactory = Callable[[str, int, int], BenchContext]


def contexts(model: Model, settings: Settings) -> ContextFactory:
    """Makes contexts of a model."""

    def make(mode: str, draft_tokens: int, n_ctx: int) -> BenchContext:
        context = Context(
            model,
            n_ctx=n_ctx,
            n_threads=settings.threads,
            type_k=settings.cache_type,
            type_v=settings.cache_type,
            draft_tokens=0 if mode == NONE else draft_tokens,
            prefill=PREFILL_MODES[0] if mode == NONE else mode,
        )
        if mode == NONE or settings.synthetic is None:
            return context
        return cast(BenchContext, SyntheticContext(context, settings.synthetic))

    return make


def measure(
    make: ContextFactory,
    group: Group,
    mode: str,
    prompt: Sequence[int],
    warm_up: Sequence[int],
    gen: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Prefills `prompt` and generates `gen` tokens, greedily, in a context of its own, warmed up with other tokens."""
    started = clock()
    host = PeakMemory()
    draft_tokens = 0 if mode == NONE else group.depth
    with closing(make(mode, group.depth, group.size + gen)) as context:
        # two rounds: the second begins after a rewind
        _generate(context, warm_up[: group.size], draft_tokens, 2 * (draft_tokens + 1), clock)
        context.clear()
        before = context.counters
        run = _generate(context, prompt, draft_tokens, gen, clock)
        after = context.counters
        memory = [MemoryUse.of(device) for device in context.memory()]
        peak = host.peak
    return Measurement(
        round=group.round,
        size=group.size,
        depth=group.depth,
        mode=mode,
        stats=collect(len(prompt), gen, run.prefill_seconds, run.decode_seconds, run.tally, before, after),
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
    """Seconds to the first token, of these the prefill's, seconds of the others, and the counts after the prefill."""

    first_token_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tally: Tally
    prefilled: Counters


def _generate(
    context: BenchContext, prompt: Sequence[int], draft_tokens: int, n: int, clock: Callable[[], float]
) -> _Generated:
    tally = Tally()
    context.set_sampling(Sampler(SamplingParams()))
    rounds = write_alone(context, prompt, lambda token: False, tally, FixedDepth(draft_tokens), max_tokens=n)
    before = context.counters.sample_seconds
    started = clock()
    next(rounds)  # the prefill and one draw, nothing else
    first = clock() - started
    prefilled = context.counters
    prefill = first - (prefilled.sample_seconds - before)
    started = clock()
    for _ in rounds:
        pass
    return _Generated(first, prefill, clock() - started, tally, prefilled)


def estimate(done: Sequence[Measurement], size: int, mode: str) -> float:
    """Seconds that a measurement will take, by those done of its mode, or else of all, at the two nearest sizes.

    A token's share of the prefill grows in a straight line with the size, as attention does, and so does the rest.
    """
    latest = {m.size: m for m in done if m.mode == mode} or {m.size: m for m in done}
    near = sorted(latest, key=lambda known: abs(known - size))[:2]
    if not near:
        return 0.0

    def at_size(seconds: Callable[[Measurement], float]) -> float:
        here, there = seconds(latest[near[0]]), seconds(latest[near[-1]])
        slope = (here - there) / (near[0] - near[1]) if len(near) == 2 else 0.0
        return max(0.0, here + max(0.0, slope) * (size - near[0]))

    prefill = size * at_size(lambda m: m.stats.prefill_seconds / m.size)
    return prefill + at_size(lambda m: m.elapsed_seconds - m.stats.prefill_seconds)


@dataclass
class PrefillBench:
    """A run. However it ends, what is done is in `measurements`; `late` and `failed` say what there was no time for and
    what went wrong.

    on_start: called before each measurement with its group, its mode and the seconds left (None: not known yet).
    on_done: called after each that came to its end.
    """

    settings: Settings
    make: ContextFactory
    source: TokenSource
    on_start: Callable[[Group, str, float | None], object] = lambda group, mode, left: None
    on_done: Callable[[Measurement], object] = lambda measurement: None
    clock: Callable[[], float] = time.perf_counter
    measurements: list[Measurement] = field(default_factory=list)
    late: Counter[int] = field(default_factory=Counter)  # by size
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Measures all groups that fit into the time."""
        started = self.clock()
        settings, planned = self.settings, groups(self.settings)
        warm_up = self.source.take(WARM_UP)
        fixed = self.source.take(max(settings.sizes)) if settings.cache_prompt else None
        # the first context brings the weights into memory; that is not to be the first measurement's cost
        with suppress(NativeError):
            measure(self.make, planned[0], settings.modes[-1], warm_up[: planned[0].size], warm_up, 2)
        cut: tuple[int, int] | None = None
        for i, group in enumerate(planned):
            spent = self.clock() - started
            if settings.time_budget is not None and spent + self._seconds([group]) > settings.time_budget:
                self.late[group.size] += 1
                continue
            if cut != (group.round, group.size):
                # one slice for a round, whatever the mode and depth
                prompt = self.source.take(group.size) if fixed is None else fixed[: group.size]
                cut = group.round, group.size
            for j, mode in enumerate(group.modes):
                rest = self._seconds([Group(group.round, group.size, group.depth, group.modes[j:]), *planned[i + 1 :]])
                if settings.time_budget is not None:
                    rest = min(rest, settings.time_budget - (self.clock() - started))
                self.on_start(group, mode, rest if self.measurements else None)
                self._measure(group, mode, prompt, warm_up)

    @property
    def left_out(self) -> list[str]:
        """A line for each size and each measurement that is not there as it should be."""
        each = self.settings.rounds * len(self.settings.depths)
        late = [f"{tokens(size)}: no time for {n} of {each} comparisons" for size, n in self.late.items()]
        return late + self.failed

    def _measure(self, group: Group, mode: str, prompt: Sequence[int], warm_up: Sequence[int]) -> None:
        try:
            done = measure(self.make, group, mode, prompt, warm_up, self.settings.gen, self.clock)
        except NativeError as error:  # memory that is not there: smaller prompts and other modes may still do
            self.failed.append(f"{tokens(group.size)} {mode}, {group.depth} drafts, round {group.round + 1}: {error}")
        else:
            self.measurements.append(done)
            self.on_done(done)

    def _seconds(self, planned: Sequence[Group]) -> float:
        return sum(estimate(self.measurements, group.size, mode) for group in planned for mode in group.modes)


def tokens(n: int) -> str:
    """8192 → "8k"."""
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)
