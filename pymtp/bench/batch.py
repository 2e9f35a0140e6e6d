"""The batch bench: several requests at once or arriving over time, plain, with fixed depths and with `auto`.

A group is a number of sequences at one acceptance. It runs every arm once, one right after the other, each in a new
LLM that wrote other texts first. All arms of a round have the same prompts, the same times of arrival and, where
acceptance is made up, the same luck.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from pymtp.bench.corpus import TokenSource
from pymtp.bench.decode import AUTO, DEPTHS, MAX_DEPTH, NONE, digest, draft_tokens
from pymtp.bench.order import in_turn
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.bench.traffic import Traffic, delays
from pymtp.context.inspect import Counters
from pymtp.engine.engine_stats import Figures
from pymtp.engine.request import Caller, Request
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams

ARMS = (NONE, *DEPTHS, AUTO)
REAL = "real"  # acceptance: as the target says
UBATCH = 512  # tokens
ALONE = 16  # rounds of those who write, before a long prompt arrives
NATIVE = ("prefill", "head_sync", "draft", "verify", "rewind")  # phases of a context that do not overlap


@dataclass(frozen=True)
class Settings:
    """What is measured. model: its name, for the record. sequences: numbers of them. arms: of ARMS.

    acceptance: REAL, or how likely a draft is accepted where those before it are.
    prompt_tokens, tokens: of each request. warm_up: tokens of each text that is written first.
    requests: for each sequence. rate: requests a second; None for all at once.
    arriving: tokens of a prompt that arrives where others write; None for none.
    placing: further keywords of Model.
    """

    model: str
    sequences: tuple[int, ...]
    arms: tuple[str, ...]
    acceptance: tuple[str, ...]
    prompt_tokens: int
    tokens: int
    warm_up: int
    requests: int
    rate: float | None
    arriving: int | None
    temperature: float
    rounds: int
    threads: int
    gpu_layers: int
    cache_type: str
    draft_vocab: int | Literal["auto", "all"] = "auto"
    placing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Delays:
    """Seconds: the median, the 99th of a hundred, and the longest."""

    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Delays | None:
        """None of none."""
        if not seconds:
            return None
        rising = sorted(seconds)
        return cls(statistics.median(rising), rising[math.ceil(0.99 * len(rising)) - 1], rising[-1])


@dataclass(frozen=True)
class Arriving:
    """A prompt that arrived where others wrote. ubatch_seconds: a piece of that prompt, read alone; the median.
    round_seconds: a round of those who write, alone; the median. longest_gap: between pieces of theirs, in seconds,
    from the prompt's arrival to its first token."""

    ubatch_seconds: float
    round_seconds: float
    longest_gap: float

    @property
    def ratio(self) -> float:
        """The longest gap over one ubatch and one round."""
        return self.longest_gap / (self.ubatch_seconds + self.round_seconds)


@dataclass(frozen=True)
class Served:
    """What came of some requests.

    seconds: from the first arrival to the last token. first_token: from a request's arrival. gaps: between its pieces.
    rounds, rows: of verifications, rows of padding included. depths: rounds by drafts of each sequence.
    target_launches, draft_launches: batches handed to either, prompts among them.
    step_seconds: of the engine's steps. python_seconds: of these, what was not in a native phase; sampling a prompt's
        first token and copying its logits count as Python's.
    digests: of the texts.
    """

    tokens: int
    seconds: float
    first_token: Delays
    gaps: Delays | None
    rounds: int
    rows: int
    drafted: int
    accepted: int
    depths: dict[int, int]
    target_launches: int
    draft_launches: int
    steps: int
    step_seconds: float
    python_seconds: float
    digests: list[str]

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Measurement(Served):
    """One arm in one group. round: from 0."""

    round: int = field(kw_only=True)
    acceptance: str = field(kw_only=True)
    n: int = field(kw_only=True)
    arm: str = field(kw_only=True)
    arriving: Arriving | None = field(kw_only=True)


@dataclass(frozen=True)
class Group:
    """So many sequences at one acceptance in one round: what is compared with each other."""

    round: int
    acceptance: str
    n: int
    arms: tuple[str, ...]


def groups(settings: Settings) -> list[Group]:
    """All groups in order."""
    cells = [(acceptance, n) for acceptance in settings.acceptance for n in settings.sequences]
    return [
        Group(turn, acceptance, n, in_turn(settings.arms, turn + i))
        for turn in range(settings.rounds)
        for i, (acceptance, n) in enumerate(cells)
    ]


def rates(acceptance: str) -> list[float]:
    """How likely the first, second, … draft of a round is accepted."""
    return [float(acceptance) ** depth for depth in range(1, MAX_DEPTH + 1)]


