"""The prefix bench: prompts with common prefixes, with and without a prefix cache.

A measurement is a trace in a round. Two LLMs of one model run it side by side, request by request in changing order:
one with a prefix cache, and one with cache_prompt=False, which prefills each prompt whole. The bench checks that both
generate the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pymtp.bench.order import balanced_order
from pymtp.bench.traces import DISK, Trace, TraceHistory, TraceRequest, TraceVocabulary, make, unseen
from pymtp.bench.traffic import RequestTiming, Traffic
from pymtp.engine.request import Waiter
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams

CACHE, NONE = "cache", "none"
SHARE = 0.5  # part of a trace's prefixes that fits into the cache
UBATCH = 512  # tokens
WARM_UP = UBATCH + 16  # tokens: a whole ubatch, and a partial one


@dataclass(frozen=True)
class PrefixSettings:
    """Settings of a prefix bench.

    model: its name, for the report. traces: their names. n_ctx: of each text; None for the longest of the trace.
    cache_bytes: None for half of a trace's prefixes if it has a number of them, else for LLM's default.
    scale: factor of all lengths. requests: limit for each trace. placing: further keywords of Model.
    """

    model: str
    traces: tuple[str, ...]
    rounds: int
    n_ctx: int | None
    n_seq_max: int
    cache_bytes: int | None
    scale: float
    requests: int | None
    threads: int
    gpu_layers: int
    cache_type: str
    placing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """A prefix file. nbytes: its size. save_seconds: with the prefill; load_seconds: into another LLM."""

    nbytes: int
    save_seconds: float
    load_seconds: float


@dataclass(frozen=True)
class PrefixMeasurement:
    """The measurement of a trace in a round. Lists have one entry for each request.

    round: from 0. waves: numbers of requests that were submitted at once. prompt: tokens. unseen: tokens after the
    longest prefix shared with an earlier text or the prefix file. read: tokens that were prefilled with the cache.
    first_token, first_token_none: seconds from the request to its first token, with and without the cache.
    differing: indices of requests whose texts differ. cache_bytes: limit; None for LLM's default. nbytes: largest size
    of the cache after a wave. figures: of the cache at the end. saved: for a prefix from disk.
    """

    round: int
    trace: str
    waves: list[int]
    prompt: list[int]
    unseen: list[int]
    read: list[int]
    first_token: list[float]
    first_token_none: list[float]
    differing: list[int]
    cache_bytes: int | None
    nbytes: int
    figures: dict[str, Any]
    saved: Saved | None = None


@dataclass(frozen=True)
class PrefixGroup:
    """One round of all traces."""

    round: int
    arms: tuple[str, ...]


def groups(settings: PrefixSettings) -> list[PrefixGroup]:
    """List all rounds in order."""
    return [PrefixGroup(turn, balanced_order(settings.traces, turn)) for turn in range(settings.rounds)]


def half_of_prefix_bytes(trace: Trace, cell_bytes: int, state_bytes: int) -> int | None:
    """Return the bytes of half of a trace's prefixes, each with K and V and one state; None for a trace without."""
    if trace.prefixes is None or trace.name == DISK:
        return None
    count, tokens = trace.prefixes
    return round(SHARE * count * (tokens * cell_bytes + state_bytes))


@dataclass
class TraceRun:
    """A run of a trace in one LLM: its history, and the timing of each request."""

    llm: LLM
    history: TraceHistory = field(default_factory=TraceHistory)
    timings: list[RequestTiming] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    def run_wave(self, wave: tuple[TraceRequest, ...]) -> None:
        """Run requests at once to their ends. Raises NativeError if one fails."""
        traffic = Traffic(self.llm._engine)
        prompts = [self.history.prompt(entry) for entry in wave]
        for entry, prompt in zip(wave, prompts, strict=True):
            params = SamplingParams(max_tokens=entry.tokens, ignore_eos=True)
            branch_points = [] if entry.branch_point is None else [[entry.branch_point]]
            (request,) = self.llm._submit([prompt], params, Waiter(), branch_points=branch_points)
            traffic.add(request)
        traffic.step_until(lambda: False)
        for entry, prompt, timing in zip(wave, prompts, traffic.timings, strict=True):
            answer = [int(token) for token in timing.request.tokens]
            self.history.add(entry, prompt, answer)
            self.prompts.append(prompt)
            self.answers.append(answer)
        self.timings += traffic.timings

    @property
    def read(self) -> list[int]:
        """Return the tokens of each prompt that were prefilled, not cached."""
        pairs = zip(self.prompts, self.timings, strict=True)
        return [len(prompt) - timing.request.completion.stats.cached_tokens for prompt, timing in pairs]

    @property
    def first_token(self) -> list[float]:
        """Return the seconds to the first token of each request."""
        return [timing.first_token for timing in self.timings]

    @property
    def nbytes(self) -> int:
        """Return the host memory of the prefix cache now, in bytes."""
        return self.llm.figures().prefixes.nbytes


