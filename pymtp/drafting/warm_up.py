"""The time of rounds, measured by a few rounds in an empty context, so that "auto" drafts from the first token on.

An LLM measures these times in its constructor, an AsyncLLM before the first request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from pymtp.drafting.depth import RoundSeconds, RoundTime, thread_changes
from pymtp.errors import CancelledError, NativeError, PymtpError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

# Depths of measured rounds, the most informative first. The costs of 4 and 6 are interpolated, unless the first rounds
# of the others took FIRST_SHARE of later ones: on a GPU, a new number of rows takes as long as ten rounds.
DEPTHS = (0, 1, 3, 7, 2, 5)
MORE_DEPTHS = (4, 6)
FIRST_SHARE = 2.0
MIN_RUNS = 2  # a depth needs two rounds, as the first one allocates memory
# Other depths are timed until two rounds in a row differ by no more than this share: on a GPU, the first few of each
# load kernels and record a graph.
STEADY = 0.15
MAX_REPEATS = 6  # fewer after ENOUGH_SECONDS
ENOUGH_SECONDS = 0.1
PAIR_SECONDS = 0.02  # rounds that take less are measured in pairs
MAX_SECONDS = 2.0  # no round begins that would end later; the first token counts, too, which may load weights from disk
MAX_REQUEST_DELAY = 0.1  # the most seconds that a request may have to wait for a measured round of all sequences
LOCK_SECONDS = 0.1  # while it waits for the measurements of another context, a cancelled one ends within this time
N_TOKENS = 64  # number of different tokens, so that a mixture of experts chooses experts as it does for text


class TimedContext(Protocol):
    """The methods of `context.Context` that a measurement uses."""

    draft_tokens: int
    n_seq_max: int
    n_ubatch: int

    @property
    def cancelled(self) -> bool: ...
    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None: ...
    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> object: ...
    def draft_chains(self, tokens: Mapping[int, int], n: int) -> object: ...
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> Mapping[int, object]: ...
    def rewind(self, n_keep: int, seq: int = 0) -> None: ...
    def clear(self) -> None: ...
    def forget_chosen(self) -> None: ...


def measure_costs(
    model: Model, options_key: Hashable, context: TimedContext, should_stop: Callable[[], object] | None = None
) -> RoundSeconds | None:
    """Measure the time of rounds in an empty context of the model, once for each options_key. Empties the context.

    Must not be called on the main thread, where Ctrl-C would end a decode.

    options_key: all options of a context that the time of its rounds depends on. Later rounds correct a measurement
        that a busy machine has disturbed.
    should_stop: a function that is called before each round. It returns True when a request waits for the context;
        the measurements made until then are returned, or None at once while another context of the model is measured.
        Without should_stop, this waits for the measurements of other contexts, and makes all of its own.

    If the model's logits are not finite, returns no times, because the first request raises that error.
    Raises the other errors of the context, and CancelledError if the context is cancelled.
    """
    while not model.measuring_lock.acquire(timeout=LOCK_SECONDS if should_stop is None else 0):
        if should_stop is not None:
            return None
        if context.cancelled:
            raise CancelledError("cancelled")
    try:
        key = options_key, thread_changes()
        costs: RoundSeconds | None = model.measured_costs.get(key)
        if costs is not None:
            return costs
        try:
            costs = measure(context, model.n_vocab, should_stop=should_stop)
        except NativeError as error:
            if "no finite logits" not in str(error):
                raise
            context.clear()
            context.forget_chosen()
            return {}
        # Not kept is a stopped measurement, an empty one, whose time was used up by loading weights, and one during
        # which the number of threads changed.
        if costs and key[1] == thread_changes() and not (should_stop and should_stop()):
            model.measured_costs[key] = costs
        return costs
    finally:
        model.measuring_lock.release()


def measure(
    context: TimedContext,
    n_vocab: int,
    clock: Callable[[], float] = time.perf_counter,
    should_stop: Callable[[], object] | None = None,
) -> RoundSeconds:
    """Measure rounds of one sequence and of all sequences, each several times, and return the fastest time of each.

    Slower rounds allocated memory, found cold caches, or ran on a busy machine.

    n_vocab: the number of tokens of the vocabulary.
    should_stop: as for `measure_costs`.
    """
    tokens = [(i + 1) * n_vocab // (N_TOKENS + 1) for i in range(N_TOKENS)]
    deadline = clock() + MAX_SECONDS
    measured: dict[tuple[int, int], RoundTime] = {}
    for n in sorted({1, context.n_seq_max}):
        max_delay = MAX_REQUEST_DELAY if n > 1 and should_stop is not None else math.inf
        measured |= _measure_rounds(context, n, tokens, deadline, max_delay, clock, should_stop or (lambda: False))
        if (1, 0) not in measured:
            break
    context.forget_chosen()
    return measured


def _measure_rounds(
    context: TimedContext,
    n: int,
    tokens: Sequence[int],
    deadline: float,
    max_delay: float,
    clock: Callable[[], float],
    stopped: Callable[[], object],
) -> dict[tuple[int, int], RoundTime]:
    """Measure rounds of n sequences at a few depths. Empties the context.

    Short rounds are measured in pairs: the second shows the time of several rounds of this depth, and the first how
    much longer a round takes that builds its graphs. Where a round takes long, that makes no difference.

    No round is started that is expected to end after the deadline or to take longer than max_delay seconds, and none
    while a request waits for the context.
    """
    begun = clock()
    if stopped() or begun > deadline:
        return {}
    for seq in range(n):
        context.set_sampling(Sampler(SamplingParams()), seq)
    context.prefill_batch({seq: tokens[:1] for seq in range(n)})  # loads the weights into memory
    n_past = 1
    depths = [d for d in DEPTHS if d <= context.draft_tokens and n * (1 + d) <= context.n_ubatch]
    firsts: dict[int, list[tuple[float, float]]] = {depth: [] for depth in depths}
    times: dict[int, list[tuple[float, float]]] = {depth: [] for depth in depths}
    runs = dict.fromkeys(depths, 0)

    def run(depth: int) -> tuple[float, float]:
        nonlocal n_past
        runs[depth] += 1
        chains = {seq: [tokens[(seq + n_past + i) % N_TOKENS] for i in range(1 + depth)] for seq in range(n)}
        started = clock()
        if depth:
            context.draft_chains({seq: chain[0] for seq, chain in chains.items()}, depth)
        drafted = clock()
        verified = context.verify_chains(chains)
        for outcome in verified.values():
            if isinstance(outcome, PymtpError):  # the failed sequence is empty now
                raise outcome
        n_past += 1
        if depth:
            for seq in range(n):
                context.rewind(n_past, seq)
        return drafted - started, clock() - drafted

    for _ in range(MAX_REPEATS):
        if clock() - begun > ENOUGH_SECONDS and _first_is_dear(times):
            for depth in MORE_DEPTHS:
                if depth not in times and depth <= context.draft_tokens and n * (1 + depth) <= context.n_ubatch:
                    depths.append(depth)
                    firsts[depth], times[depth], runs[depth] = [], [], 0
        again = depths
        if clock() - begun > ENOUGH_SECONDS and min(runs.values()) >= MIN_RUNS:
            again = [depth for depth in depths if not _is_steady(times[depth])]
        if not again:
            break
        longest = 0.0
        for depth in again:
            # an earlier depth has at least half as many rows
            expected = sum(times[depth][-1]) if times[depth] else 2 * longest if depth > 1 else longest
            if clock() + expected > deadline or expected > max_delay or stopped():
                break
            took = run(depth)
            # Plain rounds matter most, and before a draft after them the head must catch up with the target.
            twice = depth <= 1 or sum(took) < PAIR_SECONDS
            if twice and clock() + sum(took) <= deadline and not stopped():
                if runs[depth] > 1:  # the very first one allocated memory
                    firsts[depth].append(took)
                took = run(depth)
            times[depth].append(took)
            longest = max(longest, sum(took))
    context.clear()
    # The first run of rounds of several sequences says little. After a stop, no run is kept that was the first.
    enough = MIN_RUNS if n > 1 or stopped() else 1
    return {(n, d): time for d, time in fastest(times, firsts).items() if runs[d] >= enough}


def _first_is_dear(times: Mapping[int, Sequence[tuple[float, float]]]) -> bool:
    """Return whether the first round of most depths with drafts took FIRST_SHARE of the fastest one."""
    dear = [sum(each[0]) >= FIRST_SHARE * min(map(sum, each)) for depth, each in times.items() if depth > 1 and each]
    return 2 * sum(dear) > len(dear)


def _is_steady(times: Sequence[tuple[float, float]]) -> bool:
    """Return whether the last two rounds took about the same time."""
    if len(times) < MIN_RUNS:
        return False
    last, before = sum(times[-1]), sum(times[-2])
    return abs(last - before) <= STEADY * min(last, before)


def fastest(
    times: Mapping[int, Sequence[tuple[float, float]]], firsts: Mapping[int, Sequence[tuple[float, float]]]
) -> dict[int, RoundTime]:
    """Return the fastest times of drafting and of verifying, by depth.

    The time of a chain of n drafts is limited to n times that of a round without drafts, and the time of a verification
    of n drafts to 1 + n times.

    firsts: the times of rounds that came after rounds of another depth.
    """
    if not times[0]:
        return {}
    one = min(seconds for _, seconds in times[0])
    found = {}
    for depth, each in times.items():
        if each:
            draft, verify = (min(steps * one, *(t[i] for t in each)) for i, steps in enumerate((depth, 1 + depth)))
            first = [min((t[i] for t in firsts[depth]), default=0.0) for i in (0, 1)]
            found[depth] = RoundTime(draft, verify, max(0.0, first[0] - draft), max(0.0, first[1] - verify))
    return found
