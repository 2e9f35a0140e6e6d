"""Which characters of a text were drafted, and at which step."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pymtp.chat import Event, Said, Thought
from pymtp.engine.request import Piece
from pymtp.model.model import Model


class Origins:
    """Follows the tokens of one text."""

    def __init__(self, model: Model) -> None:
        self._model = model
        # the same decoder as that of the text: a character is the token's that completes it
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._runs: list[tuple[int, int]] = []  # (where characters end, their step), of those not told yet
        self._length = 0

    def of(self, pieces: Sequence[Piece], events: Sequence[Event]) -> dict[str, Any] | None:
        """What a chunk tells of pieces and events that are new; None where neither brings anything.

        origins: [field, characters, step] in the order of the text; step 0 for what the target wrote, k for what was
        drafted at step k. rounds: [drafts verified, accepted] of each round.
        """
        for piece in pieces:
            for i, token in enumerate(piece.token_ids):
                self._length += len(self._decoder.decode(self._model.token_bytes(token)))
                self._runs.append((self._length, i + 1 if i < piece.accepted else 0))
        origins: list[list[Any]] = []
        for event in events:
            if isinstance(event, (Thought, Said)):
                field = "content" if isinstance(event, Said) else "reasoning_content"
                origins += [[field, n, step] for n, step in self._slice(event.start, event.end)]
        rounds = [[piece.drafted, piece.accepted] for piece in pieces if piece.token_ids]
        return {"origins": origins, "rounds": rounds} if origins or rounds else None

    def _slice(self, start: int, end: int) -> list[tuple[int, int]]:
        """Characters and steps of a slice of the text. Slices come in order: what is before one is not asked again."""
        self._runs = [run for run in self._runs if run[0] > start]
        found: list[tuple[int, int]] = []
        for stop, step in self._runs:
            n = min(stop, end) - start
            if n > 0:
                if found and found[-1][1] == step:
                    found[-1] = (found[-1][0] + n, step)
                else:
                    found.append((n, step))
                start += n
        return [*found, (end - start, 0)] if start < end else found  # of a character that never completed
