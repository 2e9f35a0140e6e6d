"""Routing of requests: to the replica that caches the beginning of a prompt, or stores the previous response.

The hint is computed from the request, and every front knows the names of all replicas. So any number of fronts agree
without messages between them, and no front has a table that could be lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from pymtp.server.responses.ids import replica_of_response

# Only so many characters of the first message or of the prompt go into the hash: about 1,000 tokens. Questions about
# one document begin alike, and go to the replica that has its prefix.
BEGINNING = 4096
# A replica gets at most so many times its share of the running requests. "Consistent Hashing with Bounded Loads"
# (Mirrokni, Thorup, Zadimoghaddam, 2016) calls this 1 + epsilon.
MAX_SHARE = 1.25

RESPONSES = "/v1/responses"
_SYSTEM_ROLES = ("system", "developer")  # many chats begin with the same messages of these roles


class RoutingHint(NamedTuple):
    """The information by which the router chooses a replica.

    key: a hash of the beginning of the prompt.
    holder: the replica that stores the response which the request names. No other replica has it.
    """

    key: str | None = None
    holder: str | None = None


def routing_hint(method: str, path: str, body: bytes) -> RoutingHint:
    """Compute the hint of a request. It is empty where all replicas are equal, and for an invalid body."""
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
        return RoutingHint()  # any replica can answer with the error


def rank_replicas(key: str, loads: Mapping[str, int], n_seq_max: int) -> list[str]:
    """Sort the names of replicas, best first. Overloaded replicas come last.

    The order of the others depends on the key and the names alone (rendezvous hashing): if a replica is added or
    removed, only the keys whose best replica it is, or was, change.

    loads: requests of each replica. n_seq_max: slots of a replica. While one has a free slot, those without are
    overloaded; else those that have more than MAX_SHARE of the mean.
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
    if isinstance(system, list):  # the first block of Claude Code differs in each request, so it is left out
        system = [block["text"] for block in system if not block["text"].startswith("x-anthropic-billing-header:")]
    return [request.get("tools"), system, *_first_messages(request["messages"])]


def _responses_beginning(request: Mapping[str, Any]) -> Any:
    messages = request["input"]
    first = [messages[:BEGINNING]] if isinstance(messages, str) else _first_messages(messages)
    return [request.get("tools"), request.get("instructions"), *first]


def _completion_beginning(request: Mapping[str, Any]) -> Any:
    prompt = request["prompt"]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # the first of several prompts
    return prompt[:BEGINNING]


def _first_messages(messages: Sequence[Any]) -> list[Any]:
    """Return the system messages whole, as all chats of an agent share them, and the beginning of the next message."""
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
