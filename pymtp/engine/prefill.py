"""Prompts: where they go on, a bounded share of them a step, and the first token after each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

from pymtp.engine.context import EngineContext
from pymtp.engine.request import Request
from pymtp.errors import InvalidRequestError, NativeError, PymtpError
from pymtp.prefix_cache.cache import Prefixes


class Prompts:
    """The part of an Engine that reads prompts.

    Pieces of a prompt end at multiples of n_ubatch from its beginning, and where the prefixes want checkpoints.
    """

    _context: EngineContext
    prefixes: Prefixes
    _n_read = 0  # tokens

    @abstractmethod
    def guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None:
        """What the call fails by is the requests' error."""

    @abstractmethod
    def fail_one(self, request: Request, error: PymtpError) -> None:
        """Ends it with an error."""

    @abstractmethod
    def look_for_lost(self) -> None:
        """Something failed that may have emptied sequences of others."""

    @abstractmethod
    def begin(self, request: Request, token: int) -> None:
        """Its prompt is read, and the first token after it was sampled."""

    @abstractmethod
    def saved(self, request: Request) -> None:
        """Its prompt was read and saved, or could not be."""

    @abstractmethod
    def go_on(self, request: Request) -> None:
        """Its sequence holds again what came out before, but for the last token."""

    def read_prompts(self, requests: Sequence[Request]) -> bool:
        """A bounded share of the prompts of these requests, in their order, so that those who write go on: n_ubatch
        tokens, or one piece. Whether there was any."""
        left = most = self._context.n_ubatch
        some = False
        for request in requests:
            while request.writer is None and request.seq is not None and self._goes(request):
                cost = most if request.begun or self._saves(request) else self._piece_end(request) - request.n_read
                if cost > left and left < most:
                    return True
                left -= cost
                some = True
                self.guarded([request], self._catch_up if request.begun else self._read_piece, requests)
                if left <= 0:
                    return True
        return some

    def _most(self, request: Request) -> int | None:
        """After how many tokens of its prompt a request may go on, at the most; None for anywhere."""
        saver = request.saver
        if saver is None:
            return None
        saver.have(self.prefixes.states(request.prompt, saver.places))
        return saver.most

    def _goes(self, request: Request) -> bool:
        """Whether it does not wait for another that reads what it needs; it stands at the best place there is."""
        if not request.begun:
            self.guarded([request], self._advance)
        return request.reader is not None and not request.reader.waits

    def _advance(self, requests: Sequence[Request]) -> None:
        (request,) = requests
        reader, saver = request.reader, request.saver
        assert reader is not None
        if saver is not None:
            reader.most = saver.most
        try:
            goes = self.prefixes.advance(reader)
        except NativeError:  # of memory, perhaps
            self.prefixes.read_alone(reader)
            self.look_for_lost()
            goes = True
        if saver is not None and goes:
            saver.take(self._context, reader.seq, reader.n)
        if not request.tokens:
            request.cached = reader.found

    def _piece_end(self, request: Request) -> int:
        assert request.reader is not None
        edge = self._context.n_ubatch
        end = min(request.reader.stop, request.n_read - request.n_read % edge + edge)
        return end if request.saver is None else min(end, request.saver.stop(request.n_read))

    def _saves(self, request: Request) -> bool:
        """Whether it is read, and to be saved."""
        return request.saver is not None and request.reader is not None and not request.reader.reads

    def _read_piece(self, requests: Sequence[Request], others: Iterable[Request]) -> None:
        """The next piece, if there is any. Those that wait for it go on from there before its sequence does."""
        (request,) = requests
        seq, reader = request.seq, request.reader
        assert seq is not None
        assert reader is not None
        if reader.reads:
            end = self._piece_end(request)
            self._context.prefill_batch({seq: request.prompt[reader.n : end]})
            self._n_read += end - reader.n
            self.prefixes.read(reader, end)
            if request.saver is not None:
                request.saver.take(self._context, seq, end)
            for other in others:
                if other.reader is not None and other.reader.waits and other is not request:
                    self.guarded([other], self._advance)
            if request.reader is not reader:  # what failed there emptied its sequence
                return
        if not reader.reads and request.saver is None:
            self._begin(requests)
        if request.reader is reader and self._saves(request):
            self._save(request)

    def _save(self, request: Request) -> None:
        """Some of its K and V."""
        reader, saver = request.reader, request.saver
        assert reader is not None
        assert saver is not None
        self.prefixes.rest(reader)
        if saver.write(self._context, reader.seq):
            self.saved(request)

    def _begin(self, requests: Sequence[Request]) -> None:
        """The first token after the prompt."""
        (request,) = requests
        reader = request.reader
        assert reader is not None
        forced = () if request.tokens else request.text.thinking.forced  # of a budget of 0
        try:
            if forced and request.logprobs is not None:
                self._context.set_sampling(request.samplers.certain(forced[0]), reader.seq)
            token = self._context.first_token(reader.seq)
        except InvalidRequestError as error:  # of a grammar
            self.fail_one(request, error)
            return
        self.prefixes.write(reader)
        request.begun = True
        if not request.tokens:  # else they are brought back in steps to come
            self.begin(request, forced[0] if forced else token)

    def _catch_up(self, requests: Sequence[Request], _others: Iterable[Request]) -> None:
        """Brings what came out before to a sequence that begins anew, as rounds did: verified, not read."""
        (request,) = requests
        tokens, start, seq = request.tokens, request.n_caught, request.seq
        assert seq is not None
        chain = tokens[start : min(start + 1 + self._context.draft_tokens, len(tokens) - 1)]
        if chain:
            found = self._context.verify_chains({seq: chain})[seq]
            if isinstance(found, PymtpError):
                self.fail_one(request, found)
                return
            request.n_caught += len(chain)
        if request.n_caught == len(tokens) - 1:
            self.go_on(request)
