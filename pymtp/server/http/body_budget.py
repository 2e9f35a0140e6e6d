"""The budget of memory for all bodies of requests: who waits until there is room, and who must make way."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pymtp.server.rate import Rate

# Bodies up to this size never wait: uvicorn has read as much of a body already when a request begins.
SMALL_BODY = 2**16
WAIT_SECONDS = 10.0  # longest wait for room
# A body that is received for this time already must make way for bodies of clients that use less than their shares.
PATIENCE_SECONDS = 2.0


class Reservation:
    """The memory of one body, from before it is read until its request has ended.

    client: the client that sends the body.
    size: the reserved bytes.
    begun: the time of the event loop's clock at which the body began to be received.
    receiving: the task that waits for the next part of the body; None if the body is complete.
    revoked: whether the body had to make way for others.
    """

    def __init__(self, client: str, size: int, begun: float) -> None:
        self.client, self.size, self.begun = client, size, begun
        self.receiving: asyncio.Future[Any] | None = None
        self.revoked = False


class BodyBudget:
    """A limit on the bytes of all bodies together. All calls must come from one event loop.

    Whoever sends a large body waits until there is room for all of it; meanwhile nothing of it is read. The client that
    uses the least memory comes first, and no client may use the last part of the memory, as large as one body, beside
    its other bodies. If that is not enough for a client that uses less than its share, slow bodies of clients that use
    more than theirs are given up.
    """

    def __init__(self, limit: int, max_body: int) -> None:
        """limit: the limit in bytes, at least that of one body.

        max_body: the size of the largest body.
        """
        self._limit, self._max_client = limit, max(limit - max_body, max_body, limit // 2)
        self._held: dict[Reservation, None] = {}
        self._bytes: Counter[str] = Counter()  # by client
        self._waiting: dict[Reservation, asyncio.Future[None]] = {}
        self._rate = Rate()

    @property
    def nbytes(self) -> int:
        """Return the bytes that are reserved."""
        return self._bytes.total()

    async def reserve(self, client: str, size: int) -> Reservation | None:
        """Reserve bytes for a body, and wait until there is room. Return None after WAIT_SECONDS without room."""
        loop = asyncio.get_running_loop()
        one = Reservation(client, size, loop.time())
        if size <= SMALL_BODY:
            self._hold(one)
            return one
        room = self._waiting[one] = loop.create_future()
        self._give_room()
        deadline = one.begun + WAIT_SECONDS
        try:
            while not room.done() and loop.time() < deadline:
                self._make_room(one)
                await asyncio.wait({room}, timeout=min(PATIENCE_SECONDS, deadline - loop.time()))
        except BaseException:  # the task is cancelled
            self.release(one)
            raise
        finally:
            self._waiting.pop(one, None)
        if not room.done():
            return None
        one.begun = loop.time()
        return one

    async def grow(self, one: Reservation, size: int) -> bool:
        """Reserve more bytes for a body, and wait until there is room. Return False after WAIT_SECONDS without room."""
        more = await self.reserve(one.client, size - one.size)
        if more is None:
            return False
        self._held.pop(more)  # its bytes belong to the first reservation now
        one.size = size
        return True

    def resize(self, one: Reservation, size: int) -> None:
        """Change the size of a reservation, which is known better now."""
        self._bytes[one.client] += size - one.size
        freed, one.size = one.size - size, size
        if freed > 0:
            self._give_room()

    def release(self, one: Reservation) -> None:
        """Free the memory of a body. May be called twice."""
        if one in self._held:
            del self._held[one]
            self._bytes[one.client] -= one.size
            if not self._bytes[one.client]:
                del self._bytes[one.client]
            self._rate.add(one.size)
            self._give_room()

    def retry_after(self, size: int) -> int:
        """Estimate the seconds until there is room for a body of this size."""
        return self._rate.seconds_until(size)

    def _hold(self, one: Reservation) -> None:
        if not self._held:
            self._rate.begin()
        self._held[one] = None
        self._bytes[one.client] += one.size

    def _has_room(self, one: Reservation) -> bool:
        own = self._bytes[one.client]
        return self.nbytes + one.size <= self._limit and (not own or own + one.size <= self._max_client)

    def _give_room(self) -> None:
        """Let those go on that wait and have room now, the clients with the least memory first."""
        while self._waiting:
            waiting = [one for one, future in self._waiting.items() if not future.done() and self._has_room(one)]
            if not waiting:
                return
            one = min(waiting, key=lambda each: self._bytes[each.client])
            self._hold(one)
            self._waiting.pop(one).set_result(None)

    def _make_room(self, one: Reservation) -> None:
        """Give up slow bodies of clients that use more than their share, if this one's client uses less."""
        share = self._limit / len(self._bytes.keys() | {one.client})
        if one not in self._waiting or self._bytes[one.client] + one.size > share:
            return
        now, missing = asyncio.get_running_loop().time(), self.nbytes + one.size - self._limit
        slow = (each for each in self._held if each.receiving is not None and now - each.begun >= PATIENCE_SECONDS)
        for each in sorted(slow, key=lambda each: each.begun):
            if missing <= 0:
                return
            if self._bytes[each.client] > share and not each.revoked and each.receiving is not None:
                each.revoked = True
                each.receiving.cancel()
                missing -= each.size
