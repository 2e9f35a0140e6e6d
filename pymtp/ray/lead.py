"""Which replica a request is for: the one that holds the beginning of its prompt, or the response it goes on with.

What leads there is in the request, and which replicas there are is known to all. So any number of doors agree without
a word between them, and none has a table that could be lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from pymtp.server.responses.ids import replica_of

# Characters of the first message, or of a prompt, by which requests are told apart: about 1,000 tokens. Questions about
# one document begin alike, and its replica has read it.
BEGINNING = 4096
# A replica has at most so many times its share of what runs. "Consistent Hashing with Bounded Loads" (Mirrokni,
# Thorup, Zadimoghaddam, 2016) calls this 1 + epsilon.
MOST_OF_SHARE = 1.25

RESPONSES = "/v1/responses"
_FIRST = ("system", "developer")  # roles of messages that begin many chats


class Lead(NamedTuple):
    """
    key: the same for requests whose prompts begin alike.
    holder: the replica of a stored response; no other has it.
    """

    key: str | None = None
    holder: str | None = None


def lead_of(method: str, path: str, body: bytes) -> Lead:
    """Where a request leads. Nothing for those that no replica is better for, and those that no replica can read."""
    if path.startswith(f"{RESPONSES}/") and method in ("GET", "DELETE"):
        return Lead(holder=replica_of(path.removeprefix(f"{RESPONSES}/")))
    if method != "POST" or path not in _BEGINNINGS:
        return Lead()
    try:
        asked = json.loads(body)
        if path == RESPONSES and isinstance(before := asked.get("previous_response_id"), str):
            return Lead(holder=replica_of(before))
        named = asked.get("prompt_cache_key")
        begins = named if isinstance(named, str) and named else _BEGINNINGS[path](asked)
        return Lead(key=blake2b(json.dumps(begins).encode(), digest_size=16).hexdigest())
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return Lead()  # whichever has it says what is wrong


def ranked(key: str, loads: Mapping[str, int], places: int) -> list[str]:
    """The replicas by name, best first: the same for a key as long as they are the same (rendezvous hashing), except
    that those come last which have too much to do. When one comes or goes, only the keys change places that are, or
    were, its own.

    loads: requests that each has. places: texts that one writes at once. While one has a place that is free, those
    without have too much; later those that have more than their share.
    """
    if not loads:
        return []
    most = places
    if min(loads.values()) >= places:
        most = math.ceil(MOST_OF_SHARE * (sum(loads.values()) + 1) / len(loads))
    order = sorted(loads, key=lambda name: blake2b(f"{key} {name}".encode(), digest_size=16).digest())
    free = [name for name in order if loads[name] < most]
    return free + sorted((name for name in order if loads[name] >= most), key=lambda name: loads[name])


def _of_chat(asked: Mapping[str, Any]) -> Any:
    return [asked.get("tools"), *_first_messages(asked["messages"])]


def _of_messages(asked: Mapping[str, Any]) -> Any:
    system = asked.get("system")
    if isinstance(system, list):  # Claude Code's first block differs each time, and is dropped
        system = [block["text"] for block in system if not block["text"].startswith("x-anthropic-billing-header:")]
    return [asked.get("tools"), system, *_first_messages(asked["messages"])]


def _of_response(asked: Mapping[str, Any]) -> Any:
    given = asked["input"]
    first = [given[:BEGINNING]] if isinstance(given, str) else _first_messages(given)
    return [asked.get("tools"), asked.get("instructions"), *first]


def _of_completion(asked: Mapping[str, Any]) -> Any:
    prompt = asked["prompt"]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # of several
    return prompt[:BEGINNING]


def _first_messages(messages: Sequence[Any]) -> list[Any]:
    """The system's messages whole, for all chats of an agent have them, and the beginning of the first other one."""
    found: list[Any] = []
    for message in messages:
        if message.get("role") not in _FIRST:
            return [*found, json.dumps(message.get("content"))[:BEGINNING]]
        found.append(message.get("content"))
    return found


_BEGINNINGS = {
    "/v1/chat/completions": _of_chat,
    "/v1/completions": _of_completion,
    "/v1/messages": _of_messages,
    RESPONSES: _of_response,
}
