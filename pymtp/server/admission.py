"""How many texts may run or wait: a request is let in with all of its texts, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pymtp.server.errors import QueueFullError


class Admissions:
    """Counts the texts of all requests."""

    def __init__(self, most: int) -> None:
        """most: texts that may run or wait."""
        self.n_open = 0
        self._most = most

    @contextmanager
    def admit(self, texts: int) -> Iterator[Admission]:
        """Lets a request in with so many texts, while this lasts. Its texts may wait for each other, so a request that
        comes when there is nothing else is let in however many they are: it could never be answered otherwise.

        Raises QueueFullError.
        """
        if self.n_open and self.n_open + texts > self._most:
            raise QueueFullError(f"{self.n_open} texts run or wait: try again later")
        admission = Admission(self, texts)
        try:
            yield admission
        finally:
            admission.ended(admission.texts)


class Admission:
    """A request that was let in. texts: those that have not ended. begun: the loop's time when it came."""

    def __init__(self, admissions: Admissions, texts: int) -> None:
        self._admissions = admissions
        self.texts = texts
        self.begun = asyncio.get_running_loop().time()
        admissions.n_open += texts

    def ended(self, texts: int) -> None:
        """So many of its texts make room for others."""
        self.texts -= texts
        self._admissions.n_open -= texts
