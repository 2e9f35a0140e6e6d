"""What rounds cost, before there was one: a few launches in an empty context. `auto` drafts from the first token on."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from pymtp.model import Model
from pymtp.sampling import Sampler, SamplingParams

STEPS = 3  # of the chain that is timed: further ones cost as much
MORE_ROWS = (4, 8, 2)  # after one row and the chain: what tells most comes first
LEAST_TURNS, MOST_TURNS = 2, 4  # no third after ENOUGH seconds
ENOUGH = 0.2
LONGEST = 2.0  # seconds after which nothing is begun
TOKENS = 64  # different ones, for experts to be chosen as text chooses them


@dataclass(frozen=True)
class FirstCosts:
    """Seconds: of verifications by their rows, and of chains by their steps."""

    verify: dict[int, float] = field(default_factory=dict)
    draft: dict[int, float] = field(default_factory=dict)


class EmptyContext(Protocol):
    """What is asked of a context; see context.Context."""

    draft_tokens: int

    @property
    def n_past(self) -> int: ...
    def set_sampling(self, sampler: Sampler) -> None: ...
    def prefill(self, tokens: Sequence[int]) -> object: ...
    def draft_chain(self, token: int, n: int) -> object: ...
    def verify_chain(self, tokens: Sequence[int]) -> object: ...
    def rewind(self, n_keep: int) -> None: ...
    def clear(self) -> None: ...
    def forget_chosen(self) -> None: ...


def first_costs(model: Model, kind: Hashable, context: EmptyContext) -> FirstCosts:
    """What rounds cost in a context of the model that holds nothing, and is left so. Measured once for each kind.

    kind: all that rounds of the model's contexts differ by. Raises what the context raises, and keeps nothing then.
    """
    with model.measuring:
        if kind not in model.first_costs:
            model.first_costs[kind] = measure(context, model.n_vocab)
        found: FirstCosts = model.first_costs[kind]
    return found


def measure(context: EmptyContext, n_vocab: int, clock: Callable[[], float] = time.perf_counter) -> FirstCosts:
    """The fastest launches of some turns: others build graphs, find cold caches, or meet a busy machine."""
    tokens = [(i + 1) * n_vocab // (TOKENS + 1) for i in range(TOKENS)]
    costs = FirstCosts()

    def draft(steps: int) -> None:
        context.draft_chain(tokens[0], steps)

    def verify(rows: int) -> None:
        n_past = context.n_past
        context.verify_chain([tokens[(n_past + i) % TOKENS] for i in range(rows)])
        context.rewind(n_past + 1)

    most = context.draft_tokens
    more = [(verify, rows, costs.verify) for rows in MORE_ROWS if rows <= 1 + most]
    launches = [(verify, 1, costs.verify), (draft, min(STEPS, most), costs.draft), *more]
    context.set_sampling(Sampler(SamplingParams()))
    context.prefill(tokens[:1])  # brings the weights into memory
    begun = clock()
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and clock() - begun > ENOUGH:
            break
        for launch, n, found in launches:
            started = clock()
            if started - begun <= LONGEST:
                launch(n)
                found[n] = min(found.get(n, inf), clock() - started)
    context.clear()
    context.forget_chosen()
    one = costs.verify[1]
    costs.verify.update({rows: min(seconds, rows * one) for rows, seconds in costs.verify.items()})
    return costs
