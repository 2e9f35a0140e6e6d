"""The origin of each character of a text: the draft step that proposed its token, or the target model."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta
from pymtp.engine.request import Piece
from pymtp.model.model import Model


class OriginTracker:
    """The origins of the characters of one completion."""

    def __init__(self, model: Model) -> None:
        self._model = model
        # The text has the same decoder: a character belongs to the token that completes it.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._runs: list[tuple[int, int]] = []  # (end of a run of characters, step), of the characters not yet sent
        self._length = 0

    def push(self, pieces: Sequence[Piece], events: Sequence[OutputEvent]) -> dict[str, Any] | None:
        """Return the `pymtp` object of a chunk with new pieces and events; None where there is nothing to say.

        origins: [field, characters, step] in the order of the text; step 0 for tokens sampled from the target, k for
        drafts of step k. rounds: [drafts verified, drafts accepted] of each round.
        """
        for piece in pieces:
            for i, token in enumerate(piece.token_ids):
                self._length += len(self._decoder.decode(self._model.token_bytes(token)))
                self._runs.append((self._length, i + 1 if i < piece.accepted else 0))
        origins: list[list[Any]] = []
        for event in events:
            if isinstance(event, (ReasoningDelta, ContentDelta)):
                field = "content" if isinstance(event, ContentDelta) else "reasoning_content"
                origins += [[field, n, step] for n, step in self._slice(event.start, event.end)]
        rounds = [[piece.drafted, piece.accepted] for piece in pieces if piece.token_ids]
        return {"origins": origins, "rounds": rounds} if origins or rounds else None

    def _slice(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (characters, step) of the runs in a slice of the text. Slices must come in the order of the text."""
        self._runs = [run for run in self._runs if run[0] > start]
        runs: list[tuple[int, int]] = []
        for stop, step in self._runs:
            n = min(stop, end) - start
            if n > 0:
                if runs and runs[-1][1] == step:
                    runs[-1] = (runs[-1][0] + n, step)
                else:
                    runs.append((n, step))
                start += n
        return [*runs, (end - start, 0)] if start < end else runs  # the text ended within a character
