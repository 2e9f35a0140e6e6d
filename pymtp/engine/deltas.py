"""What is new of a prompt's completions, and how much of the prompt is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pymtp.chat import OutputEvent
from pymtp.engine.request import FinishReason, Piece


@dataclass(slots=True)
class CompletionDelta:
    """The new output of one completion of a prompt.

    index: the number of the completion, from 0.
    pieces: its pieces since the last delta.
    reason: its finish reason in its last delta; None in earlier deltas. The server writes "tool_calls" for calls.
    events: the events that the server's output parser reads in the pieces; `take` leaves them empty.
    """

    index: int
    pieces: Sequence[Piece]
    reason: FinishReason | Literal["tool_calls"] | None
    events: Sequence[OutputEvent] = ()


class PromptProgress(NamedTuple):
    """How much of a prompt is computed.

    total: the number of tokens of the prompt.
    cached: the number of tokens that were taken from the prefix cache.
    processed: the number of tokens that are computed or cached.
    seconds: the time since the request got its sequence.
    """

    total: int
    cached: int
    processed: int
    seconds: float
