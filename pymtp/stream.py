"""A completion piece by piece."""

from __future__ import annotations

from pymtp.errors import ClosedError
from pymtp.exclusive import Exclusive, alone
from pymtp.request import Completion, Piece, Request


class Stream:
    """Iterates over the pieces of a completion while it is generated. Ends early, as "cancelled", when it is closed or
    when its LLM turns to another prompt.

    Several threads may use it: they and the other calls of the LLM take turns. A stream keeps its LLM; it may be left
    half way.
    """

    def __init__(self, owner: Exclusive, request: Request) -> None:
        """owner: the LLM, whose turns the pieces take."""
        self._owner = owner
        self._request = request

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """The next piece. Raises ClosedError when the LLM is closed, and what `LLM.generate` raises."""
        return _next(self._owner, self._request)

    def close(self) -> None:
        """Stops generating. What came so far is in `completion`, as "cancelled" unless it was complete."""
        try:
            _cancel(self._owner, self._request)
        except ClosedError:
            self._owner.close()  # when this returns, the LLM has ended its requests

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def completion(self) -> Completion:
        """The whole, once it has ended. Raises InvalidRequestError before."""
        return self._request.completion


@alone
def _next(_owner: Exclusive, request: Request) -> Piece:
    if request.ended:
        raise StopIteration
    return request.step()


@alone
def _cancel(_owner: Exclusive, request: Request) -> None:
    request.cancel()
