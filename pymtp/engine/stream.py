"""A stream: the completion of one request, piece by piece."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from dataclasses import replace

from pymtp.chat import OutputFormat
from pymtp.engine.logprobs import echo_logprobs
from pymtp.engine.request import Completion, Piece, Request
from pymtp.engine.thread import EngineThread
from pymtp.sampling import TokenLogprobs


class PieceParser:
    """A parser of the pieces of a chat, which adds their events. Threads may share it, if they hold `lock`.

    lock: is held while a piece is taken from its queue and parsed, so that pieces are parsed in their order.
    """

    def __init__(self, output_format: OutputFormat) -> None:
        self.lock = threading.RLock()
        self._parser = output_format.parser()
        self._finished = False

    def parse(self, piece: Piece) -> Piece:
        """Return the next piece with its events."""
        return replace(piece, events=tuple(self._parser.push(piece.text)))

    def finish(self) -> Piece | None:
        """Return a last piece with the events that the end of the text shows; None without any, and the second time."""
        events = () if self._finished else tuple(self._parser.finish())
        self._finished = True
        return Piece("", [], events=events) if events else None


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
        self._parser = None if request.output_format is None else PieceParser(request.output_format)
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
            ended = request.ended  # before the pieces: later ones would be lost
            if (piece := self._take()) is not None:
                return piece
            if not ended:  # another thread took the piece
                continue
            if (piece := self._finish()) is not None:
                return piece
            if (error := request.error_copy()) is not None:
                raise error
            raise StopIteration

    def _take(self) -> Piece | None:
        """Take the next piece, and parse it if it is of a chat; None if there is none."""
        with nullcontext() if self._parser is None else self._parser.lock:
            try:
                piece = self._request.unread.popleft()
            except IndexError:
                return None
            return piece if self._parser is None else self._parser.parse(piece)

    def _finish(self) -> Piece | None:
        if self._parser is None or self._request.error is not None:
            return None
        with self._parser.lock:
            return self._parser.finish()

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
        self._finish()  # takes the events of the text that was held back

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # an interrupt may have ended __init__ early
            if not self._request.ended:
                self._thread.cancel([self._request])  # nobody can read the rest

    def echo_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities of the prompt, see `pymtp.engine.logprobs.echo_logprobs`. Private to pymtp."""
        return echo_logprobs(self._request.prompt, self._request.prompt_logprobs)

    @property
    def completion(self) -> Completion:
        """Return the completion of a stream that has ended, or that was cancelled and is about to end.

        Raises InvalidRequestError before the end.
        """
        request = self._request
        if request.cancelling and not request.ended:
            self._thread.wait(request.waiter, [], lambda: request.ended)
        return request.completion
