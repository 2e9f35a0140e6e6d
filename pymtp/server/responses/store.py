"""The store of recent responses in memory, for requests with previous_response_id."""

from __future__ import annotations

import json
import re
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymtp.server.http.json_response import PreencodedObject

MAX_RESPONSES = 1000
MAX_CHARACTERS = 64 * 2**20  # the most characters of the JSON of all stored responses; each includes its chat


class StoredResponse(NamedTuple):
    """A response, and its chat.

    messages: the messages of the chat in OpenAI's form, up to this response and without the instructions.
    """

    response: PreencodedObject
    messages: Sequence[Mapping[str, Any]]


class ResponseStore:
    """A store that evicts the least recently used responses. The numbers of responses and characters are limited."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses, self._max_characters = max_responses, max_characters
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._items: dict[str, Mapping[str, Any]] = {}  # the output items of all stored responses, by their ids
        self._characters = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: StoredResponse) -> None:
        """Store a response unless it alone exceeds the limit. Also evicts old responses until the limits hold."""
        response_id = stored.response["id"]
        size = len(stored.response.json()) + len(json.dumps(stored.messages))
        if size > self._max_characters:
            return
        self._stored[response_id], self._sizes[response_id] = stored, size
        self._items |= {item["id"]: item for item in stored.response.get("output", ())}
        self._characters += size
        while len(self._stored) > self._max_responses or self._characters > self._max_characters:
            self.remove(next(iter(self._stored)))

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response, or None if it is not stored. Also marks the response as recently used."""
        stored = self._stored.get(response_id)
        if stored is not None:
            self._stored.move_to_end(response_id)
        return stored

    def item(self, item_id: str) -> Mapping[str, Any] | None:
        """Return an output item of a stored response by its id, or None if it is not stored."""
        return self._items.get(item_id)

    def remove(self, response_id: str) -> bool:
        """Remove a response, and return whether it was stored."""
        stored = self._stored.pop(response_id, None)
        if stored is None:
            return False
        for item in stored.response.get("output", ()):
            self._items.pop(item["id"], None)
        self._characters -= self._sizes.pop(response_id)
        return True


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
