"""JSON responses in ASCII, and JSON objects with a part that is encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse


class PreencodedObject(dict[str, Any]):
    """A dict whose repeated fields are encoded once.

    Several events of a stream repeat fields of the request, which may have megabytes.
    """

    def __init__(self, own: Mapping[str, Any], repeated: Mapping[str, Any], encoded: str | None = None) -> None:
        """own: fields that differ between events. repeated: all others, one at least. encoded: those as JSON."""
        super().__init__({**own, **repeated})
        self._own, self._repeated = own, repeated
        self._encoded = json.dumps(repeated)[1:] if encoded is None else encoded

    def replace(self, changes: Mapping[str, Any]) -> PreencodedObject:
        """Return a copy with changed own fields."""
        return PreencodedObject({**self._own, **changes}, self._repeated, self._encoded)

    def json(self) -> str:
        """Return the object as JSON."""
        return f"{json.dumps(self._own)[:-1]}, {self._encoded}"


class AsciiJSONResponse(JSONResponse):
    """A JSON response in ASCII.

    Responses repeat text of clients, which may have lone surrogates: JSON can escape them, UTF-8 cannot encode them.
    """

    def render(self, content: Any) -> bytes:
        if isinstance(content, PreencodedObject):
            return content.json().encode()
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
