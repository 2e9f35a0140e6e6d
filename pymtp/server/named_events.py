"""Events of a stream that have names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def named_events(events: Iterable[dict[str, Any]]) -> bytes:
    """As they are sent: the type is the name, too."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events
    )
