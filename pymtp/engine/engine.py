"""Many requests on one context: admit, a piece of prompt, a round, hand out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from pymtp.engine.context import EngineContext
from pymtp.engine.depth import BatchDepth
from pymtp.engine.figures import Counts, Figures
from pymtp.engine.request import FinishReason, Request
from pymtp.engine.rounds import Writer, play_round
from pymtp.engine.scheduler import Scheduler
from pymtp.errors import CancelledError, ClosedError, InvalidRequestError, NativeError, PymtpError


class Engine:
    """Runs requests on a context, as many at once as it has sequences.

    Any thread may `submit` and `cancel`. One thread at a time may `settle` and `step`; its owner sees to that. A
    request's tokens are those that it would have alone: its prompt is read in pieces that end at multiples of n_ubatch
    from its beginning, and neither rounds nor their depths change what is sampled.
    """

    def __init__(
        self,
        context: EngineContext,
        depth: BatchDepth,
        *,
        cache_prompt: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """cache_prompt: go on from what a sequence holds, where a prompt begins with all of it."""
        self._context, self.depth, self._clock, self.cache_prompt = context, depth, clock, cache_prompt
        self._scheduler = Scheduler(context.n_seq_max, context.n_ctx)
        self._numbers = count()
        self._arrivals: deque[Request] = deque()
        self._cancels: deque[Request] = deque()
        self._closed: PymtpError | None = None
        self._live: dict[Request, None] = {}  # those that were submitted and have not ended
        self._torn = False  # a step has not come to its end: it is going on, or was broken off
        self._late = False  # whether all were cancelled after one was asked for, and before it came
        self._counts = Counts()
        self._left_apart: list[Request] = []  # requests with gaps between them that it does not pay to close

    def check(self, prompt: Sequence[int]) -> None:
        """Raises ContextFullError for a prompt that can never fit."""
        self._scheduler.check(prompt)

    def submit(self, request: Request, cancels: int | None = None) -> None:
        """A new request, which runs in steps to come; after close() it has ended. cancels: that the context had seen
        when it was asked for, None for now: a later one means it, too."""
        request.cancels = self._context.cancels if cancels is None else cancels
        request.number = next(self._numbers)
        request.submitted = self._clock()
        self._live[request] = None
        self._arrivals.append(request)
        if self._closed is not None:  # after the line before: one of the two threads sees it
            self._turn_away(self._closed)

    def cancel(self, request: Request) -> None:
        """Ends a request as "cancelled" before the next step; others go on."""
        if not request.ended:
            self._cancels.append(request)

    def figures(self) -> Figures:
        """What was done so far, and how many run and wait."""
        cancelled = list(self._cancels)  # whom a step to come ends, if there is one
        live = [request.seq for request in list(self._live) if not request.ended and request not in cancelled]
        return self._counts.figures(len(live) - live.count(None), live.count(None))

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing: nobody asked for anything, or all streams wait for their readers."""
        return not self._news and not self._torn and self._scheduler.idle

    @property
    def _news(self) -> object:
        return self._arrivals or self._cancels or self._late or self._context.cancelled

    def settle(self) -> None:
        """Takes arrivals in, and ends what was cancelled."""
        self._begin_step()
        self._settle()
        self._torn = False

    def _begin_step(self) -> None:
        """Puts right what a step left that was broken off: all texts begin anew, and go on as they would have."""
        if self._torn:
            self._scheduler = Scheduler(self._context.n_seq_max, self._context.n_ctx)
            self._left_apart = []
            self._late = True  # perhaps
            live = list(self._live)
            for request in live:
                request.seq, request.taken = None, True
            with suppress(PymtpError):  # of a context that is closed, or broken: its next call says so
                self._context.clear()
            for request in live:
                request.begin_anew()
                if request.ended:
                    request.caller.tell()
                    self._live.pop(request, None)  # or another thread, which submits after close(), did
                else:
                    self._scheduler.add(request)
        self._torn = True

    def _settle(self) -> None:
        n_cancels = len(self._cancels)  # of requests that arrived before the next line, whatever comes meanwhile
        while self._arrivals:
            request = self._arrivals.popleft()
            if not request.taken:
                request.taken = True
                self._scheduler.add(request)
            self._late |= request.cancels < self._context.cancels
        if self._late or self._context.cancelled:
            self._context.cancel(False)
            seen = self._context.cancels  # after the line before: none is missed
            for request in list(self._scheduler):
                if request.cancels < seen:
                    self._end(request, tells_reader=True)
            self._late = False
        for _ in range(n_cancels):
            self._end(self._cancels[0])
            self._cancels.popleft()

    def step(self) -> bool:
        """Admits, reads a piece of prompt, plays a round, and hands out what came. Whether there was anything to do.

        What a request fails by is its error. Raises what a signal handler raised: all texts begin anew in steps to
        come, and go on as they would have.
        """
        self._begin_step()
        scheduler = self._scheduler
        if self._news:
            self._settle()
        if scheduler.n_waiting:
            scheduler.call_back()
            self._admit()
        if scheduler.has_gap:
            self._close_gaps()
        writing = scheduler.writing()
        reads = len(writing) < len(scheduler.running)
        reading = reads and self._read(scheduler.reading()) | self._begin_copies()
        if writing:
            self._guarded(writing, self._play)
        self._torn = False
        return reading or bool(writing)

    def close(self, error: PymtpError) -> None:
        """Ends all requests; `error` is theirs, and that of those to come."""
        self._closed = error
        self.fail(error)

    def fail(self, error: PymtpError) -> None:
        """Ends all requests; `error` is theirs."""
        with suppress(Exception):  # what broke a step off may come again as that is put right
            self._begin_step()
        self._turn_away(error)
        for request in [one for one in list(self._live) if one.taken]:
            self._end(request, error)
            self._live.pop(request, None)
        self._torn = False

    def _turn_away(self, error: PymtpError) -> None:
        """Ends those that no step took in."""
        with suppress(IndexError):
            while True:
                self._end(self._arrivals.popleft(), error)

    def _end(self, request: Request, error: PymtpError | None = None, *, tells_reader: bool = False) -> None:
        """Ends it as "cancelled"."""
        if request.ended:
            return
        seq = request.seq
        with suppress(PymtpError):  # of a context that is closed
            request.after = self._context.counters
            # tokens without their text, or a prompt half read: nothing goes on from there
            if seq is not None and (error is not None or request.writer is None):
                self._context.clear(seq)
        self._scheduler.stop(request)
        request.writer = None
        request.give_up(self._clock(), error, tells_reader=tells_reader)
        self._live.pop(request, None)
        if error is None or isinstance(error, ClosedError):
            self._counts.cancelled += 1
        else:
            self._counts.failed += 1

    def _fail(self, request: Request, error: PymtpError) -> None:
        self._end(request, error.with_traceback(None))  # whose frames would keep the context

    # ── Admit ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        while True:
            request = self._scheduler.next()
            if request is None:
                slow = self._scheduler.give_way()
                if slow is None:
                    return
                slow.gave_way, slow.number = True, next(self._numbers)
                self._begin_anew(slow)
                continue
            siblings = self._scheduler.siblings(request)
            seq, cached = (self._scheduler.free[0], 0) if siblings else self._place(request.prompt)
            self._scheduler.start(request, seq)
            try:
                self._start(request, seq, cached)
            except PymtpError as error:
                self._fail(request, error)
                continue
            source = next((one for one in siblings if one.at_prompt), None)
            if source is not None:
                self._guarded([request], self._copy, source)

    def _place(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The free sequence that holds the most of the prompt's beginning, or the lowest, and how much it holds: all of
        a sequence counts or nothing, for the recurrent layers cannot go back further than a round."""
        free = self._scheduler.free
        best, most = free[0], 0
        if self.cache_prompt:
            for seq in free:
                n = self._context.tokens_held(seq)
                if most < n < len(prompt) and list(prompt[:n]) == self._context.tokens(seq):
                    best, most = seq, n
        return best, most

    def _start(self, request: Request, seq: int, cached: int) -> None:
        if not request.started:
            request.started = self._clock()
            request.before = self._context.counters
        self._context.set_sampling(request.sampler, seq)
        if not cached:
            self._context.clear(seq)
        request.n_read = cached
        if not request.tokens:
            request.cached = cached

    def _begin_anew(self, request: Request) -> None:
        """Takes its sequence away. What came out stays, and its sequence will hold it again."""
        with suppress(PymtpError):  # of a context that is closed, or broken: its next call says so
            self._context.clear(request.seq)
        self._scheduler.stop(request)
        request.begin_anew()
        self._scheduler.add(request)

    def _close_gaps(self) -> None:
        if self._scheduler.running == self._left_apart:  # what is left to write only becomes less
            return
        moves = self._scheduler.moves(self._context.tokens_held if self.cache_prompt else lambda seq: 0)
        for request, seq in moves:
            self._guarded([request], self._move, seq)
        self._left_apart = self._scheduler.running

    def _move(self, requests: Sequence[Request], seq: int) -> None:
        (request,) = requests
        assert request.seq is not None
        try:
            self._context.clear(seq)
            self._context.move(request.seq, seq)
        except (CancelledError, NativeError):
            return  # it goes on where it is
        self._scheduler.move(request, seq)

    # ── Prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, requests: Sequence[Request]) -> bool:
        """A bounded share of prompts, so that those who write go on: n_ubatch tokens, or one piece. Whether there was
        any."""
        left = most = self._context.n_ubatch
        for request in requests:
            while request.writer is None and request.seq is not None and not request.at_prompt:
                start = request.n_read
                piece = request.prompt[start : start + most - start % most]
                cost = len(piece) or most
                if cost > left and left < most:
                    return True
                left -= cost
                self._guarded([request], self._read_piece, piece)
                if left <= 0:
                    return True
        return bool(requests)

    def _read_piece(self, requests: Sequence[Request], piece: Sequence[int]) -> None:
        (request,) = requests
        seq = request.seq
        assert seq is not None
        if piece:
            self._context.prefill_batch({seq: piece})
            request.n_read += len(piece)
            if request.n_read < len(request.prompt):
                return
            for sibling in self._scheduler.siblings(request):
                if not sibling.n_read:
                    self._guarded([sibling], self._copy, request)
            self._begin(requests)
        else:
            self._catch_up(request, seq)

    def _copy(self, requests: Sequence[Request], source: Request) -> None:
        """Its sequence holds the prompt that the source's does, or nothing where that fails: then it is read."""
        (request,) = requests
        assert request.seq is not None
        assert source.seq is not None
        try:
            self._context.copy(source.seq, request.seq)
        except (CancelledError, NativeError):
            return
        request.n_read = len(request.prompt)
        if not request.tokens:
            request.cached = request.n_read

    def _begin_copies(self) -> bool:
        """Whether there were any."""
        found = False
        while (request := self._scheduler.beginning()) is not None:  # one that began may let the others wait
            self._guarded([request], self._begin)
            found = True
        return found

    def _begin(self, requests: Sequence[Request]) -> None:
        """The first token after the prompt, which was read."""
        (request,) = requests
        seq = request.seq
        assert seq is not None
        try:
            token = self._context.first_token(seq)
        except InvalidRequestError as error:  # of a grammar
            self._fail(request, error)
            return
        request.begun = True
        if request.tokens:  # which are brought back in steps to come
            return
        self._write(request, token, 1).ended |= request.text.ends(token)
        self._counts.add_first_token()
        self._hand_out(request, [token], self._clock())

    def _catch_up(self, request: Request, seq: int) -> None:
        """Brings what came out before to a sequence that begins anew, as rounds did: verified, not read."""
        tokens, start = request.tokens, request.n_caught
        chain = tokens[start : min(start + 1 + self._context.draft_tokens, len(tokens) - 1)]
        if chain:
            found = self._context.verify_chains({seq: chain})[seq]
            if isinstance(found, PymtpError):
                self._fail(request, found)
                return
            request.n_caught += len(chain)
        if request.n_caught == len(tokens) - 1:
            self._write(request, tokens[-1], len(tokens))

    def _write(self, request: Request, token: int, n_out: int) -> Writer:
        return request.write(token, n_out, self._context.n_ctx, self.depth.open(request.params.temperature))

    # ── Rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _play(self, requests: Sequence[Request]) -> None:
        writers = [request.writer for request in requests if request.writer is not None]
        rows = play_round(self._context, writers, self.depth, self._clock)
        now = self._clock()
        tokens = drafted = accepted = 0
        for request, writer in zip(requests, writers, strict=True):
            if writer.error is not None:
                self._fail(request, writer.error)
                continue
            tokens += len(writer.out)
            drafted += len(writer.drafts)
            accepted += writer.accepted
            self._hand_out(request, writer.out, now)
        if rows:  # else all failed in their drafts
            self._counts.add_round(len(writers), rows, tokens, drafted, accepted, now)

    def _hand_out(self, request: Request, tokens: list[int], now: float) -> None:
        writer = request.writer
        assert writer is not None
        logprobs = [] if request.logprobs is None else self._context.logprobs(writer.seq)[: len(tokens)]
        reason: FinishReason | None = None
        if writer.ended:
            request.after = self._context.counters
            self._scheduler.stop(request)
            reason = "stop" if request.text.ended else "length"
            self._counts.finished += 1
        request.hand_out(tokens, logprobs, now, reason)
        if reason is not None:
            self._live.pop(request, None)

    def _guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None:
        """What the call fails by is the requests' error. Where it was cancelled, they are ended or begin anew."""
        try:
            call(requests, *arguments)
        except CancelledError:
            for request in requests:
                if not self._context.cancelled:  # the process ends
                    self._end(request, tells_reader=True)
                elif not request.ended and request.seq is not None:  # settle() ends those that were meant
                    self._begin_anew(request)
        except (NativeError, ClosedError) as error:
            for request in requests:
                self._fail(request, error)
