"""Events of a stream that have names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pymtp.server.http.ascii_json import Echoing


def named_events(events: Iterable[dict[str, Any]]) -> bytes:
    """As they are sent: the type is the name, too."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _json(event).encode()) for event in events)


def _json(event: dict[str, Any]) -> str:
    response = event.get("response")
    if not isinstance(response, Echoing):
        return json.dumps(event)
    others = {name: value for name, value in event.items() if name != "response"}
    return f'{json.dumps(others)[:-1]}, "response": {response.json()}}}'
