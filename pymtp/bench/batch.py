"""The batch bench: several requests at once or arriving over time, without drafts, with fixed depths and with `auto`.

An arm is one of the compared variants: no drafts, a fixed number of drafts per round, or `auto`. A group is a number of
sequences at one acceptance. In a group, every arm is measured once, one right after the other, each in a new LLM that
was warmed up with other prompts. All arms of a bench round have the same prompts, the same times of arrival and, with
synthetic acceptance, the same random numbers. batch_forced has the bench with forced texts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from pymtp.bench.corpus import TokenSource
from pymtp.bench.decode import AUTO, DEPTHS, HEAD, MAX_DEPTH, NONE, digest, draft_options
from pymtp.bench.paired import BenchSettings, Group, PairedBench
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.bench.traffic import Traffic, delays, prepare, run_on_engine_thread
from pymtp.context.inspect import Counters
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Figures

ARMS = (NONE, *DEPTHS, HEAD, AUTO)
REAL = "real"  # acceptance by the target, not synthetic
FORCED = "forced"  # acceptance of drafts that equal a forced text
UBATCH = 512  # tokens
ROUNDS_BEFORE_ARRIVAL = 16  # decoding rounds of the running requests before the long prompt arrives
NATIVE = ("prefill", "head_sync", "draft", "verify", "rewind")  # timed phases of native code, which do not overlap


@dataclass(frozen=True, kw_only=True)
class BatchSettings(BenchSettings):
    """Settings of a batch bench.

    sequences: numbers of sequences to measure.
    arms: variants to compare, from ARMS.
    acceptance: for each acceptance to measure, REAL or the probability that a draft is accepted if all drafts before it
        in its round were accepted. With forced text, only FORCED.
    forced_text: where the forced texts come from; None for text that the target chooses.
    kinds: with forced text, the kinds of the requests, in turn.
    synthetic: with forced text, the rates of the head's drafts.
    prompt_tokens, tokens: length of each prompt, and number of tokens to generate after it. With forced text, prompts
        have their own lengths, and `tokens` is the most of each text.
    warm_up: number of tokens to generate for each prompt of the warm-up.
    requests: number of requests per sequence.
    rate: mean number of requests that arrive per second; None if all arrive at once.
    arriving: length in tokens of a prompt that arrives while other requests are generated; None to measure none.
    """

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
    forced_text: str | None = None
    kinds: tuple[str, ...] = ()
    synthetic: tuple[float, ...] | None = None
    draft_vocab: int | Literal["auto", "all"] = "auto"


@dataclass(frozen=True)
class Delays:
    """The median, the 99th percentile and the longest of some delays, in seconds."""

    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Delays | None:
        """Compute the figures of delays; None for an empty list."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        return cls(statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1])


@dataclass(frozen=True)
class Arrival:
    """The delay of running requests by a prompt that arrived, in seconds.

    ubatch_seconds: median time of a ubatch of the prompt, when it is prefilled alone.
    round_seconds: median time of a decoding round of the running requests, before the prompt arrived.
    longest_gap: longest time between two pieces of a running request, while the prompt was prefilled.
    """

    ubatch_seconds: float
    round_seconds: float
    longest_gap: float

    @property
    def ratio(self) -> float:
        """Return the longest gap relative to the time of one ubatch and one round."""
        return self.longest_gap / (self.ubatch_seconds + self.round_seconds)


