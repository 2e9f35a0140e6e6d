"""Routing of requests to the replica that caches the beginning of their prompt, or stores the response that they name.

A front computes a hint from the request alone, and knows the names of all replicas. So all fronts choose the same
replica without messages between them, and no front has a table that could be lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from pymtp.server.responses.store import replica_of_response

# Number of characters of the first message or of the prompt that are hashed, about 1,000 tokens. So questions about the
# same document have the same hash, and go to the replica that has cached the document.
BEGINNING = 4096
# Limit for the requests of a replica, relative to the mean of all replicas. "Consistent Hashing with Bounded Loads"
# (Mirrokni, Thorup, Zadimoghaddam, 2016) calls this 1 + epsilon.
MAX_SHARE = 1.25

RESPONSES = "/v1/responses"
_SYSTEM_ROLES = ("system", "developer")  # roles of messages that many chats have in common


class RoutingHint(NamedTuple):
    """The information by which the router chooses a replica for a request.

    key: a hash of the beginning of the prompt; None if every replica is equally good.
    holder: name of the replica that stores the response which the request names, because no other replica has that
        response; None if the request names none.
    """

    key: str | None = None
    holder: str | None = None


def routing_hint(method: str, path: str, body: bytes) -> RoutingHint:
    """Compute the routing hint of a request. The hint is empty if any replica can answer, or if the body is invalid."""
    if path.startswith(f"{RESPONSES}/") and method in ("GET", "DELETE"):
        return RoutingHint(holder=replica_of_response(path.removeprefix(f"{RESPONSES}/")))
    if method != "POST" or path not in _BEGINNINGS:
        return RoutingHint()
    try:
        request = json.loads(body)
        if path == RESPONSES and isinstance(previous := request.get("previous_response_id"), str):
            return RoutingHint(holder=replica_of_response(previous))
        cache_key = request.get("prompt_cache_key")
        beginning = cache_key if isinstance(cache_key, str) and cache_key else _BEGINNINGS[path](request)
        return RoutingHint(key=blake2b(json.dumps(beginning).encode(), digest_size=16).hexdigest())
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return RoutingHint()  # the body is invalid, and any replica can answer with the error


def rank_replicas(key: str, loads: Mapping[str, int], n_seq_max: int) -> list[str]:
    """Sort the names of replicas, the best first, and overloaded replicas last.

    The order of replicas that are not overloaded depends only on the key and the names (rendezvous hashing). So if a
    replica is added or removed, the best replica changes only for keys whose best replica is the added or removed one.

    While any replica has a free slot, the replicas without a free slot are overloaded. Otherwise, those are overloaded
    that would have more than MAX_SHARE times the mean number of requests.

    loads: number of requests of each replica.
    n_seq_max: number of slots of a replica.
    """
    if not loads:
        return []
    limit = n_seq_max
    if min(loads.values()) >= n_seq_max:
        limit = math.ceil(MAX_SHARE * (sum(loads.values()) + 1) / len(loads))
    order = sorted(loads, key=lambda name: blake2b(f"{key} {name}".encode(), digest_size=16).digest())
    free = [name for name in order if loads[name] < limit]
    return free + sorted((name for name in order if loads[name] >= limit), key=lambda name: loads[name])


def _chat_beginning(request: Mapping[str, Any]) -> Any:
    return [request.get("tools"), *_first_messages(request["messages"])]


def _anthropic_beginning(request: Mapping[str, Any]) -> Any:
    system = request.get("system")
    if isinstance(system, list):  # leave out the first block of Claude Code, which differs in each request
        system = [block["text"] for block in system if not block["text"].startswith("x-anthropic-billing-header:")]
    return [request.get("tools"), system, *_first_messages(request["messages"])]


def _responses_beginning(request: Mapping[str, Any]) -> Any:
    messages = request["input"]
    first = [messages[:BEGINNING]] if isinstance(messages, str) else _first_messages(messages)
    return [request.get("tools"), request.get("instructions"), *first]


def _completion_beginning(request: Mapping[str, Any]) -> Any:
    prompt = request["prompt"]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a request may have several prompts: use the first
    return prompt[:BEGINNING]


def _first_messages(messages: Sequence[Any]) -> list[Any]:
    """Return the contents of the leading system messages, and the beginning of the message after them.

    The system messages are returned whole, because all chats of an agent share them.
    """
    contents: list[Any] = []
    for message in messages:
        if message.get("role") not in _SYSTEM_ROLES:
            return [*contents, json.dumps(message.get("content"))[:BEGINNING]]
        contents.append(message.get("content"))
    return contents


_BEGINNINGS = {
    "/v1/chat/completions": _chat_beginning,
    "/v1/completions": _completion_beginning,
    "/v1/messages": _anthropic_beginning,
    RESPONSES: _responses_beginning,
}
