"""Ray Serve's way from a door to a replica."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from pymtp.ray.lead import Lead, ranked


class PrefixRouter(RequestRouter):
    """Takes requests to where their Lead goes: see `ranked`. Those that are led nowhere go to who has least to do."""

    def initialize_state(self, **given: Any) -> None:
        """places: texts that a replica writes at once."""
        self._places: int = given["places"]

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
        known = self.replica_queue_len_cache
        # not known: nothing of this door went there for 10 seconds. With the next request it is
        loads = {name: known.get(each.replica_id) or 0 for name, each in by_name.items()}
        return [[by_name[name]] for name in ranked(lead.key, loads, self._places)]
