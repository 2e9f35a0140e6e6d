"""Ray Serve's way from a door to a replica."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from pymtp.ray.lead import Lead, ranked

# So long a request waits for the only replica that can answer it. Ray routes a few requests at a time: those for a
# replica that hangs must not hold up all others.
HOLDER_SECONDS = 5.0


class PrefixRouter(RequestRouter):
    """Takes requests to where their Lead goes: see `ranked`. Those that are led nowhere go to who has least to do."""

    def initialize_state(self, **given: Any) -> None:
        """places: texts that a replica writes at once."""
        self._places: int = given["places"]
        self._own: Counter[ReplicaID] = Counter()
        self._coming: dict[asyncio.Future[Any], ReplicaID] = {}  # of requests that were not sent: where they are to go

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """For Ray: a request goes to a replica."""
        super().on_send_request(replica_id)
        self._own[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """For Ray: it has ended, or was not taken."""
        super().on_request_completed(replica_id, internal_request_id)
        self._own[replica_id] -= 1
        if self._own[replica_id] <= 0:
            del self._own[replica_id]

    def _load(self, replica_id: ReplicaID) -> int:
        """Requests that a replica has: those of this door, and of others, where that was heard within 10 seconds."""
        known = max(self._own[replica_id], self.replica_queue_len_cache.get(replica_id) or 0)
        return known + sum(_goes_to(*each) == replica_id for each in self._coming.items())

    def _decided(self, future: asyncio.Future[Any]) -> None:
        # who waits for it sends the request as it hears of it, which is before what is called soon
        future.get_loop().call_soon(self._coming.pop, future, None)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """As RequestRouter's: replicas to try, one list after the other."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # where all are full, the next try is later
        lead: Lead = pending_request.kwargs.get("lead", Lead())
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        if lead.holder in by_name:
            late = time.time() - pending_request.created_at >= HOLDER_SECONDS
            return [[by_name[lead.holder]], *([candidate_replicas] if late else [])]
        if lead.key is None:  # or one whose holder is gone: any replica says that it has no such one
            return [candidate_replicas]
        future = pending_request.future
        if self._coming.pop(future, None) is None:
            future.add_done_callback(self._decided)
        loads = {name: self._load(each.replica_id) for name, each in by_name.items()}
        order = [by_name[name] for name in ranked(lead.key, loads, self._places)]
        # of several that come at once, all are led before the first is sent
        self._coming[future] = order[0].replica_id
        return [[each] for each in order]


def _goes_to(future: asyncio.Future[Any], meant: ReplicaID) -> ReplicaID | None:
    """Where a request goes: the replica that was chosen, or that it is meant for; None where nobody waits any more."""
    if not future.done():
        return meant
    return None if future.cancelled() else future.result().replica_id