class BatchArms:
    """What the arms of a run over one model share: the weights, and the prompts of each round."""

    def __init__(self, model: Model, settings: Settings, source: TokenSource) -> None:
        self._model, self._settings, self._source = model, settings, source
        most = max(settings.sequences)
        self._warm_ups = [source.take(settings.prompt_tokens) for _ in range(most)]
        self._arriving = source.take(settings.arriving) if settings.arriving else None
        self._prompts: list[list[list[int]]] = []  # by round

    def measure(self, group: Group, arm: str) -> Measurement:
        """Raises NativeError when there is no memory for its contexts."""
        with closing(self._open(group, arm)) as llm:
            serve(llm, self._warm_ups[: group.n], self._params(self._settings.warm_up))
            n = group.n * self._settings.requests
            due = delays(n, self._settings.rate, seed=group.round)
            served = serve(llm, self._of_round(group.round)[:n], self._params(self._settings.tokens), due)
            arriving = None
            if self._arriving is not None:
                arriving = arrive(llm, self._arriving, self._warm_ups[: group.n], self._params(None))
        return Measurement(
            **vars(served), round=group.round, acceptance=group.acceptance, n=group.n, arm=arm, arriving=arriving
        )

    def _of_round(self, number: int) -> list[list[int]]:
        settings = self._settings
        while len(self._prompts) <= number:
            n = max(settings.sequences) * settings.requests
            self._prompts.append([self._source.take(settings.prompt_tokens) for _ in range(n)])
        return self._prompts[number]

    def _params(self, tokens: int | None) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=self._settings.temperature, seed=0, ignore_eos=True)

    def _open(self, group: Group, arm: str) -> LLM:
        settings = self._settings
        written = max(settings.tokens, settings.warm_up)
        if settings.arriving is not None:
            written = max(written, room_to_write(settings, group.n))
        keywords: dict[str, Any] = {
            "n_ctx": max(settings.prompt_tokens + written, settings.arriving or 0),
            "n_ubatch": UBATCH,
            "n_seq_max": group.n + (settings.arriving is not None),
            "n_threads": settings.threads,
            "type_k": settings.cache_type,
            "type_v": settings.cache_type,
            "draft_tokens": draft_tokens(arm),
            "draft_vocab": settings.draft_vocab,
            "cache_prompt": False,
        }
        if group.acceptance == REAL:
            return LLM(self._model, **keywords)
        return SyntheticLLM(self._model, rates(group.acceptance), group.round, **keywords)


def submitted(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> Request:
    """A new request, which nobody waits for."""
    (request,) = llm.requests([list(prompt)], params, Caller())
    return request


def serve(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, due: Sequence[float] | None = None
) -> Served:
    """Runs requests to their ends. due: when each arrives, in seconds; None for all at once."""
    traffic = Traffic(llm.engine)
    before, figures = llm.context.counters, llm.figures()
    submits = [partial(submitted, llm, prompt, params) for prompt in prompts]
    seconds = traffic.run(submits, [0.0] * len(prompts) if due is None else due)
    return served(traffic, seconds, (before, llm.context.counters), (figures, llm.figures()))


def served(
    traffic: Traffic, seconds: float, counters: tuple[Counters, Counters], figures: tuple[Figures, Figures]
) -> Served:
    """counters, figures: before and after."""
    earlier, later = figures
    before, after = counters
    native = sum(getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds") for name in NATIVE)
    first_token = Delays.of([heard.first_token for heard in traffic.texts])
    assert first_token is not None  # every request has one
    return Served(
        tokens=sum(len(heard.request.tokens) for heard in traffic.texts),
        seconds=seconds,
        first_token=first_token,
        gaps=Delays.of([gap for heard in traffic.texts for gap in heard.gaps]),
        rounds=later.rounds - earlier.rounds,
        rows=later.rows - earlier.rows,
        drafted=later.drafted - earlier.drafted,
        accepted=later.accepted - earlier.accepted,
        depths=dict(Counter(later.depths) - Counter(earlier.depths)),
        target_launches=after.target_decodes - before.target_decodes,
        draft_launches=after.draft_decodes - before.draft_decodes,
        steps=len(traffic.steps),
        step_seconds=sum(traffic.steps),
        python_seconds=sum(traffic.steps) - native,
        digests=[digest(heard.request.tokens) for heard in traffic.texts],
    )


def arrive(
    llm: LLM,
    prompt: Sequence[int],
    writers: Sequence[Sequence[int]],
    params: SamplingParams,
    clock: Callable[[], float] = time.perf_counter,
) -> Arriving:
    """A prompt arrives where others write. params: of texts that do not end. clock: the engine's."""
    engine = llm.engine
    first = replace(params, max_tokens=1)
    alone = Traffic(engine, clock)
    alone.run([partial(submitted, llm, prompt, first)], [0.0])
    traffic = Traffic(engine, clock)
    writing = [traffic.add(submitted(llm, writer, params)) for writer in writers]
    traffic.step_until(lambda: all(heard.pieces for heard in writing))
    n = len(traffic.steps)
    traffic.step_until(lambda: len(traffic.steps) >= n + ALONE)
    rounds = traffic.steps[n:]
    arrived = traffic.add(submitted(llm, prompt, first))
    traffic.step_until(lambda: arrived.request.ended)
    for heard in writing:
        engine.cancel(heard.request)
    engine.settle()
    return Arriving(
        ubatch_seconds=statistics.median(alone.steps[: len(prompt) // llm.context.n_ubatch] or alone.steps),
        round_seconds=statistics.median(rounds),
        longest_gap=max(
            later - earlier for heard in writing for earlier, later in pairwise(heard.pieces) if later > arrived.due
        ),
    )


def room_to_write(settings: Settings, n: int) -> int:
    """The most tokens that one of n texts may have when the prompt that arrives is read. A round brings one token more
    than it drafts, and comes with each piece of a prompt."""

    def pieces(tokens: int) -> int:
        return -(-tokens // UBATCH)

    rounds = n * pieces(settings.prompt_tokens) + ALONE + pieces(settings.arriving or 0) + 1
    return rounds * (1 + MAX_DEPTH)
