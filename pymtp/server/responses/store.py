"""The last answers of /v1/responses, in memory: previous_response_id goes on with them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymtp.server.http.ascii_json import Echoing

MOST = 1000  # responses
MOST_CHARACTERS = 64 * 2**20  # of JSON, of all of them; a turn counts those before it, too


class Stored(NamedTuple):
    """response: the answer. messages: the chat up to it, without instructions, in OpenAI's older form."""

    response: Echoing
    messages: Sequence[Mapping[str, Any]]


class ResponseStore:
    """Keeps as many as it may. Those that were neither stored nor asked for the longest go first."""

    def __init__(self, most: int = MOST, most_characters: int = MOST_CHARACTERS) -> None:
        self._most, self._most_characters = most, most_characters
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._characters = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: Stored) -> None:
        """Keeps one; none that is larger than all may be."""
        name = stored.response["id"]
        size = len(stored.response.json()) + len(json.dumps(stored.messages))
        if size > self._most_characters:
            return
        self._stored[name], self._sizes[name] = stored, size
        self._characters += size
        while len(self._stored) > self._most or self._characters > self._most_characters:
            self.remove(next(iter(self._stored)))

    def get(self, name: str) -> Stored | None:
        """One that is still there."""
        stored = self._stored.get(name)
        if stored is not None:
            self._stored.move_to_end(name)
        return stored

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        if self._stored.pop(name, None) is None:
            return False
        self._characters -= self._sizes.pop(name)
        return True
