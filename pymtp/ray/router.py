"""The request router of the Ray Serve application. In each front, it chooses the replica for each request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from pymtp.ray.routing import RoutingHint, rank_replicas

# Longest time that a request waits for the only replica that can answer it. Ray routes only a few requests at a time,
# so requests for a replica that hangs would otherwise block all others.
HOLDER_SECONDS = 5.0


class PrefixRouter(RequestRouter):
    """A router that chooses replicas by the RoutingHint of a request, see `rank_replicas`.

    For a request whose hint is empty, Ray chooses a replica by its load.
    """

    def initialize_state(self, **given: Any) -> None:
        """Store n_seq_max, the number of slots of a replica, from the router arguments that serve_app gave to Ray."""
        self._n_seq_max: int = given["n_seq_max"]
        self._sent: Counter[ReplicaID] = Counter()
        # the replica that was chosen first, for each request that is not sent yet
        self._pending: dict[asyncio.Future[Any], ReplicaID] = {}

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that Ray sends to a replica."""
        super().on_send_request(replica_id)
        self._sent[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Stop counting a request that has ended, or that the replica rejected."""
        super().on_request_completed(replica_id, internal_request_id)
        self._sent[replica_id] -= 1
        if self._sent[replica_id] <= 0:
            del self._sent[replica_id]

    def _load(self, replica_id: ReplicaID) -> int:
        """Return the number of a replica's requests that this front knows of.

        Those of other fronts are included if the replica reported its number within the last 10 seconds.
        """
        n_sent = max(self._sent[replica_id], self.replica_queue_len_cache.get(replica_id) or 0)
        return n_sent + sum(_target(*pending) == replica_id for pending in self._pending.items())

    def _forget(self, future: asyncio.Future[Any]) -> None:
        # The task that awaits the future runs later in this turn of the event loop, and counts the request then. Until
        # then `_pending` must count it, so it is removed in the next turn only.
        future.get_loop().call_soon(self._pending.pop, future, None)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return lists of replicas for a request: Ray tries the lists one after the other until a replica accepts."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # if all are full, Ray waits before it tries again
        hint: RoutingHint = pending_request.kwargs.get("hint", RoutingHint())
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if hint.holder in by_name:
            overdue = time.time() - pending_request.created_at >= HOLDER_SECONDS
            return [[by_name[hint.holder]], *([candidate_replicas] if overdue else [])]
        if hint.key is None:  # if the holder is gone, any replica can answer that the response is not found
            return [candidate_replicas]
        future = pending_request.future
        if self._pending.pop(future, None) is None:
            future.add_done_callback(self._forget)
        loads = {name: self._load(replica.replica_id) for name, replica in by_name.items()}
        order = [by_name[name] for name in rank_replicas(hint.key, loads, self._n_seq_max)]
        # Requests that arrive at the same time are all routed before the first of them is sent. Remember the chosen
        # replica, so that later requests already count this one in its load.
        self._pending[future] = order[0].replica_id
        return [[replica] for replica in order]


def _target(future: asyncio.Future[Any], first_choice: ReplicaID) -> ReplicaID | None:
    """Return the replica of a request that is not sent yet; None for a cancelled request.

    It is the replica that Ray has chosen, or the router's first choice if Ray has not chosen yet.
    """
    if not future.done():
        return first_choice
    return None if future.cancelled() else future.result().replica_id
