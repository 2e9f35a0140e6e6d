"""Saved and loaded K and V and states of a context without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import CancelledError

Bytes = NDArray[np.uint8]


@dataclass
class ScriptedSequence:
    """The contents of a sequence."""

    tokens: list[int] = field(default_factory=list)
    prompt: int = 0  # number of tokens after the last prefill
    chain: list[int] = field(default_factory=list)  # the last token, and the drafts after it
    rewindable: int = 0
    seed: int = 0
    read: bool = False  # the last call with this sequence was a prefill
    copied: bool = False  # the last call with this sequence copied or loaded it
    cells: list[int] = field(default_factory=list)  # tokens whose K and V are there while the state is not


class ScriptedStateMixin:
    """Save and load calls: the K and V of a token are its number, and a state is a digest of the tokens."""

    cell_bytes = 2
    max_bytes = 40
    sequences: list[ScriptedSequence]
    cancelled: bool

    @property
    def state(self) -> ScriptedStateMixin:
        """Return the part of the context that saves and loads."""
        return self

    def clear(self, seq: int | None = None) -> None: ...

    def _begin_call(self, what: str, *seqs: int) -> None:
        """Begin a native call: it may fail, and then empties the sequence that it changes."""
        try:
            if self.cancelled:
                raise CancelledError("cancelled")
            self.before(what, seqs)  # type: ignore[attr-defined]
        except BaseException:
            if not what.startswith("save"):
                self.clear(seqs[-1])
            raise

    def keep_cells(self, n: int, seq: int = 0) -> None:
        self._begin_call("keep_cells", seq)
        tokens = self.sequences[seq].tokens
        assert 0 <= n <= len(tokens)
        self.clear(seq)
        self.sequences[seq].cells = tokens[:n]

    def copy_cells(self, source: int, seq: int, first: int, n: int) -> None:
        assert source != seq
        self._begin_call("copy_cells", source, seq)
        s, t = self.sequences[source], self.sequences[seq]
        assert not t.tokens
        assert first <= len(t.cells)
        assert first + n <= len(s.tokens)
        s.chain, s.rewindable = [], 0
        t.cells = t.cells[:first] + s.tokens[first : first + n]

    def save_cells(self, seq: int, first: int, n: int) -> Bytes:
        self._begin_call("save_cells", seq)
        s = self.sequences[seq]
        assert 0 <= first < first + n <= len(s.tokens)
        s.chain, s.rewindable = [], 0
        return np.array(s.tokens[first : first + n], np.int16).view(np.uint8).reshape(n, 2)

    def load_cells(self, seq: int, first: int, cells: Sequence[Bytes]) -> None:
        self._begin_call("load_cells", seq)
        s = self.sequences[seq]
        assert not s.tokens
        assert first <= len(s.cells)
        del s.cells[first:]
        for rows in cells:
            s.cells += np.ascontiguousarray(rows).view(np.int16).ravel().tolist()

    def save(self, seq: int = 0) -> Bytes:
        self._begin_call("save_state", seq)
        s = self.sequences[seq]
        assert s.tokens
        s.chain, s.rewindable = [], 0
        return np.frombuffer(_digest(s.tokens) + s.prompt.to_bytes(7, "little") + bytes([s.read]), np.uint8)

    def load(self, seq: int, tokens: Sequence[int], state: Bytes) -> None:
        self._begin_call("load_state", seq)
        s, data = self.sequences[seq], state.tobytes()
        assert not s.tokens
        assert list(tokens) == s.cells[: len(tokens)]
        assert data[:32] == _digest(tokens)
        prompt, read = int.from_bytes(data[32:39], "little"), bool(data[39])
        self.sequences[seq] = replace(
            ScriptedSequence(seed=s.seed), tokens=list(tokens), prompt=prompt, read=read, copied=True
        )


def _digest(tokens: Sequence[int]) -> bytes:
    return blake2b(np.array(tokens, np.int64).tobytes(), digest_size=32).digest()
