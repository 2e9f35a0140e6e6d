"""When the launches are timed that `auto` begins with: once for a context, before its first request."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress

from pymtp.context.context import Context
from pymtp.drafting.warm_up import first_costs
from pymtp.engine.batch_depth import BatchDepth
from pymtp.errors import PymtpError


class FirstLaunches:
    """The timing of a context's launches. done: there is nothing to time any more."""

    def __init__(self, depth: BatchDepth, kind: Hashable, *, done: bool) -> None:
        """depth: what learns from the times. kind: as for `first_costs`."""
        self._depth, self._kind, self.done = depth, kind, done
        self._claimed = False

    def claim(self) -> bool:
        """Tell whether launches are to be timed, and nobody else does it: two who take turns would never be done."""
        claimed, self._claimed = self._claimed, True
        return not claimed and not self.done

    def time(self, context: Context, unless: Callable[[], object] | None = None) -> None:
        """Time launches of the context, as far as it holds no tokens. No thread uses it meanwhile.

        unless: as for `first_costs`. Where it stopped the timing, or another context of the model is timed, this is to
            be called again later.

        Raises what the context raises. Then it holds no tokens, and rounds have to tell what they cost.
        """
        if self.done or any(map(context.tokens_held, range(context.n_seq_max))):
            self.done = True
            return
        try:
            found = first_costs(context.model, self._kind, context, unless)
            if found is not None:
                self._depth.begin(found)
                if unless is None or not unless():
                    self.done = True
        except Exception:
            self.done = True
            with suppress(PymtpError):
                context.clear()
                context.forget_chosen()
            raise
