"""Many requests on one context: admit, a piece of prompt, a round, hand out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from pymtp.drafting.head_check import DraftWatch
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.closing import close_thinking, launches
from pymtp.engine.context import EngineContext
from pymtp.engine.engine_stats import Counts, Figures
from pymtp.engine.prefill import Prompts
from pymtp.engine.request import FinishReason, Request
from pymtp.engine.rounds import Writer, play_round
from pymtp.engine.scheduler import Scheduler
from pymtp.errors import CancelledError, ClosedError, NativeError, PymtpError
from pymtp.prefix_cache.cache import Prefixes
from pymtp.prefix_cache.load import StoredPrefix
from pymtp.sampling import TokenLogprobs


class Engine(Prompts):
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
        cache_bytes: int = 0,
        drafts: DraftWatch | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        cache_prompt: prompts go on from what was read and written before. False: only completions of one prompt do.
        cache_bytes: of host memory, for prefixes that sequences do not hold any more.
        drafts: says where the head does not fit the model; None for one that names no file.
        """
        self._context, self.depth, self._clock, self.cache_prompt = context, depth, clock, cache_prompt
        self.prefixes = Prefixes(context, cache_bytes if cache_prompt else 0)
        self._scheduler = Scheduler(context.n_seq_max, context.n_ctx)
        self._numbers = count()
        self._arrivals: deque[Request] = deque()
        self._cancels: deque[Request] = deque()
        self._closed: PymtpError | None = None
        self._live: dict[Request, None] = {}  # those that were submitted and have not ended
        self._torn = False  # a step has not come to its end: it is going on, or was broken off
        self._late = False  # whether all were cancelled after one was asked for, and before it came
        self._counts = Counts()
        self._drafts = drafts or DraftWatch()
        self._left_apart: list[int] = []  # numbers of requests with gaps between them that it does not pay to close

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
        waiting = live.count(None)
        return self._counts.figures(len(live) - waiting, waiting, self._n_read, self.prefixes.figures())

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
                request.seq, request.reader, request.taken = None, None, True
            self.prefixes.recover()
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
        reading = reads and self.read_prompts(scheduler.reading())
        playing = [request for request in writing if not request.closes]
        for together in launches(writing):
            self.guarded(together, self._close_thinking)
        playing = [request for request in playing if request.writer is not None]  # what fails may begin others anew
        if playing:
            self.guarded(playing, self._play)
        self._torn = False
        return reading or bool(writing)

    def adopt(self, file: StoredPrefix) -> None:
        """Between two steps: prompts go on from what a file has. Raises InvalidRequestError where it does not fit, and
        what reading it fails by."""
        self._begin_step()
        try:
            self.prefixes.adopt(file)
        except (PymtpError, OSError):  # all is read before the tree is changed
            self._torn = False
            raise
        self._torn = False

    def close(self, error: PymtpError) -> None:
        """Ends all requests; `error` is theirs, and that of those to come."""
        self._closed = error
        self.fail(error)
        self.prefixes.forget()

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
        with suppress(PymtpError):  # of a context that is closed
            request.after = self._context.counters
        self._leave(request, keeps=error is None)
        self._scheduler.stop(request)
        request.writer = None
        request.give_up(self._clock(), error, tells_reader=tells_reader)
        self._live.pop(request, None)
        if error is None or isinstance(error, ClosedError):
            self._counts.cancelled += 1
        else:
            self._counts.failed += 1

    def fail_one(self, request: Request, error: PymtpError) -> None:
        """Ends it with an error."""
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
            family = None if self.cache_prompt else request.family or object()
            most = self._most(request)
            marks = request.marks if request.family is None else (*request.marks, len(request.prompt))
            reader = self.prefixes.open(request.prompt, self._scheduler.free, request.rank, marks, family, most)
            request.reader = reader
            self._scheduler.start(request, reader.seq)
            try:
                if not request.started:
                    request.started = self._clock()
                    request.before = self._context.counters
                self._context.set_sampling(request.reading_sampler, reader.seq)
            except PymtpError as error:
                self.fail_one(request, error)

    def _leave(self, request: Request, news: Sequence[int] = (), *, keeps: bool = True) -> None:
        """It is done with its sequence. What that holds may be gone on from; nothing where that is not known. news:
        tokens that are to come out."""
        reader, n_held = request.reader, request.n_held
        if reader is None:
            return
        request.reader = None
        written: list[int] | None = [*request.tokens, *news][: n_held - reader.n]
        with suppress(PymtpError):  # of a context that is closed, or broken: its next call says so
            if reader.begun and not (keeps and self._context.tokens_held(reader.seq) == n_held):
                written = None
                self._context.clear(reader.seq)
        self.prefixes.close(reader, written)

    def _begin_anew(self, request: Request) -> None:
        """Takes its sequence away. What came out stays, and its sequence will hold it again."""
        self._leave(request)
        self._scheduler.stop(request)
        request.begin_anew()
        self._scheduler.add(request)

    def _close_gaps(self) -> None:
        if self._apart == self._left_apart:  # what is left to write only becomes less
            return
        moves = self._scheduler.moves(self.prefixes.worth if self.cache_prompt else lambda seq: 0)
        for request, seq in moves:
            if request.seq is not None:  # else it begins anew
                self.guarded([request], self._move, seq)
        self._left_apart = self._apart

    @property
    def _apart(self) -> list[int]:
        return [request.number for request in self._scheduler.running]

    def _move(self, requests: Sequence[Request], seq: int) -> None:
        (request,) = requests
        assert request.seq is not None
        try:
            self.prefixes.leave(seq)
            self._context.clear(seq)
            self._context.move(request.seq, seq)
        except (CancelledError, NativeError):
            self.look_for_lost()
            return  # it goes on where it is
        self.prefixes.moved(request.seq, seq)
        self._scheduler.move(request, seq)

    # ── Prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, request: Request, token: int) -> None:
        """Its prompt is read, and the first token after it was sampled."""
        self._write(request, token, 1).ended |= request.text.ends(token)
        self._counts.add_tokens(1)
        self._hand_out(request, [token], self._clock())

    def saved(self, request: Request) -> None:
        """Its prompt is where it was to be saved, or could not be."""
        request.after = self._context.counters
        self._leave(request)
        self._scheduler.stop(request)
        self._counts.finished += 1
        request.hand_out([], [], self._clock(), "length")
        self._live.pop(request, None)

    def go_on(self, request: Request) -> None:
        """Its sequence holds again what came out before, but for the last token."""
        writer = self._write(request, request.tokens[-1], len(request.tokens))
        closed_at = request.text.thinking.closed_at
        if closed_at is not None:
            self._context.set_sampling(request.samplers.behind(len(request.tokens) - closed_at), writer.seq)

    def _write(self, request: Request, token: int, n_out: int) -> Writer:
        writer = request.write(token, n_out, self._context.n_ctx, self.depth.open(request.params.temperature))
        if self._drafts.gives_up:
            writer.cap = 0
        return writer

    # ── Rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _play(self, requests: Sequence[Request]) -> None:
        writers = [request.writer for request in requests if request.writer is not None]
        rows = play_round(self._context, writers, self.depth, self._clock)
        now = self._clock()
        tokens = 0
        for request, writer in zip(requests, writers, strict=True):
            if writer.error is not None:
                self.fail_one(request, writer.error)
                continue
            tokens += len(writer.out)
            self._counts.add_drafts(len(writer.drafts), writer.accepted)
            self._drafts.add(len(writer.made), writer.right, writer.mute, request.params.temperature)
            self._hand_out(request, writer.out, now)
        self._counts.add_round(len(writers), rows, tokens, now)

    def _close_thinking(self, requests: Sequence[Request]) -> None:
        requests = [request for request in requests if request.closes]  # what failed before may have begun it anew
        close_thinking(self._context, requests)
        now = self._clock()
        for request in requests:
            if request.at.error is not None:
                self.fail_one(request, request.at.error)
                continue
            self._counts.add_tokens(len(request.at.out))
            self._hand_out(request, request.at.out, now)

    def _hand_out(self, request: Request, tokens: list[int], now: float) -> None:
        writer = request.at
        logprobs: list[TokenLogprobs] = []
        if request.logprobs is not None:
            logprobs = [*request.forced_logprobs, *self._context.logprobs(writer.seq)][: len(tokens)]
            request.forced_logprobs = []
        reason: FinishReason | None = None
        if writer.ended and not request.closes:
            request.after = self._context.counters
            self._leave(request, tokens)
            self._scheduler.stop(request)
            reason = "stop" if request.text.ended else "length"
            self._counts.finished += 1
        request.hand_out(tokens, logprobs, now, reason, (len(writer.drafts), writer.accepted))
        if reason is not None:
            self._live.pop(request, None)

    def guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None:
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
                self.fail_one(request, error)
        else:
            return
        self.look_for_lost()

    def look_for_lost(self) -> None:
        """After something failed: requests whose sequences others copied from, and emptied so, begin anew."""
        with suppress(PymtpError):  # of a context that is closed
            lost = self.prefixes.lost()
            for request in [one for one in self._scheduler.running if one.seq in lost]:
                self._begin_anew(request)
