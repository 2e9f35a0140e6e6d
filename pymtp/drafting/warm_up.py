"""What rounds cost, before there was one: a few launches in an empty context. `auto` drafts from the first token on.

An LLM times them in its constructor; that of an AsyncLLM while nobody has asked for anything yet.
"""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pymtp.drafting.depth import thread_changes
from pymtp.errors import NativeError, PymtpError
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

STEPS = 3  # of the chain that is timed: further ones cost as much
MORE_ROWS = (4, 8, 2)  # after one row and the chain: what tells most comes first
BATCH_DEPTHS = (0, 1, 3, 7)  # of rounds of all sequences, each twice: the first of so many rows finds new memory
LEAST_TURNS, MOST_TURNS = 2, 4  # no third after ENOUGH seconds
ENOUGH = 0.2
LONGEST = 2.0  # seconds after which nothing is begun; the first token, which may wait for the disk, counts
HELD_UP = 0.1  # seconds that a request may wait for rounds of all sequences that are timed
TOKENS = 64  # different ones, for experts to be chosen as text chooses them


@dataclass(frozen=True)
class FirstCosts:
    """Seconds of verifications by their rows, and of chains by their steps; for rounds of several sequences, of the
    drafts and of the verification, by the number of sequences and the drafts of each. Nothing, where there was no time
    for it."""

    verify: dict[int, float] = field(default_factory=dict)
    draft: dict[int, float] = field(default_factory=dict)
    batch: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)


class EmptyContext(Protocol):
    """What is asked of a context; see context.Context."""

    draft_tokens: int
    n_seq_max: int
    n_ubatch: int

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
    def cancel(self) -> None: ...
    def forget_chosen(self) -> None: ...


def first_costs(
    model: Model, kind: Hashable, context: EmptyContext, unless: Callable[[], object] | None = None
) -> FirstCosts | None:
    """Time what rounds cost in a context of the model that holds no tokens, and is left so, once for each kind.

    kind: all that rounds of the model's contexts differ by. What a busy machine has disturbed, rounds put right.
    unless: asked before each launch, True where somebody waits for the context: what was found until then is returned.
        Launches run on this thread then, and None is returned at once where another context of the model is timed.
        None: launches run on a thread of their own, and to the end, after those of other contexts.

    Weights that give no finite logits tell nothing: the first request says so. Raises what else the context raises.
    """
    if unless is None:
        with model.measuring:
            return _known_or_measured(model, kind, context, None)
    if not model.measuring.acquire(blocking=False):
        return None
    try:
        return _known_or_measured(model, kind, context, unless)
    finally:
        model.measuring.release()


def _known_or_measured(
    model: Model, kind: Hashable, context: EmptyContext, unless: Callable[[], object] | None
) -> FirstCosts:
    found: FirstCosts | None = model.first_costs.get((kind, thread_changes()))
    if found is not None:
        return found
    try:
        if unless is None:
            found = _measured_apart(context, model.n_vocab)
        else:
            found = measure(context, model.n_vocab, unless=unless)
    except NativeError as error:
        if "no finite logits" not in str(error):
            raise
        context.clear()
        context.forget_chosen()
        return FirstCosts()
    # else the weights came from the disk meanwhile, or somebody came
    if found.verify and not (unless and unless()):
        model.first_costs[kind, thread_changes()] = found
    return found


def _measured_apart(context: EmptyContext, n_vocab: int) -> FirstCosts:
    """On a thread of its own: what a signal handler raises, on the main thread, breaks off no launch there."""
    came: list[FirstCosts | BaseException] = []
    ended = (
        _thread.allocate_lock()
    )  # not Thread or a pool: what a handler may do then would wait for locks that they share
    ended.acquire()

    def run() -> None:
        try:
            came.append(measure(context, n_vocab))
        except BaseException as error:
            came.append(error)
        finally:
            ended.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter is about to end, and begins no thread
        return measure(context, n_vocab)
    try:
        while not ended.acquire(timeout=0.1):  # a signal that comes right before it sleeps does not wake it
            pass
    except BaseException:  # of a signal handler
        context.cancel()
        while not came:
            ended.acquire(timeout=0.1)
        raise
    found = came.pop()
    if isinstance(found, BaseException):
        raise found
    return found