class PrefixArms:
    """The arms of a run over one model. They share the weights and the traces."""

    def __init__(self, model: Model, settings: PrefixSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._settings, self._clock = model, settings, clock
        self._vocabulary = TraceVocabulary.of(model, settings.scale)
        traces = [make(name, self._vocabulary) for name in settings.traces]
        limit = settings.requests
        self.traces = {trace.name: trace if limit is None else trace.first(limit) for trace in traces}

    def measure(self, group: PrefixGroup, arm: str) -> PrefixMeasurement:
        """Measure the trace `arm`. Raises NativeError if a request fails, or memory is too small for its contexts."""
        trace = self.traces[arm]
        with ExitStack() as opened:
            uncached = TraceRun(opened.enter_context(closing(self._new_llm(trace, cache_prompt=False))))
            limit = self._cache_limit(trace, uncached.llm)
            saved, path, on_disk = None, None, list[int]()
            if trace.name == DISK:
                path = Path(opened.enter_context(TemporaryDirectory())) / "prefix"
                on_disk, save_seconds = self._save(trace, path)
            cached = TraceRun(opened.enter_context(closing(self._new_llm(trace, cache_bytes=limit))))
            for run in (uncached, cached):
                self._warm_up(run.llm)
            if path is not None:
                started = self._clock()
                cached.llm.load_prefix(path)
                saved = Saved(path.stat().st_size, save_seconds, self._clock() - started)
            nbytes = cached.nbytes
            for i, wave in enumerate(trace.waves):
                for run in balanced_order([uncached, cached], group.round + i):
                    run.run_wave(wave)
                nbytes = max(nbytes, cached.nbytes)
            return PrefixMeasurement(
                round=group.round,
                trace=trace.name,
                waves=[len(wave) for wave in trace.waves],
                prompt=[len(prompt) for prompt in cached.prompts],
                unseen=unseen([on_disk, *cached.prompts], [[], *cached.answers])[1:],
                read=cached.read,
                first_token=cached.first_token,
                first_token_none=uncached.first_token,
                differing=[i for i, (a, b) in enumerate(zip(cached.answers, uncached.answers, strict=True)) if a != b],
                cache_bytes=limit,
                nbytes=nbytes,
                figures=asdict(cached.llm.figures().prefixes),
                saved=saved,
            )

    def _cache_limit(self, trace: Trace, llm: LLM) -> int | None:
        if self._settings.cache_bytes is not None:
            return self._settings.cache_bytes
        return half_of_prefix_bytes(trace, llm.context.cell_bytes, llm.context.state_bytes)

    def _new_llm(self, trace: Trace, **keywords: Any) -> LLM:
        settings = self._settings
        return LLM(
            self._model,
            n_ctx=settings.n_ctx or max(trace.max_length, WARM_UP + 1),
            n_ubatch=UBATCH,
            n_seq_max=settings.n_seq_max,
            n_threads=settings.threads,
            type_k=settings.cache_type,
            type_v=settings.cache_type,
            **keywords,
        )

    def _warm_up(self, llm: LLM) -> None:
        prompt = self._vocabulary.text("warm-up", WARM_UP)
        llm.generate(prompt[: llm.context.n_ctx - 1], SamplingParams(max_tokens=1))

    def _save(self, trace: Trace, path: Path) -> tuple[list[int], float]:
        """Save the trace's prefix with an LLM of its own. Return its tokens, and the seconds with the prefill."""
        assert trace.prefixes is not None
        prompt = TraceHistory().prompt(trace.requests[0])[: trace.prefixes[1]]
        with closing(self._new_llm(trace)) as llm:
            self._warm_up(llm)
            started = self._clock()
            llm.save_prefix(prompt, path)
            return prompt, self._clock() - started
