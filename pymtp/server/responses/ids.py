"""The ids of responses, which contain the name of the replica that stores the response."""

from __future__ import annotations

import re
import uuid

_ID = re.compile(r"resp_([0-9A-Za-z]+)_[0-9a-f]{32}")


def new_response_id(replica: str = "") -> str:
    """Return a new response id, which nobody can guess.

    replica: the name of the server that stores the response; "" if there is only one server.
    """
    return f"resp_{replica}_{uuid.uuid4().hex}" if replica else f"resp_{uuid.uuid4().hex}"


def replica_of_response(response_id: str) -> str | None:
    """Return the name of the replica in the id of a response; None if the id has no replica."""
    match = _ID.fullmatch(response_id)
    return None if match is None else match[1]
