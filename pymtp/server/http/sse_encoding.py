"""Encoding of server-sent events with names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pymtp.server.http.json_response import PreencodedObject


def encode_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Encode events; the type of each is its name, too."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _json(event).encode()) for event in events)


def _json(event: dict[str, Any]) -> str:
    response = event.get("response")
    if not isinstance(response, PreencodedObject):
        return json.dumps(event)
    others = {name: value for name, value in event.items() if name != "response"}
    return f'{json.dumps(others)[:-1]}, "response": {response.json()}}}'
