"""The store of recent responses in memory, for requests with previous_response_id."""

from __future__ import annotations

import re
import uuid
from collections import Counter, OrderedDict
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
    """A store of a limited number of responses and characters. It evicts responses of the owner that takes the most.

    Each response has an owner: a digest of the API key of its request, or "" without a key. It is unknown to others.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses, self._max_characters = max_responses, max_characters
        # by owner and id; those of an owner in the order of their last use
        self._stored: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._sizes: dict[str, int] = {}  # by the ids of responses
        self._items: dict[tuple[str, str], Mapping[str, Any]] = {}  # output items, by owner and id
        self._characters: Counter[str] = Counter()  # by owner

    def __len__(self) -> int:
        return len(self._sizes)

    def put(self, stored: StoredResponse, owner: str = "") -> None:
        """Store a response unless it alone exceeds the limit. Also evicts responses until the limits hold.

        Of the owner that takes the largest share of a limit, the least recently used response is evicted.
        """
        response_id = stored.response["id"]
        size = len(stored.response.json()) + json_characters(stored.messages)
        if size > self._max_characters:
            return
        self._stored.setdefault(owner, OrderedDict())[response_id], self._sizes[response_id] = stored, size
        self._items |= {(owner, item["id"]): item for item in stored.response.get("output", ())}
        self._characters[owner] += size
        while len(self) > self._max_responses or self._characters.total() > self._max_characters:
            largest = max(self._stored, key=self._share)
            self.remove(next(iter(self._stored[largest])), largest)

    def _share(self, owner: str) -> float:
        return max(len(self._stored[owner]) / self._max_responses, self._characters[owner] / self._max_characters)

    def get(self, response_id: str, owner: str = "") -> StoredResponse | None:
        """Return a response, or None if the owner has none with this id. Also marks it as recently used."""
        owned = self._stored.get(owner)
        if owned is None or response_id not in owned:
            return None
        owned.move_to_end(response_id)
        return owned[response_id]

    def item(self, item_id: str, owner: str = "") -> Mapping[str, Any] | None:
        """Return an output item of a stored response by its id, or None if the owner has none with this id."""
        return self._items.get((owner, item_id))

    def remove(self, response_id: str, owner: str = "") -> bool:
        """Remove a response, and return whether the owner had it."""
        owned = self._stored.get(owner)
        if owned is None or response_id not in owned:
            return False
        stored = owned.pop(response_id)
        for item in stored.response.get("output", ()):
            self._items.pop((owner, item["id"]), None)
        self._characters[owner] -= self._sizes.pop(response_id)
        if not owned:
            del self._stored[owner], self._characters[owner]
        return True


def json_characters(value: Any) -> int:
    """Return about how many characters the JSON of a value has. The JSON of images would take a while to make."""
    total, rest = 0, [value]
    while rest:
        one = rest.pop()
        total += 2
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Mapping):
            total += sum(map(len, one)) + 6 * len(one)
            rest.extend(one.values())
        elif isinstance(one, Sequence):
            total += 2 * len(one)
            rest.extend(one)
    return total


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
