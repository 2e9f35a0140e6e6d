"""Saves a prompt to a prefix file: its states during prefill, then its K and V."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from pymtp.context.state import replays
from pymtp.errors import CancelledError
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.file import CHUNK_BYTES
from pymtp.prefix_cache.file_writer import PrefixWriter
from pymtp.prefix_cache.tree import Bytes


class PrefixSaver:
    """The prompt of a request that is saved to a file, and the data collected so far.

    The caller's thread opens and commits it; the engine's thread fills it. The data stay valid if the request restarts.

    tokens: the prompt.
    checkpoints: the positions of the file's states, rising; the last one is the end of the prompt.
    max_rewindable: a chunk of 2 to so many tokens leaves a state that is behind by some tokens, and only contexts with
        as many drafts can load it. The file gets none of these. 1: no chunk leaves one.
    error: the error of a write that failed.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.checkpoints: tuple[int, ...] = ()
        self.max_rewindable = 1
        self.states: dict[int, Bytes] = {}
        self.error: Exception | None = None
        self._writer: PrefixWriter | None = None
        self._lock = threading.Lock()  # the caller may exit while the engine's thread writes
        self._exited = False

    def open(
        self,
        path: str | os.PathLike[str],
        tokens: Sequence[int],
        checkpoints: Sequence[int],
        made_with: Mapping[str, str],
        max_rewindable: int = 1,
    ) -> None:
        """Create the file.

        made_with: the settings that the file names; see file.py.

        Raises OSError where no file can be written, and CancelledError after the caller exited.
        """
        self.tokens, self.checkpoints, self.max_rewindable = list(tokens), tuple(checkpoints), max_rewindable
        assert self.checkpoints[-1] == len(self.tokens)
        with self._lock:
            if self._exited:
                raise CancelledError("cancelled")
            self._writer = PrefixWriter(path, made_with)

    # ── For the engine ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def max_reuse(self) -> int:
        """Return how many tokens the prompt may take from the cache: states after them are still missing."""
        missing = [position for position in self.checkpoints if position not in self.states]
        # one token less: the last token before a checkpoint is prefilled alone, see next_stop
        return min(missing) - (self.max_rewindable > 1) if missing else len(self.tokens)

    def next_stop(self, n: int) -> int:
        """Return where prefill must stop next, after n tokens."""
        position = min((position for position in self.checkpoints if position > n), default=len(self.tokens))
        return position - 1 if 1 < position - n <= self.max_rewindable else position

    def add_states(self, states: Mapping[int, Bytes]) -> None:
        """Add the cached states, by their positions."""
        self.states |= {n: state for n, state in states.items() if self.max_rewindable == 1 or not replays(state)}

    def take_checkpoint(self, context: PrefixContext, seq: int, n: int) -> None:
        """Save the state of a sequence that holds n tokens of the prompt, if the file needs it."""
        if n in self.checkpoints and n not in self.states:
            self.states[n] = context.save_state(seq)

    def write_cells(self, context: PrefixContext, seq: int) -> bool:
        """Write the next K and V of a sequence that holds the prompt.

        Returns whether it is done: all are written, writing failed, or the caller exited. Raises the context's errors.
        """
        writer, n = self._writer, len(self.tokens)
        assert writer is not None
        first = writer.n_cells
        cells = context.save_cells(seq, first, min(max(1, CHUNK_BYTES // context.cell_bytes), n - first))
        try:
            with self._lock:
                if self._exited:
                    return True
                if not writer.n_tokens:
                    states = {position: self.states[position] for position in self.checkpoints}
                    writer.begin(self.tokens, states, context.cell_bytes)
                writer.write_cells(cells)
        except OSError as error:
            self.error = error
        return self.error is not None or writer.n_cells == n

    # ── For the caller ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> int:
        """Move the complete file to its path, and return the number of its tokens.

        Raises OSError, and CancelledError if data are missing.
        """
        if self.error is not None:
            raise self.error
        if self._writer is None or not 0 < self._writer.n_tokens == self._writer.n_cells:
            raise CancelledError("cancelled")
        with self._lock:  # another thread may exit at the same time
            self._writer.commit()
        return len(self.tokens)

    def __enter__(self) -> PrefixSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._exited = True
            if self._writer is not None:
                self._writer.discard()
