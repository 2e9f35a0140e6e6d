"""An answer as a row of parts in the order they came: thinking, text, calls."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pymtp.chat import CallArguments, CallBegun, Event, Said, Thought

Kind = Literal["thinking", "text", "call"]


@dataclass
class Part:
    """A part, as far as it came. index: its place in the row. name: of the tool that is called."""

    kind: Kind
    index: int
    name: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What was thought or said, or the arguments of the call as JSON."""
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether it did not end in the middle, as the text alone tells: a call has all of its arguments."""
        if self.kind != "call":
            return True
        try:
            json.loads(self.text)
        except ValueError:
            return False
        return True


class Change(NamedTuple):
    """What happened to a part. text: by which it has grown."""

    what: Literal["begun", "grown", "ended"]
    part: Part
    text: str = ""


class Parts:
    """Makes parts of the events of an answer. The same events in any batches make the same parts."""

    def __init__(self) -> None:
        self.row: list[Part] = []

    def take(self, events: Sequence[Event]) -> list[Change]:
        """What the events change. Text of one part that came at once is one change."""
        found: list[Change] = []
        for change in self._changes(events):
            if found and change.what == found[-1].what == "grown":
                found[-1] = change._replace(text=found[-1].text + change.text)
            else:
                found.append(change)
        return found

    def begin(self, kind: Kind, name: str = "") -> list[Change]:
        """A new part. The one before it ends."""
        before = self.end()
        self.row.append(Part(kind, len(self.row), name))
        return [*before, Change("begun", self.row[-1])]

    def end(self) -> list[Change]:
        """The last part ends with the answer."""
        return [Change("ended", self.row[-1])] if self.row else []

    def _changes(self, events: Sequence[Event]) -> Iterator[Change]:
        for event in events:
            match event:
                case Thought(text):
                    yield from self._grow("thinking", text)
                case Said(text):
                    yield from self._grow("text", text)
                case CallBegun(_, name):
                    yield from self.begin("call", name)
                case CallArguments(_, text):
                    yield from self._grow("call", text)

    def _grow(self, kind: Kind, text: str) -> Iterator[Change]:
        if not text:
            return
        if not self.row or self.row[-1].kind != kind:
            yield from self.begin(kind)
        self.row[-1].pieces.append(text)
        yield Change("grown", self.row[-1], text)
