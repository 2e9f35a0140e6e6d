"""The origin of each character of a completion: the draft step that proposed its token, or the target model."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta
from pymtp.engine.request import Piece
from pymtp.model.model import Model


class OriginTracker:
    """A tracker of the characters of one completion, which determines whether each character was drafted.

    The origin of a character is the draft step that proposed its token: 1 for the first draft of a round, 2 for the
    second, and so on. The origin is 0 if the token was sampled from the target model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        # A character belongs to the token that completes it. The text was decoded by the same kind of decoder, so the
        # lengths agree.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._runs: list[tuple[int, int]] = []  # pairs (end, step) of the runs of characters that were not sent yet
        self._length = 0

    def push(self, pieces: Sequence[Piece], events: Sequence[OutputEvent]) -> dict[str, Any] | None:
        """Return the `pymtp` object of the chunk for new pieces and events; None if the chunk needs none.

        The object has two fields. `origins` lists [name of the delta's field, number of characters, draft step] in the
        order of the text. `rounds` lists [number of verified drafts, number of accepted drafts] of each round.

        pieces: the new pieces of the engine, which have the tokens and the number of accepted drafts.
        events: the new events of the output parser, which have the characters that the chunk sends.
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
        """Return pairs (number of characters, draft step) for a slice of the text. Slices must not go backwards."""
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
        # If the text ended within a character, its replacement character belongs to no token, and gets step 0.
        return [*runs, (end - start, 0)] if start < end else runs
