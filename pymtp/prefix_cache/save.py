"""Saves a prompt to a prefix file: its states during prefill, then its K and V."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from pymtp.context.state import replays
from pymtp.errors import CancelledError
from pymtp.prefix_cache.context import PrefixContext
from pymtp.prefix_cache.file import CHUNK_BYTES, IMAGES
from pymtp.prefix_cache.file_images import FileImage, file_tokens
from pymtp.prefix_cache.file_writer import PrefixWriter
from pymtp.prefix_cache.tree import Bytes


class PrefixSaver:
    """Collects the data of a request's prompt, and saves them to a prefix file.

    The caller's thread calls `open` and `commit`; the engine's thread adds the data. They stay valid if the request
    restarts.

    tokens: the token ids of the prompt.
    checkpoints: the positions of the file's states, in rising order; the last one is the end of the prompt.
    max_rewindable: a chunk of 2 to max_rewindable tokens leaves a state that holds tokens to replay, which a context
        with fewer drafts cannot load. Such states are not saved. 1: no chunk leaves such a state.
    error: the error with which writing failed; None if it did not fail.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._file_tokens: list[int] = []
        self.checkpoints: tuple[int, ...] = ()
        self.max_rewindable = 1
        self.states: dict[int, Bytes] = {}
        self.error: Exception | None = None
        self._writer: PrefixWriter | None = None
        self._lock = threading.Lock()  # the caller may leave the with block while the engine's thread writes
        self._exited = False

    def open(
        self,
        path: str | os.PathLike[str],
        tokens: Sequence[int],
        checkpoints: Sequence[int],
        made_with: Mapping[str, str],
        max_rewindable: int = 1,
        images: Mapping[int, FileImage] | None = None,
    ) -> None:
        """Create the file.

        images: the images of the prompt, by their tokens.
        made_with: the settings that the prefix was made with; see file.py.

        Raises OSError if no file can be written there, and CancelledError if the caller has left the with block.
        """
        self.tokens, self.checkpoints, self.max_rewindable = list(tokens), tuple(checkpoints), max_rewindable
        self._file_tokens = self.tokens
        if images:
            self._file_tokens, named = file_tokens(tokens, images)
            made_with = {**made_with, IMAGES: named}
        assert self.checkpoints[-1] == len(self.tokens)
        with self._lock:
            if self._exited:
                raise CancelledError("cancelled")
            self._writer = PrefixWriter(path, made_with)

    # ── For the engine ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def max_reuse(self) -> int:
        """Return the largest number of tokens to take from the cache: with more, a missing state would be skipped."""
        missing = [position for position in self.checkpoints if position not in self.states]
        # one token less: the last token before a checkpoint is prefilled alone, see next_stop
        return min(missing) - (self.max_rewindable > 1) if missing else len(self.tokens)

    def next_stop(self, n: int) -> int:
        """Return the next position after n at which prefill must stop: a checkpoint, or one token before it."""
        position = min((position for position in self.checkpoints if position > n), default=len(self.tokens))
        return position - 1 if 1 < position - n <= self.max_rewindable else position

    def add_states(self, states: Mapping[int, Bytes]) -> None:
        """Add cached states, by their positions, but none that the file must not have; see max_rewindable."""
        self.states |= {n: state for n, state in states.items() if self.max_rewindable == 1 or not replays(state)}

    def take_checkpoint(self, context: PrefixContext, seq: int, n: int) -> None:
        """Save the state of a sequence that holds n tokens of the prompt, if the file needs it."""
        if n in self.checkpoints and n not in self.states:
            self.states[n] = context.state.save(seq)

    def write_cells(self, context: PrefixContext, seq: int) -> bool:
        """Write the next chunk of the K and V of a sequence that holds the prompt.

        Returns True if nothing is left to write: all K and V are written, writing failed, or the caller has left the
        with block. Raises the context's errors.
        """
        writer, n = self._writer, len(self.tokens)
        assert writer is not None
        first = writer.n_cells
        cells = context.state.save_cells(seq, first, min(max(1, CHUNK_BYTES // context.state.cell_bytes), n - first))
        try:
            with self._lock:
                if self._exited:
                    return True
                if not writer.n_tokens:
                    states = {position: self.states[position] for position in self.checkpoints}
                    writer.begin(self._file_tokens, states, context.state.cell_bytes)
                writer.write_cells(cells)
        except OSError as error:
            self.error = error
        return self.error is not None or writer.n_cells == n

    # ── For the caller ──────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> int:
        """Move the complete file to its path, and return the number of its tokens.

        Raises the OSError of a failed write, and CancelledError if data are missing.
        """
        if self.error is not None:
            raise self.error
        if self._writer is None or not 0 < self._writer.n_tokens == self._writer.n_cells:
            raise CancelledError("cancelled")
        with self._lock:  # another thread may call __exit__ at the same time
            self._writer.commit()
        return len(self.tokens)

    def __enter__(self) -> PrefixSaver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._exited = True
            if self._writer is not None:
                self._writer.discard()
