"""Makes native calls of a context fail at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pymtp import NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.sampling import Sampler

FAULTS = 0.003  # share of native calls
CALLS = ("prefill_batch", "draft_chains", "verify_chains", "first_token", "rewind")
# how calls without a decode fail: "one" with no finite logits, "copy" in the middle of a copy
HOW = {"first_token": "one", **dict.fromkeys(("copy", "copy_cells", "load_cells", "load_state"), "copy")}


class Faults:
    """Wraps calls of a context, so that some of them fail."""

    def __init__(self, context: Context, numbers: random.Random, *, also: Iterable[str] = ()) -> None:
        """Wrap the calls of prefill and rounds. also: names of further calls."""
        self._context, self._numbers = context, numbers
        self.on = True
        self.made: Counter[str] = Counter()
        for name in (*CALLS, *also):
            setattr(context, name, self._wrapped(getattr(context, name), HOW.get(name, "decode")))

    def _wrapped(self, call: Callable[..., Any], how: str) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if not self.on or self._numbers.random() > FAULTS:
                return call(*arguments)
            self.made[how] += 1
            if how == "one":
                raise NativeError("no finite logits, on purpose")
            self._context.break_on_purpose(f"{how}_throws")
            try:
                return call(*arguments)
            finally:
                self._context.break_on_purpose("none")

        return wrapped


def play_shapes(context: Context, faults: Faults) -> None:
    """Run a round for each number of sequences and drafts, so that the same graphs are cached after any history."""
    faults.on = False
    for n in range(1, 1 + context.n_seq_max):
        for seq in range(n):
            context.set_sampling(Sampler(SamplingParams()), seq)
            context.clear(seq)
            context.prefill([1, 2, 3], seq)
        for depth in range(1 + context.draft_tokens):
            if depth:
                context.draft_chains(dict.fromkeys(range(n), 5), depth)
            context.verify_chains({seq: [5] * (1 + depth) for seq in range(n)})
    context.clear()
    faults.on = True
