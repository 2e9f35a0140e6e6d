"""Admission control: a request is either admitted with all of its completions, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pymtp.server.errors import QueueFullError


class AdmissionController:
    """A counter of the unfinished completions of all requests, which refuses requests beyond a limit.

    n_unfinished: the number of completions that run or wait.
    """

    def __init__(self, limit: int) -> None:
        """limit: the highest number of completions that may run or wait at the same time."""
        self.n_unfinished = 0
        self._limit = limit

    @contextmanager
    def admit(self, n_completions: int) -> Iterator[Admission]:
        """Admit a request with `n_completions` completions; they count as unfinished until the context is left.

        A request that arrives when no other request runs or waits is admitted even if it has more completions than the
        limit allows. Otherwise a request with very many completions would be refused for ever.

        Raises QueueFullError if the request would exceed the limit.
        """
        if self.n_unfinished and self.n_unfinished + n_completions > self._limit:
            raise QueueFullError(f"{self.n_unfinished} completions run or wait already: try again later")
        admission = Admission(self, n_completions)
        try:
            yield admission
        finally:
            admission.release(admission.n_unfinished)


class Admission:
    """An admitted request.

    n_unfinished: the number of completions of the request that have not finished.
    arrival_time: the time of the event loop's clock when the request arrived.
    """

    def __init__(self, controller: AdmissionController, n_completions: int) -> None:
        self._controller = controller
        self.n_unfinished = n_completions
        self.arrival_time = asyncio.get_running_loop().time()
        controller.n_unfinished += n_completions

    def release(self, n_completions: int) -> None:
        """Note that `n_completions` of this request have finished, which makes room for other requests."""
        self.n_unfinished -= n_completions
        self._controller.n_unfinished -= n_completions
