"""The output of a completion as a list of items (thinking, text, tool calls) in the order of their generation."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta, ToolCallDelta, ToolCallStart

ItemKind = Literal["thinking", "text", "call"]


@dataclass
class OutputItem:
    """An item of the output: the part that has been generated so far.

    index: the position of the item in the list of items.
    name: the name of the tool, if the item is a tool call.
    pieces: the pieces of text that the item consists of.
    """

    kind: ItemKind
    index: int
    name: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text of the item. The text of a tool call is its arguments as JSON."""
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        """Return False for a tool call whose arguments are not complete JSON, and True for every other item."""
        if self.kind != "call":
            return True
        try:
            json.loads(self.text)
        except ValueError:
            return False
        return True


class ItemChange(NamedTuple):
    """A change of an item: its start, a delta of its text, or its end. text: the new text of a delta."""

    change: Literal["start", "delta", "end"]
    item: OutputItem
    text: str = ""


class OutputItems:
    """The items of one completion, built from its events. The result does not depend on the batches of the events."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []

    def push(self, events: Sequence[OutputEvent]) -> list[ItemChange]:
        """Apply events to the items, and return the changes. Successive deltas of one item are joined to one change."""
        merged: list[ItemChange] = []
        for change in self._changes(events):
            if merged and change.change == merged[-1].change == "delta":
                merged[-1] = change._replace(text=merged[-1].text + change.text)
            else:
                merged.append(change)
        return merged

    def start_item(self, kind: ItemKind, name: str = "") -> list[ItemChange]:
        """End the last item and start a new item; return both changes."""
        before = self.end_item()
        self.items.append(OutputItem(kind, len(self.items), name))
        return [*before, ItemChange("start", self.items[-1])]

    def end_item(self) -> list[ItemChange]:
        """End the last item, and return the change; return [] if there is no item."""
        return [ItemChange("end", self.items[-1])] if self.items else []

    def _changes(self, events: Sequence[OutputEvent]) -> Iterator[ItemChange]:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    yield from self._append("thinking", text)
                case ContentDelta(text):
                    yield from self._append("text", text)
                case ToolCallStart(_, name):
                    yield from self.start_item("call", name)
                case ToolCallDelta(_, text):
                    yield from self._append("call", text)

    def _append(self, kind: ItemKind, text: str) -> Iterator[ItemChange]:
        if not text:
            return
        if not self.items or self.items[-1].kind != kind:
            yield from self.start_item(kind)
        self.items[-1].pieces.append(text)
        yield ItemChange("delta", self.items[-1], text)
