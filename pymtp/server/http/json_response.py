"""JSON responses in ASCII, and JSON objects of which a part is encoded only once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.responses import JSONResponse, Response


class PreencodedObject(dict[str, Any]):
    """A dict with fields that several events repeat, and that are encoded to JSON only once.

    Several events of a stream repeat the fields of the request, which may be megabytes large.
    """

    def __init__(self, own: Mapping[str, Any], repeated: Mapping[str, Any], encoded: str | None = None) -> None:
        """own: the fields that differ between events.

        repeated: all other fields, at least one.
        encoded: the JSON of the repeated fields without the opening brace; None encodes them now.
        """
        super().__init__({**own, **repeated})
        self._own, self._repeated = own, repeated
        self._encoded = json.dumps(repeated)[1:] if encoded is None else encoded

    def replace(self, changes: Mapping[str, Any]) -> PreencodedObject:
        """Return a copy in which `changes` replace own fields; the JSON of the repeated fields is reused."""
        return PreencodedObject({**self._own, **changes}, self._repeated, self._encoded)

    def json(self) -> str:
        """Return the object as JSON."""
        return f"{json.dumps(self._own)[:-1]}, {self._encoded}"


def encode_json(content: Any) -> str:
    """Encode content as compact JSON in ASCII. Raises ValueError for a number that JSON does not have."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def encode_list(entries: Iterable[Any]) -> str:
    """Encode a list entry by entry, for a thread: while a long list is encoded at once, no other thread runs."""
    return f"[{','.join(map(encode_json, entries))}]"


def encode_pieces(content: Any, levels: int) -> str:
    """Encode content as `encode_json` does, but piece by piece, as `encode_list`.

    levels: the number of levels of lists and objects whose entries are pieces.
    """
    if levels and isinstance(content, dict):
        entries = (f"{encode_json(name)}:{encode_pieces(value, levels - 1)}" for name, value in content.items())
        return f"{{{','.join(entries)}}}"
    if levels and isinstance(content, list):
        return f"[{','.join(encode_pieces(entry, levels - 1) for entry in content)}]"
    return encode_json(content)


class AsciiJSONResponse(JSONResponse):
    """A JSON response in ASCII.

    Responses repeat text from clients, which may have lone surrogates. JSON can escape lone surrogates; UTF-8 cannot
    encode lone surrogates.
    """

    def render(self, content: Any) -> bytes:
        if isinstance(content, PreencodedObject):
            return content.json().encode()
        return encode_json(content).encode()


class EncodedJSONResponse(Response):
    """A response of JSON that is encoded already."""

    media_type = "application/json"
