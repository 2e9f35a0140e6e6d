"""JSON answers that can be written whatever text is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse


class Echoing(dict[str, Any]):
    """An object that repeats what a client sent, up to megabytes of it, in several events. That is written once."""

    def __init__(self, own: Mapping[str, Any], echo: Mapping[str, Any], written: str | None = None) -> None:
        """own: fields that differ from event to event. echo: the others, one at least; written: as JSON."""
        super().__init__({**own, **echo})
        self._own, self._echo = own, echo
        self._written = json.dumps(echo)[1:] if written is None else written

    def but(self, changes: Mapping[str, Any]) -> Echoing:
        """The same with other fields of its own."""
        return Echoing({**self._own, **changes}, self._echo, self._written)

    def json(self) -> str:
        """As it is sent."""
        return f"{json.dumps(self._own)[:-1]}, {self._written}"


class AsciiJson(JSONResponse):
    """What clients send comes back in answers: halves of surrogate pairs, too, which JSON may hold and UTF-8 not."""

    def render(self, content: Any) -> bytes:
        if isinstance(content, Echoing):
            return content.json().encode()
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