def measure(
    context: EmptyContext,
    n_vocab: int,
    clock: Callable[[], float] = time.perf_counter,
    unless: Callable[[], object] | None = None,
) -> FirstCosts:
    """The fastest launches of some turns: others build graphs, find cold caches, or meet a busy machine. unless: as
    for `first_costs`."""
    tokens = [(i + 1) * n_vocab // (TOKENS + 1) for i in range(TOKENS)]
    times: dict[tuple[str, int], list[float]] = {}

    def wanted() -> object:
        return unless is not None and unless()

    def draft(steps: int) -> None:
        context.draft_chain(tokens[0], steps)

    def verify(rows: int) -> None:
        n_past = context.n_past
        context.verify_chain([tokens[(n_past + i) % TOKENS] for i in range(rows)])
        context.rewind(n_past + 1)

    most = context.draft_tokens
    more = [("verify", rows) for rows in MORE_ROWS if rows <= 1 + most]
    launches = [("verify", 1), ("draft", min(STEPS, most)), *more]
    context.set_sampling(Sampler(SamplingParams()))
    begun = clock()
    if wanted():
        return FirstCosts()
    context.prefill(tokens[:1])  # brings the weights into memory
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and clock() - begun > ENOUGH:
            break
        for what, n in launches:
            started = clock()
            if started - begun <= LONGEST and not wanted():
                (verify if what == "verify" else draft)(n)
                times.setdefault((what, n), []).append(clock() - started)
    context.clear()
    if wanted():  # what was launched once only took longer than it will
        times = {launch: seconds for launch, seconds in times.items() if len(seconds) >= LEAST_TURNS}
    found = judged(times)
    if found.verify:
        longest = math.inf if unless is None else HELD_UP
        batch = _rounds_of_all(context, tokens, found.verify[1], begun + LONGEST, clock, wanted, longest)
        found = replace(found, batch=batch)
        context.clear()
    context.forget_chosen()
    return found


def _rounds_of_all(
    context: EmptyContext,
    tokens: Sequence[int],
    row: float,
    end: float,
    clock: Callable[[], float],
    wanted: Callable[[], object],
    longest: float,
) -> dict[tuple[int, int], tuple[float, float]]:
    """Rounds of all sequences at a few depths, as far as they are expected to be over by the end and to take no longer
    than `longest`, until the context is wanted. row: seconds of one."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    n = context.n_seq_max
    expected = LEAST_TURNS * n * row
    for depth in BATCH_DEPTHS:
        started = clock()
        fits = depth <= context.draft_tokens and n * (1 + depth) <= context.n_ubatch
        if n == 1 or not fits or started + expected > end or expected > LEAST_TURNS * longest or wanted():
            break
        if not depth:
            for seq in range(n):
                context.set_sampling(Sampler(SamplingParams()), seq)
            context.prefill_batch({seq: tokens[:1] for seq in range(n)})
            n_past = 1
        for _ in range(LEAST_TURNS):
            chains = {seq: [tokens[(seq + i) % TOKENS] for i in range(1 + depth)] for seq in range(n)}
            if wanted():
                return found
            begun = clock()
            if depth:
                context.draft_chains({seq: chain[0] for seq, chain in chains.items()}, depth)
            drafted = clock()
            verified = context.verify_chains(chains)
            last = drafted - begun, clock() - drafted
            for outcome in verified.values():
                if isinstance(outcome, PymtpError):  # its sequence is empty
                    raise outcome
            n_past += 1
            if depth:
                for seq in range(n):
                    context.rewind(n_past, seq)
        found[n, depth] = last
        expected = 2 * (clock() - started)  # the next has about twice as many rows
    return found


def judged(times: dict[tuple[str, int], list[float]]) -> FirstCosts:
    """The fastest of each kind of launch. No number of rows, and no step of a chain, costs more than as many rows."""
    if ("verify", 1) not in times:
        return FirstCosts()
    one = min(times["verify", 1])
    costs: dict[str, dict[int, float]] = {"verify": {}, "draft": {}}
    for (what, n), seconds in times.items():
        costs[what][n] = min(*seconds, n * one)
    return FirstCosts(costs["verify"], costs["draft"])
