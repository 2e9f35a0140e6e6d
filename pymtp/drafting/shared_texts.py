"""Earlier outputs by owner, in which later requests of the same owner look for what they repeat."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pymtp.drafting.text_index import SEPARATOR, TextIndex


class SharedTexts:
    """The outputs of earlier requests, each owner's in an index of its own, within a limit of bytes.

    One thread uses it, the engine's; any thread may read `nbytes`.

    nbytes: the bytes of host memory of all indexes.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Begin without texts. limit_bytes: the most bytes of all indexes; 0 keeps nothing."""
        self._limit = limit_bytes
        self._indexes: OrderedDict[str, TextIndex] = OrderedDict()  # the least recently used owner first
        self._sizes: dict[str, int] = {}  # their bytes: there may be so many owners that a sum over them takes long
        self.nbytes = 0

    def add(self, owner: str, tokens: Sequence[int]) -> None:
        """Keep an output of the owner, and forget other texts where the limit demands it.

        If this owner alone exceeds the limit, the older half of its tokens goes. Otherwise, the texts of the owner that
        was used least recently go first.
        """
        if self._limit == 0 or not tokens:
            return
        index = self._indexes.get(owner)
        if index is None:
            index = TextIndex()
        index.add([*tokens, SEPARATOR])
        self._indexes[owner] = index
        self._indexes.move_to_end(owner)
        while index.nbytes > self._limit and len(index):
            index.keep_last(len(index) // 2)
        self._count(owner, index.nbytes)
        while self.nbytes > self._limit:  # if this owner is the last, the limit is below the size of an empty index
            oldest, _ = self._indexes.popitem(last=False)
            self._count(oldest, 0)

    def _count(self, owner: str, nbytes: int) -> None:
        """Record the bytes of an owner's index; 0 if it was forgotten."""
        self.nbytes += nbytes - self._sizes.pop(owner, 0)
        if nbytes:
            self._sizes[owner] = nbytes

    def of(self, owner: str) -> TextIndex | None:
        """Return the index of the owner's earlier outputs, or None if there are none. It counts as used now."""
        index = self._indexes.get(owner)
        if index is not None:
            self._indexes.move_to_end(owner)
        return index
