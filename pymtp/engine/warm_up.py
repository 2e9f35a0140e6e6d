"""The measurement of the times of rounds, which `draft_tokens="auto"` begins with."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress

from pymtp.context.context import Context
from pymtp.drafting.warm_up import measure_costs
from pymtp.engine.batch_depth import BatchDepth
from pymtp.errors import PymtpError


class WarmUp:
    """The warm-up of a context: rounds are timed once, before the first request.

    done: whether nothing is left to be timed.
    """

    def __init__(self, depth: BatchDepth, options_key: Hashable, *, done: bool) -> None:
        """Create a warm-up that has not run.

        depth: the policy that gets the times.
        options_key: as for `measure_costs`.
        done: whether there is nothing to time.
        """
        self._depth, self._options_key, self.done = depth, options_key, done

    def run(self, context: Context, should_stop: Callable[[], object] | None = None) -> None:
        """Time rounds of the context, if it holds no tokens. No other thread may use it meanwhile.

        should_stop: as for `measure_costs`. If it stopped the warm-up, or if another context of the model is timed at
            the moment, `done` stays False: call this again later.

        Raises the errors of the context. After an error, the context holds no tokens, and `auto` learns the costs from
        the rounds alone.
        """
        if self.done or any(map(context.tokens_held, range(context.n_seq_max))):
            self.done = True
            return
        try:
            costs = measure_costs(context.model, self._options_key, context, should_stop)
            if costs is not None:
                self._depth.set_measured_costs(costs)
                if should_stop is None or not should_stop():
                    self.done = True
        except Exception:
            self.done = True
            with suppress(PymtpError):
                context.clear()
                context.forget_chosen()
            raise
