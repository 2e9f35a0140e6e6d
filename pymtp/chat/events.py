"""What an answer consists of, as a whole and piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thought:
    """Text that the model thought. text: that of all text pushed so far from `start` to `end`, in characters."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Said:
    """Text of the answer's content. text, start, end: as a Thought's."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class CallBegun:
    """A call of a tool begins, the answer's `index`-th from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of a call's arguments. The texts of one call, joined, are a JSON object once the call is complete."""

    index: int
    text: str


Event = Thought | Said | CallBegun | CallArguments


@dataclass(frozen=True)
class Call:
    """arguments: JSON text, an object's."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """An answer, or what has come of it.

    thinking, content: None where there is none.
    calls: those that are complete.
    unfinished: a call that was cut short. Its arguments are the beginning of a JSON object and are never closed: a
        client must not take the half of a command for the whole.
    """

    thinking: str | None = None
    content: str | None = None
    calls: tuple[Call, ...] = ()
    unfinished: Call | None = None
