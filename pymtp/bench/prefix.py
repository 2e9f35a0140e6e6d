"""The prefix bench: prompts that begin alike, with prefixes kept and without.

A measurement is a trace in a round. Two LLMs of one model run it side by side, request by request in changing order:
one that keeps prefixes, and one with cache_prompt=False, which reads each prompt whole. Both write the same tokens,
which is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pymtp.bench.order import in_turn
from pymtp.bench.traces import DISK, Ask, Texts, Trace, Words, make, unseen
from pymtp.bench.traffic import Heard, Traffic
from pymtp.engine.request import Caller
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams

CACHE, NONE = "cache", "none"
SHARE = 0.5  # of a trace's prefixes that there is memory for
UBATCH = 512  # tokens
WARM_UP = UBATCH + 16  # tokens: a whole ubatch, and some


@dataclass(frozen=True)
class Settings:
    """What is measured. model: its name, for the record. traces: their names.

    n_ctx: of each text; None for what the trace's longest takes. cache_bytes: None for half of a trace's prefixes where
    it has some, else for what an LLM takes by itself. scale: of all lengths. requests: at most, of each trace.
    placing: further keywords of Model.
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
    """A prefix on disk. nbytes: of the file. save_seconds: with reading it; load_seconds: in another LLM."""

    nbytes: int
    save_seconds: float
    load_seconds: float


@dataclass(frozen=True)
class Measurement:
    """A trace in a round; lists have an entry for each request. round: from 0.

    waves: requests that were asked at once. prompt: tokens. unseen: of these, not the beginning of any text before, nor
    of what is on disk.
    read: of these, with prefixes kept. first_token, first_token_none: seconds from the request to its first token, with
    prefixes kept and without. differing: requests whose texts differ.
    cache_bytes: the budget; None for an LLM's own. nbytes: of host memory for prefixes, the most after a wave. figures:
    of the prefixes, at the end. saved: where the prefix comes from disk.
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
class Group:
    """A round of all traces."""

    round: int
    arms: tuple[str, ...]


def groups(settings: Settings) -> list[Group]:
    """All rounds."""
    return [Group(turn, in_turn(settings.traces, turn)) for turn in range(settings.rounds)]


def half_of(trace: Trace, cell_bytes: int, state_bytes: int) -> int | None:
    """Bytes for half of a trace's prefixes: K and V of their tokens, and a state each. None of a trace without."""
    if trace.prefixes is None or trace.name == DISK:
        return None
    n, tokens = trace.prefixes
    return round(SHARE * n * (tokens * cell_bytes + state_bytes))


@dataclass
class Asked:
    """A trace in one LLM: its texts, and what was heard of each request."""

    llm: LLM
    texts: Texts = field(default_factory=Texts)
    heard: list[Heard] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    def ask(self, wave: tuple[Ask, ...]) -> None:
        """Runs requests to their ends. Raises NativeError when one fails."""
        traffic = Traffic(self.llm.engine)
        prompts = [self.texts.prompt(ask) for ask in wave]
        for ask, prompt in zip(wave, prompts, strict=True):
            params = SamplingParams(max_tokens=ask.tokens, ignore_eos=True)
            marks = [] if ask.mark is None else [[ask.mark]]
            (request,) = self.llm.requests([prompt], params, Caller(), marks=marks)
            traffic.add(request)
        traffic.step_until(lambda: False)
        for ask, prompt, heard in zip(wave, prompts, traffic.texts, strict=True):
            answer = [int(token) for token in heard.request.tokens]
            self.texts.answered(ask, prompt, answer)
            self.prompts.append(prompt)
            self.answers.append(answer)
        self.heard += traffic.texts

    @property
    def read(self) -> list[int]:
        """Tokens of each prompt that were not there."""
        pairs = zip(self.prompts, self.heard, strict=True)
        return [len(prompt) - heard.request.completion.stats.cached_tokens for prompt, heard in pairs]

    @property
    def first_token(self) -> list[float]:
        """Seconds to it, of each request."""
        return [heard.first_token for heard in self.heard]

    @property
    def nbytes(self) -> int:
        """Of host memory that prefixes take now."""
        return self.llm.figures().prefixes.nbytes


class PrefixArms:
    """What the measurements of a run over one model share: the weights, and the traces."""

    def __init__(self, model: Model, settings: Settings, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._settings, self._clock = model, settings, clock
        self._words = Words.of(model, settings.scale)
        traces = [make(name, self._words) for name in settings.traces]
        most = settings.requests
        self.traces = {trace.name: trace if most is None else trace.begun(most) for trace in traces}

    def measure(self, group: Group, arm: str) -> Measurement:
        """arm: the trace. Raises NativeError when there is no memory for its contexts, or a request fails."""
        trace = self.traces[arm]
        with ExitStack() as opened:
            none = Asked(opened.enter_context(closing(self._open(trace, cache_prompt=False))))
            limit = self._limit(trace, none.llm)
            saved, path, there = None, None, list[int]()
            if trace.name == DISK:
                path = Path(opened.enter_context(TemporaryDirectory())) / "prefix"
                there, save_seconds = self._save(trace, path)
            kept = Asked(opened.enter_context(closing(self._open(trace, cache_bytes=limit))))
            for asked in (none, kept):
                self._warm_up(asked.llm)
            if path is not None:
                started = self._clock()
                kept.llm.load_prefix(path)
                saved = Saved(path.stat().st_size, save_seconds, self._clock() - started)
            nbytes = kept.nbytes
            for i, wave in enumerate(trace.waves):
                for asked in in_turn([none, kept], group.round + i):
                    asked.ask(wave)
                nbytes = max(nbytes, kept.nbytes)
            return Measurement(
                round=group.round,
                trace=trace.name,
                waves=[len(wave) for wave in trace.waves],
                prompt=[len(prompt) for prompt in kept.prompts],
                unseen=unseen([there, *kept.prompts], [[], *kept.answers])[1:],
                read=kept.read,
                first_token=kept.first_token,
                first_token_none=none.first_token,
                differing=[i for i, (a, b) in enumerate(zip(kept.answers, none.answers, strict=True)) if a != b],
                cache_bytes=limit,
                nbytes=nbytes,
                figures=asdict(kept.llm.figures().prefixes),
                saved=saved,
            )

    def _limit(self, trace: Trace, llm: LLM) -> int | None:
        if self._settings.cache_bytes is not None:
            return self._settings.cache_bytes
        return half_of(trace, llm.context.cell_bytes, llm.context.state_bytes)

    def _open(self, trace: Trace, **keywords: Any) -> LLM:
        settings = self._settings
        return LLM(
            self._model,
            n_ctx=settings.n_ctx or max(trace.room, WARM_UP + 1),
            n_ubatch=UBATCH,
            n_seq_max=settings.n_seq_max,
            n_threads=settings.threads,
            type_k=settings.cache_type,
            type_v=settings.cache_type,
            **keywords,
        )

    def _warm_up(self, llm: LLM) -> None:
        prompt = self._words.text("warm-up", WARM_UP)
        llm.generate(prompt[: llm.context.n_ctx - 1], SamplingParams(max_tokens=1))

    def _save(self, trace: Trace, path: Path) -> tuple[list[int], float]:
        """The trace's prefix, and the seconds of reading it in an LLM of its own, and writing it to a file."""
        assert trace.prefixes is not None
        prompt = Texts().prompt(trace.asks[0])[: trace.prefixes[1]]
        with closing(self._open(trace)) as llm:
            self._warm_up(llm)
            started = self._clock()
            llm.save_prefix(prompt, path)
            return prompt, self._clock() - started
