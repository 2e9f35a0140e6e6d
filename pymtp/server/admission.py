"""Admission control: a request is admitted with all of its completions, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pymtp.server.errors import QueueFullError


class AdmissionController:
    """The number of unfinished completions of all requests, and its limit.

    n_unfinished: completions that run or wait.
    """

    def __init__(self, limit: int) -> None:
        """limit: the number of completions that may run or wait."""
        self.n_unfinished = 0
        self._limit = limit

    @contextmanager
    def admit(self, n_completions: int) -> Iterator[Admission]:
        """Admit a request with `n_completions` completions, until the context is left.

        A request that comes when nothing else runs or waits is admitted with any number of completions: they wait for
        each other, and otherwise the request could never be answered.

        Raises QueueFullError.
        """
        if self.n_unfinished and self.n_unfinished + n_completions > self._limit:
            raise QueueFullError(f"{self.n_unfinished} texts run or wait: try again later")
        admission = Admission(self, n_completions)
        try:
            yield admission
        finally:
            admission.release(admission.n_unfinished)


class Admission:
    """A request that was admitted.

    n_unfinished: its completions that have not finished. arrival_time: the event loop's time when it came.
    """

    def __init__(self, controller: AdmissionController, n_completions: int) -> None:
        self._controller = controller
        self.n_unfinished = n_completions
        self.arrival_time = asyncio.get_running_loop().time()
        controller.n_unfinished += n_completions

    def release(self, n_completions: int) -> None:
        """Make room for other requests: so many completions of this one have finished."""
        self.n_unfinished -= n_completions
        self._controller.n_unfinished -= n_completions
