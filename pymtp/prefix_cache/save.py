"""A prompt that is read to be saved: its states on the way, then its K and V, to a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from pymtp.context.state import replays
from pymtp.errors import CancelledError
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.file import PIECE
from pymtp.prefix_cache.file_writer import PrefixWriter
from pymtp.prefix_cache.tree import Bytes


class PrefixSaver:
    """What goes to a file of a request's prompt. The request's thread opens and commits it, the engine's thread fills
    it. What it got stays right where the request begins anew.

    tokens: the prompt. places: after how many of them the file gets a state, rising, the last after all.
    few: after pieces of at most so many tokens, but for one alone, states are behind: only contexts with as many drafts
        can load them. The file gets none of these.
    error: what writing failed by.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.places: tuple[int, ...] = ()
        self.few = 1
        self.states: dict[int, Bytes] = {}
        self.error: Exception | None = None
        self._writer: PrefixWriter | None = None
        self._lock = threading.Lock()  # the request's thread may leave while the engine's writes
        self._left = False

    def open(
        self,
        path: str | os.PathLike[str],
        tokens: Sequence[int],
        places: Sequence[int],
        depends_on: Mapping[str, str],
        few: int = 1,
    ) -> None:
        """Raises OSError where no file can be written, and CancelledError after its owner left it."""
        self.tokens, self.places, self.few = list(tokens), tuple(places), few
        assert self.places[-1] == len(self.tokens)
        with self._lock:
            if self._left:
                raise CancelledError("cancelled")
            self._writer = PrefixWriter(path, depends_on)

    # ── For the engine ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def most(self) -> int:
        """How far its prompt may go on from what is there: states after that are yet to be taken."""
        missing = [place for place in self.places if place not in self.states]
        return min(missing) - (self.few > 1) if missing else len(self.tokens)

    def stop(self, n: int) -> int:
        """Where its reading is to stop next, after n tokens."""
        place = min((place for place in self.places if place > n), default=len(self.tokens))
        return place - 1 if 1 < place - n <= self.few else place

    def have(self, states: Mapping[int, Bytes]) -> None:
        """What is there already, by places."""
        self.states |= {n: state for n, state in states.items() if self.few == 1 or not replays(state)}

    def take(self, context: PrefixContext, seq: int, n: int) -> None:
        """The state of a sequence that holds n tokens of the prompt, where it is wanted."""
        if n in self.places and n not in self.states:
            self.states[n] = context.save_state(seq)

    def write(self, context: PrefixContext, seq: int) -> bool:
        """Some K and V of a sequence that holds the prompt; whether all are written, or can not be. Raises what the
        context raises."""
        writer, n = self._writer, len(self.tokens)
        assert writer is not None
        first = writer.n_cells
        cells = context.save_cells(seq, first, min(max(1, PIECE // context.cell_bytes), n - first))
        try:
            with self._lock:
                if self._left:
                    return True
                if not writer.n_tokens:
                    writer.begin(self.tokens, {place: self.states[place] for place in self.places}, context.cell_bytes)
                writer.write(cells)
        except OSError as error:
            self.error = error
        return self.error is not None or writer.n_cells == n

    # ── For its owner ───────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> int:
        """The file is whole: puts it in its place. Returns how many tokens it has. Raises OSError, and CancelledError
        where something is missing."""
        if self.error is not None:
            raise self.error
        if self._writer is None or not 0 < self._writer.n_tokens == self._writer.n_cells:
            raise CancelledError("cancelled")
        with self._lock:  # its owner may leave in another thread
            self._writer.commit()
        return len(self.tokens)

    def __enter__(self) -> PrefixSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._left = True
            if self._writer is not None:
                self._writer.discard()
