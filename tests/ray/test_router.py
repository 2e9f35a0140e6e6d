"""Claims about the way to a replica: who is asked first, and what a door knows of replicas' loads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID

from pymtp.ray.lead import Lead, ranked
from pymtp.ray.router import PrefixRouter

HELD = DeploymentID("Replica", "pymtp")
IDS = {name: ReplicaID(name, HELD) for name in "abc"}
NOBODY = dict.fromkeys(IDS, 0)


@pytest.fixture
def router() -> PrefixRouter:
    made = PrefixRouter(HELD, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    made.initialize_state(places=2)
    return made


def chosen(router: PrefixRouter, lead: Lead | None, waited: float = 0.0) -> list[list[str]]:
    """The names of replicas that are asked, one list after the other."""
    replicas: list[Any] = [SimpleNamespace(replica_id=each) for each in IDS.values()]

    async def choosing() -> Any:
        asked = None
        if lead is not None:
            asked = PendingRequest(args=[], kwargs={"lead": lead}, metadata=RequestMetadata("id", "internal"))
            asked.created_at -= waited
        found = await router.choose_replicas(replicas, asked)
        if asked is not None:
            assert asked.routing_context.should_backoff  # else where all are full it asks without end
            asked.future.cancel()
        return found

    return [[each.replica_id.unique_id for each in some] for some in asyncio.run(choosing())]


def test_a_beginning_leads_to_one_replica_after_the_other(router: PrefixRouter) -> None:
    for key in ("one", "two", "three"):
        assert chosen(router, Lead(key=key)) == [[name] for name in ranked(key, NOBODY, 2)]


def test_a_stored_response_leads_to_its_replica_and_to_no_other(router: PrefixRouter) -> None:
    assert chosen(router, Lead(holder="b")) == [["b"]]
    for _ in range(9):
        router.on_send_request(IDS["b"])
    assert chosen(router, Lead(holder="b")) == [["b"]]


@pytest.mark.parametrize("lead", [None, Lead(), Lead(holder="gone")])
def test_what_is_led_nowhere_may_go_anywhere(router: PrefixRouter, lead: Lead | None) -> None:
    assert chosen(router, lead) == [["a", "b", "c"]]


def test_a_door_knows_what_it_has_at_a_replica_however_long_it_takes(
    router: PrefixRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = ranked("key", NOBODY, 2)
    for _ in range(2):
        router.on_send_request(IDS[first])
    monkeypatch.setattr(router.replica_queue_len_cache, "_is_timed_out", lambda _: True)  # after 10 seconds
    assert chosen(router, Lead(key="key"))[0] == [second]
    router.on_request_completed(IDS[first], "internal")
    assert chosen(router, Lead(key="key"))[0] == [first]
    for _ in range(3):  # one of these was never sent
        router.on_request_completed(IDS[first], "internal")
    router.on_send_request(IDS[first])
    router.on_send_request(IDS[first])
    assert chosen(router, Lead(key="key"))[0] == [second]


def test_of_requests_that_come_at_once_each_knows_of_those_before(router: PrefixRouter) -> None:
    first, second, third = ranked("key", NOBODY, 2)
    replicas: list[Any] = [SimpleNamespace(replica_id=each) for each in IDS.values()]

    async def coming() -> None:
        def asked() -> PendingRequest:
            return PendingRequest(args=[], kwargs={"lead": Lead(key="key")}, metadata=RequestMetadata("id", "same"))

        async def chosen(request: PendingRequest) -> str:
            found = await router.choose_replicas(replicas, request)
            name: str = found[0][0].replica_id.unique_id
            return name

        requests = [asked() for _ in range(6)]
        assert [await chosen(each) for each in requests[:2]] == [first, first]
        assert await chosen(requests[1]) == first  # it is not counted twice
        assert [await chosen(each) for each in requests[2:]] == [second, second, third, third]
        requests[1].future.cancel()
        assert await chosen(requests[5]) == first
        for name, request in zip([first, second, second, third, third], [requests[0], *requests[2:]], strict=True):
            request.future.set_result(SimpleNamespace(replica_id=IDS[name]))  # not all where they were meant to go
        assert [router._load(IDS[name]) for name in (first, second, third)] == [1, 2, 2]
        for _ in range(3):
            await asyncio.sleep(0)
        assert [router._load(IDS[name]) for name in (first, second, third)] == [
            0,
            0,
            0,
        ]  # whether they were sent or not
        for name in (first, first, second, second, third, third):
            router.on_send_request(IDS[name])
        for _ in range(2):
            router.on_request_completed(IDS[third], "same")
            router.decrement_queue_len_cache(IDS[third])  # as Ray does
        assert await chosen(asked()) == third

    asyncio.run(coming())


def test_a_door_goes_by_what_others_have_at_a_replica_while_it_has_heard_of_it(router: PrefixRouter) -> None:
    first, second, *_ = ranked("key", NOBODY, 2)
    router.on_new_queue_len_info(IDS[first], 2)
    assert chosen(router, Lead(key="key"))[0] == [second]
    router.on_new_queue_len_info(IDS[first], 1)
    assert chosen(router, Lead(key="key"))[0] == [first]


def test_a_request_does_not_wait_for_ever_for_the_replica_that_holds_what_it_names(router: PrefixRouter) -> None:
    lead = Lead(holder="b")
    assert chosen(router, lead) == [["b"]]
    first, then = chosen(router, lead, waited=60.0)
    assert (first, sorted(then)) == (["b"], ["a", "b", "c"])  # it is asked as soon as it has room
