"""Encoding of server-sent events that have names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pymtp.server.http.json_response import PreencodedObject


def encode_events(events: Iterable[dict[str, Any]]) -> bytes:
    """Encode events as server-sent events. The `type` of an event is also its name."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _json(event).encode()) for event in events)


def _json(event: dict[str, Any]) -> str:
    response = event.get("response")
    if not isinstance(response, PreencodedObject):
        return json.dumps(event)
    others = {name: value for name, value in event.items() if name != "response"}
    return f'{json.dumps(others)[:-1]}, "response": {response.json()}}}'
