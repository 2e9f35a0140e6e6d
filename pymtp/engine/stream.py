"""A stream: the completion of one request, piece by piece."""

from __future__ import annotations

from contextlib import suppress

from pymtp.engine.request import Completion, Piece, Request
from pymtp.engine.thread import EngineRunner
from pymtp.errors import ClosedError
from pymtp.native.locking import Exclusive


class Stream:
    """An iterator over the pieces of a completion, while it is generated.

    A stream runs beside other streams and calls of its LLM, a few pieces ahead of its reader. If its reader does not
    take the pieces while other requests wait for a sequence, it is preempted once, and restarts when it is read again:
    its text is the same. close() ends it early, as "cancelled"; so does the garbage collector, if nothing refers to it.
    Several threads may read one stream. A stream keeps a reference to its LLM.
    """

    def __init__(self, owner: Exclusive, runner: EngineRunner, request: Request) -> None:
        """Create the stream of a request.

        owner: the LLM.
        runner: the runner of the LLM's engine.
        """
        self._owner = owner
        self._runner = runner
        self._request = request

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """Return the next piece. Raises ClosedError if the LLM is closed, and the errors of `LLM.generate`."""
        request = self._request
        while True:
            self._runner.run_until(self._owner, request.waiter, [request], self._ready)
            try:
                return request.unread.popleft()
            except IndexError:  # the request has ended, or another thread took the piece
                if not request.ended:
                    continue
            if (error := request.error_copy()) is not None:
                raise error
            raise StopIteration

    def _ready(self) -> bool:
        request = self._request
        return bool(request.unread) or request.finish_reason is not None

    def close(self) -> None:
        """Stop generating, and drop the pieces that were not read.

        Afterwards `completion` has everything that was generated, as "cancelled" if the generation was not complete.
        """
        request = self._request
        self._runner.engine.cancel(request)
        try:
            self._runner.run_until(self._owner, request.waiter, [], lambda: request.ended)
        except ClosedError:
            self._owner.close()  # waits until the LLM has ended its requests
        request.unread.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # an error of a signal handler may have interrupted __init__
            self._runner.engine.cancel(self._request)  # nobody can read the rest

    @property
    def completion(self) -> Completion:
        """Return the completion of a stream that has ended. Raises InvalidRequestError before the end."""
        return self._request.completion
