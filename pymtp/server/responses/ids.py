"""Names of responses, by which those find them again that keep them."""

from __future__ import annotations

import re
import uuid

_NAME = re.compile(r"resp_([0-9A-Za-z]+)_[0-9a-f]{32}")


def new_id(replica: str = "") -> str:
    """A name that nobody can guess. replica: of several servers behind one address, the one that keeps the response."""
    return f"resp_{replica}_{uuid.uuid4().hex}" if replica else f"resp_{uuid.uuid4().hex}"


def replica_of(name: str) -> str | None:
    """The replica in a name; None where there is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1]
