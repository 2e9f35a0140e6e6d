"""The prefix bench: prompts with common prefixes, with and without a prefix cache.

A trace is a fixed sequence of requests, see traces.py. In each bench round, two LLMs of one model run each trace: one
has a prefix cache, and the other has cache_prompt=False, so that it prefills each prompt whole. They take turns after
each wave of requests, and the bench compares the tokens that they generate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pymtp.bench.paired import BenchSettings, Group, PairedBench, balanced_order
from pymtp.bench.traces import DISK, Trace, TraceHistory, TraceRequest, TraceVocabulary, make, unseen
from pymtp.bench.traffic import RequestTiming, Traffic, prepare, run_on_engine_thread
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams

CACHE, NONE = "cache", "none"
SHARE = 0.5  # part of a trace's prefixes that the default cache can hold
UBATCH = 512  # tokens
WARM_UP = UBATCH + 16  # tokens of the warm-up's prompt: a whole ubatch and a partial one


@dataclass(frozen=True, kw_only=True)
class PrefixSettings(BenchSettings):
    """Settings of a prefix bench.

    traces: names of the traces, from NAMES.
    n_ctx: context length of each sequence; None for the longest prompt with its answer in the trace.
    cache_bytes: limit of the prefix cache. None stands for half of the prefixes of a trace that has a fixed number of
        them, and for LLM's default in other traces.
    scale: factor by which all lengths of a trace are multiplied.
    requests: largest number of requests of each trace; None for all.
    """

    traces: tuple[str, ...]
    n_ctx: int | None
    n_seq_max: int
    cache_bytes: int | None
    scale: float
    requests: int | None


@dataclass(frozen=True)
class Saved:
    """The figures of a saved prefix.

    nbytes: size of the prefix file.
    save_seconds: time to prefill the prefix and save it.
    load_seconds: time to load the file into another LLM.
    """

    nbytes: int
    save_seconds: float
    load_seconds: float


@dataclass(frozen=True)
class PrefixMeasurement:
    """The measurement of a trace in one bench round. Lists have one entry for each request, except `waves`.

    round: index of the bench round.
    waves: number of requests in each wave, which are submitted at once.
    prompt: length of each prompt in tokens.
    unseen: tokens of each prompt after the longest prefix that it shares with an earlier prompt and its answer, or with
        the prefix file.
    read: tokens of each prompt that the LLM with a cache prefilled.
    first_token, first_token_none: seconds from the request to its first token, with and without the cache.
    differing: indices of requests for which the two LLMs generated different tokens.
    cache_bytes: limit of the cache; None for LLM's default.
    nbytes: largest size of the cache after a wave.
    figures: figures of the cache at the end.
    saved: figures of the prefix file; None for a trace without one.
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


def half_of_prefix_bytes(trace: Trace, cell_bytes: int, state_bytes: int) -> int | None:
    """Return the bytes of half of a trace's prefixes, each with its K and V and one recurrent state.

    None for a trace without a fixed number of prefixes, and for DISK.
    """
    if trace.prefixes is None or trace.name == DISK:
        return None
    count, tokens = trace.prefixes
    return round(SHARE * count * (tokens * cell_bytes + state_bytes))


@dataclass
class TraceRun:
    """The state of one LLM that runs a trace: the texts so far, and the timing, prompt and answer of each request."""

    llm: LLM
    history: TraceHistory = field(default_factory=TraceHistory)
    timings: list[RequestTiming] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    def run_wave(self, wave: tuple[TraceRequest, ...]) -> None:
        """Submit all requests of a wave at once, and run them until all have ended. Raises NativeError if one fails."""
        traffic = Traffic(self.llm._engine)
        prompts = [self.history.prompt(entry) for entry in wave]
        submits = []
        for entry, prompt in zip(wave, prompts, strict=True):
            params = SamplingParams(max_tokens=entry.tokens, ignore_eos=True)
            branch_points = [] if entry.branch_point is None else [[entry.branch_point]]
            submits.append(prepare(self.llm, prompt, params, branch_points=branch_points))
        run_on_engine_thread(self.llm, lambda: traffic.run(submits, [0.0] * len(submits)))
        for entry, prompt, timing in zip(wave, prompts, traffic.timings, strict=True):
            answer = [int(token) for token in timing.request.tokens]
            self.history.add(entry, prompt, answer)
            self.prompts.append(prompt)
            self.answers.append(answer)
        self.timings += traffic.timings

    @property
    def read(self) -> list[int]:
        """Return, for each prompt, the number of tokens that were prefilled because they were not cached."""
        pairs = zip(self.prompts, self.timings, strict=True)
        return [len(prompt) - timing.request.completion.stats.cached_tokens for prompt, timing in pairs]

    @property
    def first_token(self) -> list[float]:
        """Return, for each request, the seconds to its first token."""
        return [timing.first_token for timing in self.timings]

    @property
    def nbytes(self) -> int:
        """Return the bytes of host memory that the prefix cache uses now."""
        return self.llm.figures().prefixes.nbytes


class PrefixArms:
    """The traces of a prefix bench on one model. An arm, for PairedBench, is the name of a trace."""

    def __init__(self, model: Model, settings: PrefixSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._settings, self._clock = model, settings, clock
        self._vocabulary = TraceVocabulary.of(model, settings.scale)
        traces = [make(name, self._vocabulary) for name in settings.traces]
        limit = settings.requests
        self.traces = {trace.name: trace if limit is None else trace.first(limit) for trace in traces}

    def measure(self, group: Group, arm: str) -> PrefixMeasurement:
        """Measure the trace whose name is `arm`.

        Raises NativeError if a request fails, or if memory is too small for the contexts.
        """
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
        return half_of_prefix_bytes(trace, llm.context.state.cell_bytes, llm.context.state.max_bytes)

    def _new_llm(self, trace: Trace, **keywords: Any) -> LLM:
        settings = self._settings
        return LLM(
            self._model,
            n_ctx=settings.n_ctx or max(trace.max_length, WARM_UP + 1),
            n_ubatch=UBATCH,
            n_seq_max=settings.n_seq_max,
            **settings.keywords,
            **keywords,
        )

    def _warm_up(self, llm: LLM) -> None:
        prompt = self._vocabulary.text("warm-up", WARM_UP)
        llm.generate(prompt[: llm.context.n_ctx - 1], SamplingParams(max_tokens=1))

    def _save(self, trace: Trace, path: Path) -> tuple[list[int], float]:
        """Save the trace's prefix with a separate LLM.

        Return the tokens of the prefix, and the seconds to prefill and save it.
        """
        assert trace.prefixes is not None
        prompt = TraceHistory().prompt(trace.requests[0])[: trace.prefixes[1]]
        with closing(self._new_llm(trace)) as llm:
            self._warm_up(llm)
            started = self._clock()
            llm.save_prefix(prompt, path)
            return prompt, self._clock() - started


@contextmanager
def open_bench(model: Model, settings: PrefixSettings) -> Iterator[PairedBench[PrefixMeasurement]]:
    """Make a prefix bench of a model."""
    yield PairedBench(settings.plan(settings.traces), PrefixArms(model, settings).measure)
