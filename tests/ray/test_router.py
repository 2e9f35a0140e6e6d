"""Tests of PrefixRouter: the order of replicas, and the number of requests that a front counts for each replica."""

from __future__ import annotations

import asyncio
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pymtp.ray.routing import RoutingHint, rank_replicas

if TYPE_CHECKING:  # the functions that need Ray Serve import it: that takes each worker a second
    from ray.serve.request_router import PendingRequest, ReplicaID

    from pymtp.ray.router import PrefixRouter

NO_LOAD = dict.fromkeys("abc", 0)


@cache
def replica_id(name: str) -> ReplicaID:
    from ray.serve._private.common import DeploymentID
    from ray.serve.request_router import ReplicaID

    return ReplicaID(name, DeploymentID("Replica", "pymtp"))


def new_request(hint: RoutingHint) -> PendingRequest:
    from ray.serve._private.common import RequestMetadata
    from ray.serve.request_router import PendingRequest

    return PendingRequest(args=[], kwargs={"hint": hint}, metadata=RequestMetadata("id", "internal"))


@pytest.fixture
def router() -> PrefixRouter:
    from ray.serve._private.common import DeploymentHandleSource

    from pymtp.ray.router import PrefixRouter

    source = DeploymentHandleSource.REPLICA
    made = PrefixRouter(replica_id("a").deployment_id, source, use_replica_queue_len_cache=True)
    made.initialize_state(n_seq_max=2)
    return made


def chosen(router: PrefixRouter, hint: RoutingHint | None, waited: float = 0.0) -> list[list[str]]:
    """Return the names of the replicas that the router chooses, as lists that Ray tries one after the other."""
    replicas: list[Any] = [SimpleNamespace(replica_id=replica_id(name)) for name in NO_LOAD]

    async def choose() -> Any:
        request = None
        if hint is not None:
            request = new_request(hint)
            request.created_at -= waited
        choice = await router.choose_replicas(replicas, request)
        if request is not None:
            assert (
                request.routing_context.should_backoff
            )  # otherwise Ray would retry without a pause while all replicas are full
            request.future.cancel()
        return choice

    return [[replica.replica_id.unique_id for replica in group] for group in asyncio.run(choose())]


def test_router_tries_replicas_in_the_order_of_the_key(router: PrefixRouter) -> None:
    for key in ("one", "two", "three"):
        assert chosen(router, RoutingHint(key=key)) == [[name] for name in rank_replicas(key, NO_LOAD, 2)]


def test_router_sends_a_stored_response_only_to_its_holder(router: PrefixRouter) -> None:
    assert chosen(router, RoutingHint(holder="b")) == [["b"]]
    for _ in range(9):
        router.on_send_request(replica_id("b"))
    assert chosen(router, RoutingHint(holder="b")) == [["b"]]


@pytest.mark.parametrize("hint", [None, RoutingHint(), RoutingHint(holder="gone")])
def test_request_without_hint_can_go_to_any_replica(router: PrefixRouter, hint: RoutingHint | None) -> None:
    assert chosen(router, hint) == [["a", "b", "c"]]


def test_router_counts_a_request_that_it_sent_until_the_request_ends(
    router: PrefixRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = rank_replicas("key", NO_LOAD, 2)
    for _ in range(2):
        router.on_send_request(replica_id(first))
    monkeypatch.setattr(router.replica_queue_len_cache, "_is_timed_out", lambda _: True)  # as if 10 seconds had passed
    assert chosen(router, RoutingHint(key="key"))[0] == [second]
    router.on_request_completed(replica_id(first), "internal")
    assert chosen(router, RoutingHint(key="key"))[0] == [first]
    for _ in range(3):  # more often than requests were sent
        router.on_request_completed(replica_id(first), "internal")
    router.on_send_request(replica_id(first))
    router.on_send_request(replica_id(first))
    assert chosen(router, RoutingHint(key="key"))[0] == [second]


def test_router_counts_requests_that_are_not_sent_yet(router: PrefixRouter) -> None:
    first, second, third = rank_replicas("key", NO_LOAD, 2)
    replicas: list[Any] = [SimpleNamespace(replica_id=replica_id(name)) for name in NO_LOAD]

    async def send_at_once() -> None:
        async def chosen(request: PendingRequest) -> str:
            choice = await router.choose_replicas(replicas, request)
            name: str = choice[0][0].replica_id.unique_id
            return name

        requests = [new_request(RoutingHint(key="key")) for _ in range(6)]
        assert [await chosen(request) for request in requests[:2]] == [first, first]
        assert await chosen(requests[1]) == first  # choosing again does not count the request twice
        assert [await chosen(request) for request in requests[2:]] == [second, second, third, third]
        requests[1].future.cancel()
        assert await chosen(requests[5]) == first
        for name, request in zip([first, second, second, third, third], [requests[0], *requests[2:]], strict=True):
            request.future.set_result(SimpleNamespace(replica_id=replica_id(name)))  # not all at their first choice
        assert [router._load(replica_id(name)) for name in (first, second, third)] == [1, 2, 2]
        for _ in range(3):
            await asyncio.sleep(0)
        assert [router._load(replica_id(name)) for name in (first, second, third)] == [
            0,
            0,
            0,
        ]  # whether they were sent or not
        for name in (first, first, second, second, third, third):
            router.on_send_request(replica_id(name))
        for _ in range(2):
            router.on_request_completed(replica_id(third), "internal")
            router.decrement_queue_len_cache(replica_id(third))  # as Ray does
        assert await chosen(new_request(RoutingHint(key="key"))) == third

    asyncio.run(send_at_once())


def test_router_counts_requests_of_other_fronts_from_the_replica_s_report(router: PrefixRouter) -> None:
    first, second, *_ = rank_replicas("key", NO_LOAD, 2)
    router.on_new_queue_len_info(replica_id(first), 2)
    assert chosen(router, RoutingHint(key="key"))[0] == [second]
    router.on_new_queue_len_info(replica_id(first), 1)
    assert chosen(router, RoutingHint(key="key"))[0] == [first]


def test_router_tries_other_replicas_if_the_holder_stays_full(router: PrefixRouter) -> None:
    hint = RoutingHint(holder="b")
    assert chosen(router, hint) == [["b"]]
    first, then = chosen(router, hint, waited=60.0)
    assert (first, sorted(then)) == (["b"], ["a", "b", "c"])  # the holder is still tried first
