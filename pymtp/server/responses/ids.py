"""Ids of responses; they name the replica that stores the response."""

from __future__ import annotations

import re
import uuid

_ID = re.compile(r"resp_([0-9A-Za-z]+)_[0-9a-f]{32}")


def new_response_id(replica: str = "") -> str:
    """Return an id that nobody can guess.

    replica: the server that stores the response, where several servers have one address.
    """
    return f"resp_{replica}_{uuid.uuid4().hex}" if replica else f"resp_{uuid.uuid4().hex}"


def replica_of_response(response_id: str) -> str | None:
    """Return the replica in the id of a response; None where the id has none."""
    match = _ID.fullmatch(response_id)
    return None if match is None else match[1]
