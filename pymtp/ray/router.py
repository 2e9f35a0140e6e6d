"""The request router of the Ray Serve application: it chooses the replica for each request of a front."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from pymtp.ray.routing import RoutingHint, rank_replicas

# A request waits so long for the only replica that can answer it. Ray routes only a few requests at a time: those for
# a replica that hangs must not block all others.
HOLDER_SECONDS = 5.0


class PrefixRouter(RequestRouter):
    """A router that follows the RoutingHint of a request, see `rank_replicas`. Without one, Ray picks by load."""

    def initialize_state(self, **given: Any) -> None:
        """Read the argument of serve_app: n_seq_max, the slots of a replica."""
        self._n_seq_max: int = given["n_seq_max"]
        self._sent: Counter[ReplicaID] = Counter()
        self._pending: dict[asyncio.Future[Any], ReplicaID] = {}  # chosen replica of requests that are not sent yet

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that Ray sends to a replica."""
        super().on_send_request(replica_id)
        self._sent[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Discount a request that has ended, or that the replica rejected."""
        super().on_request_completed(replica_id, internal_request_id)
        self._sent[replica_id] -= 1
        if self._sent[replica_id] <= 0:
            del self._sent[replica_id]

    def _load(self, replica_id: ReplicaID) -> int:
        """Return the requests of a replica: of this front, and of others if the replica reported within 10 seconds."""
        n_sent = max(self._sent[replica_id], self.replica_queue_len_cache.get(replica_id) or 0)
        return n_sent + sum(_target(*pending) == replica_id for pending in self._pending.items())

    def _forget(self, future: asyncio.Future[Any]) -> None:
        # the task that awaits the future sends and counts the request in this turn of the event loop: remove it later
        future.get_loop().call_soon(self._pending.pop, future, None)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return lists of replicas that Ray tries one after the other, as RequestRouter demands."""
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
        # requests that arrive at once are all routed before the first is sent: later ones must count it
        self._pending[future] = order[0].replica_id
        return [[replica] for replica in order]


def _target(future: asyncio.Future[Any], first_choice: ReplicaID) -> ReplicaID | None:
    """Return the replica that Ray chose for a request, or else the first choice; None for a cancelled request."""
    if not future.done():
        return first_choice
    return None if future.cancelled() else future.result().replica_id
