"""The time of rounds, measured by a few decodes in an empty context, so that "auto" drafts from the first token on.

An LLM measures these times in its constructor, an AsyncLLM before the first request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pymtp.drafting.depth import thread_changes
from pymtp.errors import CancelledError, NativeError, PymtpError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

CHAIN_STEPS = 3  # number of steps of the measured draft chain; in longer chains, each further step costs as much
VERIFY_ROWS = (4, 8, 2)  # verifications measured after one row and the chain, the most informative number first
BATCH_DEPTHS = (0, 1, 3, 7)  # depths of measured rounds of all sequences; two runs each, as the first allocates memory
MIN_REPEATS, MAX_REPEATS = 2, 4  # no third repeat after ENOUGH_SECONDS
ENOUGH_SECONDS = 0.2
MAX_SECONDS = 2.0  # no decode begins later; the first token counts, too, which may load weights from disk
MAX_REQUEST_DELAY = 0.1  # the most seconds that a request may have to wait for a measured round of all sequences
LOCK_SECONDS = 0.1  # while it waits for the measurements of another context, a cancelled one ends within this time
N_TOKENS = 64  # number of different tokens, so that a mixture of experts chooses experts as it does for text


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured seconds of decodes; empty where there was no time to measure.

    verify: seconds of a verification, by its number of rows.
    draft: seconds of a draft chain, by its number of steps.
    batch: seconds of the drafts and of the verification of a round of several sequences, by the number of sequences and
        the number of drafts of each.
    """

    verify: dict[int, float] = field(default_factory=dict)
    draft: dict[int, float] = field(default_factory=dict)
    batch: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)


class TimedContext(Protocol):
    """The methods of `context.Context` that a measurement uses."""

    draft_tokens: int
    n_seq_max: int
    n_ubatch: int

    @property
    def cancelled(self) -> bool: ...
    @property
    def n_past(self) -> int: ...
    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None: ...
    def prefill(self, tokens: Sequence[int]) -> object: ...
    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> object: ...
    def draft_chain(self, token: int, n: int) -> object: ...
    def verify_chain(self, tokens: Sequence[int]) -> object: ...
    def draft_chains(self, tokens: Mapping[int, int], n: int) -> object: ...
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> Mapping[int, object]: ...
    def rewind(self, n_keep: int, seq: int = 0) -> None: ...
    def clear(self) -> None: ...
    def forget_chosen(self) -> None: ...


def measure_costs(
    model: Model, options_key: Hashable, context: TimedContext, should_stop: Callable[[], object] | None = None
) -> MeasuredCosts | None:
    """Measure the time of rounds in an empty context of the model, once for each options_key. Empties the context.

    Must not be called on the main thread, where Ctrl-C would end a decode.

    options_key: all options of a context that the time of its rounds depends on. Later rounds correct a measurement
        that a busy machine has disturbed.
    should_stop: a function that is called before each decode. It returns True when a request waits for the context;
        the measurements made until then are returned, or None at once while another context of the model is measured.
        Without should_stop, this waits for the measurements of other contexts, and makes all of its own.

    If the model's logits are not finite, returns empty MeasuredCosts, because the first request raises that error.
    Raises the other errors of the context, and CancelledError if the context is cancelled.
    """
    while not model.measuring_lock.acquire(timeout=LOCK_SECONDS if should_stop is None else 0):
        if should_stop is not None:
            return None
        if context.cancelled:
            raise CancelledError("cancelled")
    try:
        costs: MeasuredCosts | None = model.measured_costs.get((options_key, thread_changes()))
        if costs is not None:
            return costs
        try:
            costs = measure(context, model.n_vocab, should_stop=should_stop)
        except NativeError as error:
            if "no finite logits" not in str(error):
                raise
            context.clear()
            context.forget_chosen()
            return MeasuredCosts()
        # a stopped measurement is not kept, nor one without a verification, whose time was used up by loading weights
        if costs.verify and not (should_stop and should_stop()):
            model.measured_costs[options_key, thread_changes()] = costs
        return costs
    finally:
        model.measuring_lock.release()


