"""A stream: the completion of one request, piece by piece."""

from __future__ import annotations

from contextlib import suppress

from pymtp.engine.request import Completion, Piece, Request
from pymtp.engine.thread import EngineThread


class Stream:
    """An iterator over the pieces of a completion, while it is generated.

    A stream runs beside other streams and calls of its LLM, a few pieces ahead of its reader. If its reader does not
    take the pieces while other requests wait for a sequence, it is preempted once, and restarts when it is read again:
    its text is the same. close() ends it early, as "cancelled"; so does the garbage collector, if nothing refers to it.
    Several threads may read one stream. A stream keeps a reference to its LLM.
    """

    def __init__(self, owner: object, thread: EngineThread, request: Request) -> None:
        """Submit a request, and create its stream. Raises the errors of `EngineThread.submit`.

        owner: the LLM.
        thread: the thread of the LLM's engine.
        """
        self._owner, self._thread, self._request = owner, thread, request
        thread.submit([request])

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """Return the next piece. Raises ClosedError if the LLM is closed, and the errors of `LLM.generate`."""
        request, unread = self._request, self._request.unread
        while True:
            if not unread:
                self._thread.wake()  # the request may have paused
                self._thread.wait(request.waiter, [request], self._ready)
            try:
                piece = unread.popleft()
            except IndexError:  # the request has ended, or another thread took the piece
                if not request.ended:
                    continue
            else:
                return piece
            if (error := request.error_copy()) is not None:
                raise error
            raise StopIteration

    def _ready(self) -> bool:
        return bool(self._request.unread) or self._request.ended

    def close(self) -> None:
        """Stop generating, and drop the pieces that were not read.

        Afterwards `completion` has everything that was generated, as "cancelled" if the generation was not complete.
        """
        request = self._request
        if not request.ended:
            self._thread.cancel([request])
            self._thread.wait(request.waiter, [], lambda: request.ended)
        request.unread.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # an interrupt may have ended __init__ early
            if not self._request.ended:
                self._thread.cancel([self._request])  # nobody can read the rest

    @property
    def completion(self) -> Completion:
        """Return the completion of a stream that has ended, or that was cancelled and is about to end.

        Raises InvalidRequestError before the end.
        """
        request = self._request
        if request.cancelling and not request.ended:
            self._thread.wait(request.waiter, [], lambda: request.ended)
        return request.completion
