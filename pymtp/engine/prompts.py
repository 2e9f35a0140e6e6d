"""Prompts: where they go on, a bounded share of them a step, and the first token after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pymtp.engine.context import EngineContext
from pymtp.engine.prefixes import Prefixes
from pymtp.engine.request import Request
from pymtp.errors import InvalidRequestError, NativeError, PymtpError


class Owner(Protocol):
    """What comes of requests; see engine.Engine."""

    def guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None: ...
    def fail_one(self, request: Request, error: PymtpError) -> None: ...
    def look_for_lost(self) -> None:
        """Something failed that may have emptied sequences of others."""

    def begin(self, request: Request, token: int) -> None:
        """Its prompt is read, and the first token after it was sampled."""

    def go_on(self, request: Request) -> None:
        """Its sequence holds again what came out before, but for the last token."""


class Prompts:
    """Reads prompts, each in pieces that end at multiples of n_ubatch from its beginning, and where the prefixes want
    checkpoints."""

    def __init__(self, context: EngineContext, prefixes: Prefixes, owner: Owner) -> None:
        self._context, self._prefixes, self._owner = context, prefixes, owner
        self.n_read = 0  # tokens

    def read(self, requests: Sequence[Request]) -> bool:
        """A bounded share of the prompts of these requests, in their order, so that those who write go on: n_ubatch
        tokens, or one piece. Whether there was any."""
        left = most = self._context.n_ubatch
        some = False
        for request in requests:
            while request.writer is None and request.seq is not None and self._goes(request):
                cost = most if request.begun else self._piece_end(request) - request.n_read
                if cost > left and left < most:
                    return True
                left -= cost
                some = True
                self._owner.guarded([request], self._catch_up if request.begun else self._read_piece, requests)
                if left <= 0:
                    return True
        return some

    def _goes(self, request: Request) -> bool:
        """Whether it does not wait for another that reads what it needs; it stands at the best place there is."""
        if not request.begun:
            self._owner.guarded([request], self._advance)
        return request.reader is not None and not request.reader.waits

    def _advance(self, requests: Sequence[Request]) -> None:
        (request,) = requests
        reader = request.reader
        assert reader is not None
        try:
            self._prefixes.advance(reader)
        except NativeError:  # of memory, perhaps
            self._prefixes.read_alone(reader)
            self._owner.look_for_lost()
        if not request.tokens:
            request.cached = reader.found

    def _piece_end(self, request: Request) -> int:
        assert request.reader is not None
        edge = self._context.n_ubatch
        return min(request.reader.stop, request.n_read - request.n_read % edge + edge)

    def _read_piece(self, requests: Sequence[Request], others: Iterable[Request]) -> None:
        """The next piece, if there is any. Those that wait for it go on from there before its sequence does."""
        (request,) = requests
        seq, reader = request.seq, request.reader
        assert seq is not None
        assert reader is not None
        copies: list[Request] = []
        if reader.reads:
            end = self._piece_end(request)
            self._context.prefill_batch({seq: request.prompt[reader.n : end]})
            self.n_read += end - reader.n
            self._prefixes.read(reader, end)
            for other in others:
                if other.reader is not None and other.reader.waits and other is not request:
                    self._owner.guarded([other], self._advance)
                    copies.append(other)
            if request.reader is not reader:  # what failed there emptied its sequence
                return
        if not reader.reads:
            self._begin(requests)
        for other in copies:
            if other.reader is not None and other.reader.begun and not other.reader.reads:
                self._owner.guarded([other], self._begin)

    def _begin(self, requests: Sequence[Request]) -> None:
        """The first token after the prompt."""
        (request,) = requests
        reader = request.reader
        assert reader is not None
        try:
            token = self._context.first_token(reader.seq)
        except InvalidRequestError as error:  # of a grammar
            self._owner.fail_one(request, error)
            return
        self._prefixes.write(reader)
        request.begun = True
        if not request.tokens:  # else they are brought back in steps to come
            self._owner.begin(request, token)

    def _catch_up(self, requests: Sequence[Request], _others: Iterable[Request]) -> None:
        """Brings what came out before to a sequence that begins anew, as rounds did: verified, not read."""
        (request,) = requests
        tokens, start, seq = request.tokens, request.n_caught, request.seq
        assert seq is not None
        chain = tokens[start : min(start + 1 + self._context.draft_tokens, len(tokens) - 1)]
        if chain:
            found = self._context.verify_chains({seq: chain})[seq]
            if isinstance(found, PymtpError):
                self._owner.fail_one(request, found)
                return
            request.n_caught += len(chain)
        if request.n_caught == len(tokens) - 1:
            self._owner.go_on(request)
