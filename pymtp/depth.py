"""How many drafts next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Depth(Protocol):
    """Chooses the depth of each round, and hears what came of it."""

    def choose(self, room: int) -> int:
        """The drafts to make now. room: the most that can be used."""
        ...

    def keep(self, confidences: Sequence[float]) -> int:
        """How many of the drafts just made to verify. confidences: the head's probability of each."""
        ...

    def observe(
        self,
        drafted: int,
        verified: int,
        accepted: int,
        draft_seconds: float,
        verify_seconds: float,
        confidences: Sequence[float],
    ) -> None:
        """What came of a round: drafts made, verified and accepted, and what both phases took."""
        ...


class FixedDepth:
    """The same depth every round, as far as there is room."""

    def __init__(self, n: int) -> None:
        self._n = n

    def choose(self, room: int) -> int:
        return max(0, min(self._n, room))

    def keep(self, confidences: Sequence[float]) -> int:
        return len(confidences)

    def observe(self, *_: object) -> None:
        """Nothing that comes of a round changes it."""