def measure(
    context: TimedContext,
    n_vocab: int,
    clock: Callable[[], float] = time.perf_counter,
    should_stop: Callable[[], object] | None = None,
) -> MeasuredCosts:
    """Measure each kind of decode several times, and return the fastest time of each kind.

    Slower decodes built graphs, found cold caches, or ran on a busy machine.

    n_vocab: the number of tokens of the vocabulary.
    should_stop: as for `measure_costs`.
    """
    tokens = [(i + 1) * n_vocab // (N_TOKENS + 1) for i in range(N_TOKENS)]
    times: dict[tuple[str, int], list[float]] = {}

    def stopped() -> object:
        return should_stop is not None and should_stop()

    def draft(steps: int) -> None:
        context.draft_chain(tokens[0], steps)

    def verify(rows: int) -> None:
        n_past = context.n_past
        context.verify_chain([tokens[(n_past + i) % N_TOKENS] for i in range(rows)])
        context.rewind(n_past + 1)

    max_drafts = context.draft_tokens
    verify_rows = [("verify", rows) for rows in VERIFY_ROWS if rows <= 1 + max_drafts]
    decodes = [("verify", 1), ("draft", min(CHAIN_STEPS, max_drafts)), *verify_rows]
    context.set_sampling(Sampler(SamplingParams()))
    begun = clock()
    if stopped():
        return MeasuredCosts()
    context.prefill(tokens[:1])  # loads the weights into memory
    for repeat in range(MAX_REPEATS):
        if repeat >= MIN_REPEATS and clock() - begun > ENOUGH_SECONDS:
            break
        for phase, n in decodes:
            started = clock()
            if started - begun <= MAX_SECONDS and not stopped():
                (verify if phase == "verify" else draft)(n)
                times.setdefault((phase, n), []).append(clock() - started)
    context.clear()
    if stopped():  # keep no decode that ran only once: later ones will be faster
        times = {decode: seconds for decode, seconds in times.items() if len(seconds) >= MIN_REPEATS}
    costs = fastest_costs(times)
    if costs.verify:
        max_delay = math.inf if should_stop is None else MAX_REQUEST_DELAY
        deadline = begun + MAX_SECONDS
        batch = _measure_batch_rounds(context, tokens, costs.verify[1], deadline, clock, stopped, max_delay)
        costs = replace(costs, batch=batch)
        context.clear()
    context.forget_chosen()
    return costs


def _measure_batch_rounds(
    context: TimedContext,
    tokens: Sequence[int],
    row_seconds: float,
    deadline: float,
    clock: Callable[[], float],
    stopped: Callable[[], object],
    max_delay: float,
) -> dict[tuple[int, int], tuple[float, float]]:
    """Measure rounds of all sequences at a few depths.

    No round is started that is expected to end after the deadline or to take longer than max_delay seconds, and none
    while a request waits for the context.

    row_seconds: the seconds of a verification of one row.
    """
    measured: dict[tuple[int, int], tuple[float, float]] = {}
    n = context.n_seq_max
    expected = MIN_REPEATS * n * row_seconds
    for depth in BATCH_DEPTHS:
        started = clock()
        fits = depth <= context.draft_tokens and n * (1 + depth) <= context.n_ubatch
        if n == 1 or not fits or started + expected > deadline or expected > MIN_REPEATS * max_delay or stopped():
            break
        if not depth:
            for seq in range(n):
                context.set_sampling(Sampler(SamplingParams()), seq)
            context.prefill_batch({seq: tokens[:1] for seq in range(n)})
            n_past = 1
        for _ in range(MIN_REPEATS):
            chains = {seq: [tokens[(seq + i) % N_TOKENS] for i in range(1 + depth)] for seq in range(n)}
            if stopped():
                return measured
            begun = clock()
            if depth:
                context.draft_chains({seq: chain[0] for seq, chain in chains.items()}, depth)
            drafted = clock()
            verified = context.verify_chains(chains)
            last = drafted - begun, clock() - drafted
            for outcome in verified.values():
                if isinstance(outcome, PymtpError):  # the failed sequence is empty now
                    raise outcome
            n_past += 1
            if depth:
                for seq in range(n):
                    context.rewind(n_past, seq)
        measured[n, depth] = last
        expected = 2 * (clock() - started)  # the next depth has about twice as many rows
    return measured


def fastest_costs(times: dict[tuple[str, int], list[float]]) -> MeasuredCosts:
    """Return the fastest time of each kind of decode.

    The time of a verification of n rows, or of a chain of n steps, is limited to n times the time of one row.
    """
    if ("verify", 1) not in times:
        return MeasuredCosts()
    one = min(times["verify", 1])
    costs: dict[str, dict[int, float]] = {"verify": {}, "draft": {}}
    for (phase, n), seconds in times.items():
        costs[phase][n] = min(*seconds, n * one)
    return MeasuredCosts(costs["verify"], costs["draft"])
