"""A completion piece by piece."""

from __future__ import annotations

from contextlib import suppress

from pymtp.engine.request import Completion, Piece, Request
from pymtp.engine.thread import Turns
from pymtp.errors import ClosedError
from pymtp.native.locking import Exclusive


class Stream:
    """Iterates over the pieces of a completion while it is generated. Ends early, as "cancelled", when it is closed or
    let go of.

    It goes on beside other streams and calls of its LLM, a few pieces ahead of its reader. Where its reader stays away
    and others wait for a sequence, it gives way once, and begins anew when it is read again: its text is the same.
    Several threads may use it. A stream keeps its LLM; it may be left half way.
    """

    def __init__(self, owner: Exclusive, turns: Turns, request: Request) -> None:
        """owner: the LLM, whose turns the pieces take."""
        self._owner = owner
        self._turns = turns
        self._request = request

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """The next piece. Raises ClosedError when the LLM is closed, and what `LLM.generate` raises."""
        request = self._request
        while True:
            self._turns.wait(self._owner, request.caller, [request], self._has_news)
            try:
                return request.unread.popleft()
            except IndexError:  # or another thread took it
                if not request.ended:
                    continue
            if (error := request.failure()) is not None:
                raise error
            raise StopIteration

    def _has_news(self) -> bool:
        request = self._request
        return bool(request.unread) or request.reason is not None

    def close(self) -> None:
        """Stops generating. What came so far, pieces that were not read among it, is in `completion`, as "cancelled"
        unless it was complete."""
        request = self._request
        self._turns.engine.cancel(request)
        try:
            self._turns.wait(self._owner, request.caller, [], lambda: request.ended)
        except ClosedError:
            self._owner.close()  # when this returns, the LLM has ended its requests
        request.unread.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # where a signal handler raised in __init__
            self._turns.engine.cancel(self._request)  # nobody will read it

    @property
    def completion(self) -> Completion:
        """The whole, once it has ended. Raises InvalidRequestError before."""
        return self._request.completion
