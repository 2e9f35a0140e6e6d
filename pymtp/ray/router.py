"""Ray Serve's way from a door to a replica."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from pymtp.ray.lead import Lead, ranked


class PrefixRouter(RequestRouter):
    """Takes requests to where their Lead goes: see `ranked`. Those that are led nowhere go to who has least to do."""

    def initialize_state(self, **given: Any) -> None:
        """places: texts that a replica writes at once."""
        self._places: int = given["places"]
        self._own: Counter[ReplicaID] = Counter()
        self._coming: dict[int, tuple[PendingRequest, ReplicaID]] = {}

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """For Ray: a request goes to a replica."""
        super().on_send_request(replica_id)
        self._own[replica_id] += 1
        for name, (request, _) in self._coming.items():
            if _goes_to(request, None) == replica_id:
                del self._coming[name]
                break

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """For Ray: it has ended, or was not taken."""
        super().on_request_completed(replica_id, internal_request_id)
        self._own[replica_id] -= 1
        if self._own[replica_id] <= 0:
            del self._own[replica_id]

    def _load(self, replica_id: ReplicaID) -> int:
        """Requests that a replica has: those of this door, and of others, where that was heard within 10 seconds."""
        known = max(self._own[replica_id], self.replica_queue_len_cache.get(replica_id) or 0)
        return known + sum(_goes_to(*each) == replica_id for each in self._coming.values())

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
            return [[by_name[lead.holder]]]
        if lead.key is None:  # or one whose holder is gone: any replica says so
            return [candidate_replicas]
        self._coming = {
            name: each
            for name, each in self._coming.items()
            if each[0] is not pending_request and not each[0].future.cancelled()
        }
        loads = {name: self._load(each.replica_id) for name, each in by_name.items()}
        order = [by_name[name] for name in ranked(lead.key, loads, self._places)]
        # of several that come at once, all are led before the first is sent
        self._coming[id(pending_request)] = (pending_request, order[0].replica_id)
        return [[each] for each in order]


def _goes_to(request: PendingRequest, meant: ReplicaID | None) -> ReplicaID | None:
    """Where a request goes that was not sent yet: the replica that was chosen, or that it is meant for."""
    if not request.future.done() or request.future.cancelled():
        return meant
    found: ReplicaID = request.future.result().replica_id
    return found
