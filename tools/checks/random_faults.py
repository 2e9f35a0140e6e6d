"""Native calls that fail at random, and what is the same after whatever came of them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pymtp import NativeError, SamplingParams
from pymtp.context.context import Context
from pymtp.sampling import Sampler

FAULTS = 0.003  # of native calls
CALLS = ("prefill_batch", "draft_chains", "verify_chains", "first_token", "rewind")
# how others than those that decode fail: "one" with no finite logits, "copy" in the middle of a copy
HOW = {"first_token": "one", **dict.fromkeys(("copy", "copy_cells", "load_cells", "load_state"), "copy")}


class Interrupt(BaseException):
    """What a signal handler raises."""


class Faults:
    """Makes native calls of a context fail."""

    def __init__(self, context: Context, numbers: random.Random, *, also: Iterable[str] = ()) -> None:
        """also: names of calls, beside those of prompts and rounds."""
        self._context, self._numbers = context, numbers
        self.on = True
        self.made: Counter[str] = Counter()
        for name in (*CALLS, *also):
            setattr(context, name, self._wrapped(getattr(context, name), HOW.get(name, "decode")))

    def _wrapped(self, call: Callable[..., Any], how: str) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if not self.on or self._numbers.random() > FAULTS:
                return call(*arguments)
            kinds = [how]
            if threading.current_thread().name != "pymtp engine":  # handlers run on threads of the program
                kinds += ["before", "after"]
            kind = self._numbers.choice(kinds)
            self.made[kind] += 1
            if kind == "one":
                raise NativeError("no finite logits, on purpose")
            if kind == "before":
                raise Interrupt
            if kind == "after":
                call(*arguments)
                raise Interrupt
            self._context.break_on_purpose(f"{how}_throws")
            try:
                return call(*arguments)
            finally:
                self._context.break_on_purpose("none")

        return wrapped


def play_shapes(context: Context, faults: Faults) -> None:
    """A round of each number of sequences and drafts. Then the same graphs are kept, whatever came before."""
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
