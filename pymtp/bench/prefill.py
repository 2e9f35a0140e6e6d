"""The prefill bench: it compares the modes of filling the head's cache, on prompts of several sizes.

A mode is one of PREFILL_MODES, or `none` for a model without its head. A group is one prompt at one depth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pymtp.bench.corpus import TokenSource
from pymtp.bench.machine import PeakMemory
from pymtp.bench.paired import BenchSettings, Group, PairedBench
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.bench.traffic import run_single
from pymtp.context.memory import DeviceMemory
from pymtp.context.options import PREFILL_MODES
from pymtp.errors import NativeError
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats

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
    synthetic: rates of synthetic acceptance, see SyntheticContext; None for real acceptance.
    """

    modes: tuple[str, ...]
    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    gen: int
    prompt: str
    synthetic: tuple[float, ...] | None


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


def groups(settings: PrefillSettings) -> list[Group]:
    """List all groups in the order in which they are measured. A cell is the size of a prompt and a depth."""
    return settings.plan(settings.modes, [(size, depth) for size in settings.sizes for depth in settings.depths])


# called with the mode, the number of drafts per round and n_ctx; returns a new LLM
LLMFactory = Callable[[str, int, int], LLM]


def llms(model: Model, settings: PrefillSettings) -> LLMFactory:
    """Return a function that makes LLMs of a model for the bench."""

    def make(mode: str, draft_tokens: int, n_ctx: int) -> LLM:
        keywords: dict[str, Any] = {"n_ctx": n_ctx, **settings.keywords, "cache_prompt": False}
        if mode == NONE:
            return LLM(model, draft_tokens=0, **keywords)
        keywords |= {"draft_tokens": draft_tokens, "prefill": mode}
        return (
            LLM(model, **keywords)
            if settings.synthetic is None
            else SyntheticLLM(model, settings.synthetic, **keywords)
        )

    return make


def measure(
    make: LLMFactory, group: Group, mode: str, prompt: Sequence[int], warm_up: Sequence[int], gen: int
) -> PrefillMeasurement:
    """Prefill `prompt` and generate `gen` tokens greedily, in a new LLM that is first warmed up with `warm_up`."""
    (size, depth), started = group.cell, time.perf_counter()
    host = PeakMemory()
    two_rounds = 2 * (1 + (0 if mode == NONE else depth))  # so that the warm-up includes a round after a rewind
    with closing(make(mode, depth, size + max(gen, two_rounds))) as llm:
        run_single(llm, warm_up[:size], SamplingParams(two_rounds, ignore_eos=True))
        run = run_single(llm, prompt, SamplingParams(gen, ignore_eos=True))
        memory = [MemoryUse.of(device) for device in llm.context.memory()]
        peak = host.peak
    return PrefillMeasurement(
        round=group.round,
        size=size,
        depth=depth,
        mode=mode,
        stats=run.completion.stats,
        first_token_seconds=run.completion.stats.time_to_first_token,
        elapsed_seconds=time.perf_counter() - started,
        hidden_bytes=run.prefilled.hidden_bytes - run.started.hidden_bytes,
        logits_bytes=run.prefilled.logits_bytes - run.started.logits_bytes,
        embeddings_bytes=run.prefilled.embeddings_bytes - run.started.embeddings_bytes,
        host_before_bytes=host.before,
        host_peak_bytes=peak,
        memory=memory,
    )


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


# a `measure` that already has its factory
RunMode = Callable[[Group, str, Sequence[int], Sequence[int], int], PrefillMeasurement]


class PrefillArms:
    """The modes of a prefill bench: all modes and depths of a bench round and size have one prompt."""

    def __init__(self, settings: PrefillSettings, run: RunMode, source: TokenSource) -> None:
        self._settings, self._run, self._source = settings, run, source
        self._warm_up = source.take(WARM_UP)
        self._prompt: tuple[tuple[int, int], list[int]] | None = None  # with the bench round and size that it is of

    def measure(self, group: Group, mode: str) -> PrefillMeasurement:
        """Measure a mode. Raises NativeError if there is too little memory for its LLM."""
        size, _ = group.cell
        if self._prompt is None:
            # the first use of a model reads its weights into memory; no measurement should include that time
            with suppress(NativeError):
                self._run(group, self._settings.modes[-1], self._warm_up[:size], self._warm_up, 2)
        if self._prompt is None or self._prompt[0] != (group.round, size):
            self._prompt = (group.round, size), self._source.take(size)
        return self._run(group, mode, self._prompt[1], self._warm_up, self._settings.gen)


def prefill_bench(
    settings: PrefillSettings, run: RunMode, source: TokenSource, **more: Any
) -> PairedBench[PrefillMeasurement]:
    """Make a prefill bench. run: measures a mode. more: further fields of PairedBench."""
    return PairedBench(
        groups(settings),
        PrefillArms(settings, run, source).measure,
        estimate=lambda done, group, mode: estimate(done, group.cell[0], mode),
        name=lambda group, mode: f"{format_size(group.cell[0])} {mode}, {group.cell[1]} drafts",
        **more,
    )


@contextmanager
def open_bench(
    model: Model, settings: PrefillSettings, text: str | None = None
) -> Iterator[PairedBench[PrefillMeasurement]]:
    """Make a prefill bench of a model. text: cut prompts from this text; None for the standard library."""
    yield prefill_bench(settings, partial(measure, llms(model, settings)), TokenSource.of(model, text))


def format_size(n_tokens: int) -> str:
    """Format a number of tokens: 8192 → "8k"."""
    return f"{n_tokens // 1024}k" if n_tokens % 1024 == 0 else str(n_tokens)
