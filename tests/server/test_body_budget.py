"""Tests of the budget of bytes for the bodies of all requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from pymtp.engine.request import current_caller
from pymtp.server.http import body_budget
from pymtp.server.http.body_budget import SMALL_BODY, BodyBudget
from pymtp.server.http.middleware import KEY_DIGEST, BodyLimitMiddleware

MIB = 2**20


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_bodies_beyond_the_budget_wait_until_there_is_room() -> None:
    async def test() -> None:
        budget = BodyBudget(8 * MIB, 2 * MIB)
        held = [await budget.reserve("a", 2 * MIB) for _ in range(3)]
        waiting = [asyncio.ensure_future(budget.reserve("a", 2 * MIB)) for _ in range(2)]
        await settled()
        assert not any(one.done() for one in waiting)  # the last part is for other clients
        assert await budget.reserve("b", 2 * MIB) is not None
        assert await budget.reserve("a", SMALL_BODY) is not None  # small bodies never wait
        assert held[0] is not None
        budget.release(held[0])
        await settled()
        assert [one.done() for one in waiting] == [False, False]  # its own share is free, but not the memory
        for one in (*held[1:], *(await asyncio.gather(*(budget.reserve("c", 1) for _ in range(3))))):
            assert one is not None
            budget.release(one)
        assert all(await asyncio.gather(*waiting))

    run(test)


def test_client_with_the_least_memory_comes_first() -> None:
    async def test() -> None:
        budget = BodyBudget(4 * MIB, MIB)
        held = [await budget.reserve(client, MIB) for client in "aaab"]
        order: list[str] = []

        async def reserve(client: str) -> None:
            await budget.reserve(client, MIB)
            order.append(client)

        tasks = [asyncio.ensure_future(reserve(client)) for client in "abc"]
        await settled()
        for one in held[:3]:
            assert one is not None
            budget.release(one)
            await settled()
        await asyncio.gather(*tasks)
        assert order[0] == "c"

    run(test)


def test_waiting_body_is_refused_after_a_time_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "WAIT_SECONDS", 0.01)

    async def test() -> None:
        budget = BodyBudget(MIB, MIB)
        held = await budget.reserve("a", MIB)
        assert await budget.reserve("a", MIB) is None
        cancelled = asyncio.ensure_future(budget.reserve("a", MIB))
        await settled()
        cancelled.cancel()
        await settled()
        assert held is not None
        budget.release(held)
        budget.release(held)
        assert (budget.nbytes, budget._waiting) == (0, {})

    run(test)


class Client:
    """A client of a BodyLimitMiddleware that sends its body on demand."""

    def __init__(self, middleware: BodyLimitMiddleware, key: str, size: int, **headers: str) -> None:
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        named = {"content-length": str(size), **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/tokenize",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in named.items() if value],
            "state": {KEY_DIGEST: key},
        }
        self.task = asyncio.ensure_future(middleware(scope, self.pieces.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def write(self, n: int, *, more: bool = True) -> None:
        self.pieces.put_nowait({"type": "http.request", "body": b" " * n, "more_body": more})
        await settled()

    @property
    def status(self) -> Any:
        return self.sent[0].get("status", 200) if self.sent else None


@asynccontextmanager
async def middleware(budget: int) -> AsyncIterator[tuple[BodyLimitMiddleware, asyncio.Event]]:
    """Yield a middleware, and the event that its application waits for, which answers with the size of the body."""
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await go_on.wait()
        caller = current_caller.get()
        assert caller is not None
        await send({"type": "body", "size": len(body), "caller": caller})

    yield BodyLimitMiddleware(app, MIB, budget_bytes=budget), go_on


def test_body_takes_memory_until_its_request_has_ended() -> None:
    async def test() -> None:
        async with middleware(4 * MIB) as (limited, go_on):
            clients = [Client(limited, "a", MIB) for _ in range(4)]
            for client in clients:
                await client.write(MIB, more=False)
            assert limited._budget.nbytes == 3 * MIB  # the fourth is not read
            go_on.set()
            await asyncio.gather(*(client.task for client in clients))
            assert [client.sent[0]["size"] for client in clients] == [MIB] * 4
            caller = clients[0].sent[0]["caller"]
            assert (caller.client, caller.owner, caller.n_bytes) == ("a", "a", MIB)
            assert limited._budget.nbytes == 0

    run(test)


def test_slow_bodies_make_way_for_a_client_within_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "PATIENCE_SECONDS", 0.02)

    async def test() -> None:
        async with middleware(4 * MIB) as (limited, go_on):
            go_on.set()
            slow = [Client(limited, key, MIB) for key in ("b", "a", "a", "a")]
            for client in slow:
                await client.write(100)
            other = Client(limited, "c", MIB)
            await other.write(MIB, more=False)
            await other.task
            assert other.status == 200
            statuses = [client.status for client in slow]
            assert statuses.count(503) == 1
            assert statuses[0] is None  # "b" was first, but stays within its share
            refused = slow[statuses.index(503)]
            headers = dict(refused.sent[0]["headers"])
            assert int(headers[b"retry-after"]) >= 1
            assert headers[b"connection"] == b"close"
            assert b"too_many_bodies" in refused.sent[1]["body"]
            for client in slow:
                client.task.cancel()
            await asyncio.gather(*(client.task for client in slow), return_exceptions=True)
            assert limited._budget.nbytes == 0

    run(test)


def test_body_without_a_length_takes_the_memory_that_it_needs() -> None:
    async def test() -> None:
        async with middleware(4 * MIB) as (limited, go_on):
            client = Client(limited, "a", 0, content_length="")
            await client.write(SMALL_BODY)
            await client.write(1)
            assert limited._budget.nbytes == MIB  # the largest body
            await client.write(0, more=False)
            assert limited._budget.nbytes == SMALL_BODY + 1
            go_on.set()
            await client.task
            assert limited._budget.nbytes == 0

    run(test)


def test_disconnect_and_error_free_the_memory_of_a_body() -> None:
    async def test() -> None:
        async with middleware(4 * MIB) as (limited, go_on):
            gone, large = Client(limited, "a", MIB), Client(limited, "a", 0, content_length="")
            gone.pieces.put_nowait({"type": "http.disconnect"})
            await large.write(MIB + 1)
            await asyncio.gather(gone.task, large.task)
            assert large.status == 413
            assert limited._budget.nbytes == 0
            assert not go_on.is_set()

    run(test)