@dataclass(frozen=True)
class TrafficResult:
    """The result of running some requests.

    tokens: number of generated tokens.
    seconds: time from the first arrival to the last token.
    first_token: delays from a request's arrival to its first token.
    gaps: delays between two successive pieces of a request.
    rounds, rows: number of decoding rounds, and of rows in their verifications, padding rows included.
    drafted, accepted: number of verified drafts, and of accepted ones. *_by_text: of these, the drafts from text.
    depths: number of rounds, by the number of drafts per sequence.
    target_launches, draft_launches: llama_decode calls of the target and of the head, prefills included.
    steps, step_seconds: number of engine steps, and their total time.
    python_seconds: part of step_seconds that was not in a native phase; it includes sampling the first token of a
        prompt and copying its logits.
    digests: hash of each completion's tokens.
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
    drafted_by_text: int = 0
    accepted_by_text: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens/s of all requests together."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class BatchMeasurement(TrafficResult):
    """The measurement of one arm in one group.

    round: index of the bench round.
    n: number of sequences.
    arriving: delay of running requests by an arriving prompt; None if it was not measured.
    """

    round: int = field(kw_only=True)
    acceptance: str = field(kw_only=True)
    n: int = field(kw_only=True)
    arm: str = field(kw_only=True)
    arriving: Arrival | None = field(kw_only=True)


def groups(settings: BatchSettings) -> list[Group]:
    """List all groups in the order in which they are measured. A cell is an acceptance and a number of sequences."""
    return settings.plan(settings.arms, [(a, n) for a in settings.acceptance for n in settings.sequences])


def rates(acceptance: str) -> list[float]:
    """Return the probability that the first, second, … draft of a round is accepted."""
    return [float(acceptance) ** depth for depth in range(1, MAX_DEPTH + 1)]


class BatchArms:
    """The arms of a batch bench on one model: they share the weights, and the prompts of each bench round."""

    def __init__(self, model: Model, settings: BatchSettings, source: TokenSource) -> None:
        self._model, self._settings, self._source = model, settings, source
        n_max = max(settings.sequences)
        self._warm_ups = [source.take(settings.prompt_tokens) for _ in range(n_max)]
        self._arriving = source.take(settings.arriving) if settings.arriving else None
        self._prompts: list[list[list[int]]] = []  # by bench round, then by request

    def measure(self, group: Group, arm: str) -> BatchMeasurement:
        """Measure an arm in a new LLM. Raises NativeError if there is too little memory for its contexts."""
        acceptance, n = group.cell
        with closing(self._new_llm(group, arm)) as llm:
            run_requests(llm, self._warm_ups[:n], self._params(self._settings.warm_up))
            n_requests = n * self._settings.requests
            due = delays(n_requests, self._settings.rate, seed=group.round)
            prompts = self._round_prompts(group.round)[:n_requests]
            result = run_requests(llm, prompts, self._params(self._settings.tokens), due)
            arriving = None
            if self._arriving is not None:
                arriving = measure_arrival(llm, self._arriving, self._warm_ups[:n], self._params(None))
        return BatchMeasurement(
            **vars(result), round=group.round, acceptance=acceptance, n=n, arm=arm, arriving=arriving
        )

    def _round_prompts(self, number: int) -> list[list[int]]:
        settings = self._settings
        while len(self._prompts) <= number:
            n = max(settings.sequences) * settings.requests
            self._prompts.append([self._source.take(settings.prompt_tokens) for _ in range(n)])
        return self._prompts[number]

    def _params(self, tokens: int | None) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=self._settings.temperature, seed=0, ignore_eos=True)

    def _new_llm(self, group: Group, arm: str) -> LLM:
        settings, (acceptance, n) = self._settings, group.cell
        n_generated = max(settings.tokens, settings.warm_up)
        if settings.arriving is not None:
            n_generated = max(n_generated, writer_token_limit(settings, n))
        keywords: dict[str, Any] = {
            "n_ctx": max(settings.prompt_tokens + n_generated, settings.arriving or 0),
            "n_ubatch": UBATCH,
            "n_seq_max": n + (settings.arriving is not None),
            **settings.keywords,
            **draft_options(arm),
            "draft_vocab": settings.draft_vocab,
            "cache_prompt": False,
        }
        if acceptance == REAL:
            return LLM(self._model, **keywords)
        return SyntheticLLM(self._model, rates(acceptance), group.round, **keywords)


@contextmanager
def open_bench(model: Model, settings: BatchSettings) -> Iterator[PairedBench[BatchMeasurement]]:
    """Make a batch bench of a model."""
    yield PairedBench(groups(settings), BatchArms(model, settings, TokenSource.of(model)).measure)


def run_requests(
    llm: LLM, prompts: Sequence[Sequence[int]], params: SamplingParams, due: Sequence[float] | None = None
) -> TrafficResult:
    """Run requests until all have ended.

    due: arrival time of each request in seconds from the start, ascending; None if all arrive at once.
    """
    traffic = Traffic(llm._engine)
    before, figures = llm.context.counters, llm.figures()
    submits = [prepare(llm, prompt, params) for prompt in prompts]
    seconds = run_on_engine_thread(llm, lambda: traffic.run(submits, [0.0] * len(prompts) if due is None else due))
    return summarize(traffic, seconds, (before, llm.context.counters), (figures, llm.figures()))


def summarize(
    traffic: Traffic, seconds: float, counters: tuple[Counters, Counters], figures: tuple[Figures, Figures]
) -> TrafficResult:
    """Summarize the requests that a Traffic has run.

    seconds: time from the first arrival to the last token.
    counters, figures: the context's counters and the engine's figures, each before and after the run.
    """
    earlier, later = figures
    before, after = counters
    native = sum(getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds") for name in NATIVE)
    first_token = Delays.of([timing.first_token for timing in traffic.timings])
    assert first_token is not None  # every request has generated at least one token
    return TrafficResult(
        tokens=sum(len(timing.request.tokens) for timing in traffic.timings),
        seconds=seconds,
        first_token=first_token,
        gaps=Delays.of([gap for timing in traffic.timings for gap in timing.gaps]),
        rounds=later.rounds - earlier.rounds,
        rows=later.rows - earlier.rows,
        drafted=later.drafted - earlier.drafted,
        accepted=later.accepted - earlier.accepted,
        drafted_by_text=later.drafted_by_text - earlier.drafted_by_text,
        accepted_by_text=later.accepted_by_text - earlier.accepted_by_text,
        depths=dict(Counter(later.depths) - Counter(earlier.depths)),
        target_launches=after.target_decodes - before.target_decodes,
        draft_launches=after.draft_decodes - before.draft_decodes,
        steps=len(traffic.step_seconds),
        step_seconds=sum(traffic.step_seconds),
        python_seconds=sum(traffic.step_seconds) - native,
        digests=[digest(timing.request.tokens) for timing in traffic.timings],
    )


def measure_arrival(
    llm: LLM,
    prompt: Sequence[int],
    running_prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    clock: Callable[[], float] = time.perf_counter,
) -> Arrival:
    """Measure how long running requests are delayed while an arriving prompt is prefilled.

    prompt: the prompt that arrives.
    running_prompts: prompts of the running requests.
    params: sampling parameters of the running requests, with max_tokens=None.
    clock: the clock that the engine uses.
    """
    engine, n_ubatch = llm._engine, llm.context.n_ubatch
    submit_alone, submit_arriving = (prepare(llm, prompt, replace(params, max_tokens=1)) for _ in range(2))
    submits = [prepare(llm, other, params) for other in running_prompts]

    def measure() -> Arrival:
        alone, traffic = Traffic(engine, clock), Traffic(engine, clock)
        alone.run([submit_alone], [0.0])
        running = [traffic.add(submit()) for submit in submits]
        traffic.step_until(lambda: all(timing.pieces for timing in running))
        n_before = len(traffic.step_seconds)
        traffic.step_until(lambda: len(traffic.step_seconds) >= n_before + ROUNDS_BEFORE_ARRIVAL)
        rounds = traffic.step_seconds[n_before:]
        arrived = traffic.add(submit_arriving())
        traffic.step_until(lambda: arrived.request.ended)
        for timing in running:
            engine.cancel(timing.request)
        engine.process_queues()
        gaps = [pair for timing in running for pair in pairwise(timing.pieces)]
        return Arrival(
            ubatch_seconds=statistics.median(alone.step_seconds[: len(prompt) // n_ubatch] or alone.step_seconds),
            round_seconds=statistics.median(rounds),
            longest_gap=max(later - earlier for earlier, later in gaps if later > arrived.due),
        )

    return run_on_engine_thread(llm, measure)


def writer_token_limit(settings: BatchSettings, n: int) -> int:
    """Return an upper bound of the tokens that each of n running requests generates until the prompt is prefilled.

    A round follows each ubatch of a prompt, and yields at most one token more than it drafts.
    """

    def ubatches(tokens: int) -> int:
        return -(-tokens // UBATCH)

    rounds = n * ubatches(settings.prompt_tokens) + ROUNDS_BEFORE_ARRIVAL + ubatches(settings.arriving or 0) + 1
    return rounds * (1 + MAX_DEPTH)
