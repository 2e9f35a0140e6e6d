"""The engine: it runs many requests on one context. A step admits requests, prefills, and runs one round."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import cast

from pymtp.drafting.head_check import HeadCheck
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.closing import close_thinking, closing_batches
from pymtp.engine.context import EngineContext
from pymtp.engine.engine_stats import EngineStats, Figures
from pymtp.engine.prefill import PrefillMixin
from pymtp.engine.request import FinishReason, Request
from pymtp.engine.rounds import DecodeState, run_round
from pymtp.engine.scheduler import Scheduler
from pymtp.errors import CancelledError, ClosedError, NativeError, PymtpError
from pymtp.prefix_cache.cache import PrefixCache
from pymtp.sampling import TokenLogprobs


class Engine(PrefillMixin):
    """Runs requests on a context, as many at the same time as the context has sequences.

    Any thread may call `submit` and `cancel`. Only one thread at a time may call the other methods; see
    thread.EngineThread. The output of a request does not depend on other requests: its prompt is prefilled in chunks
    that end at multiples of n_ubatch, and neither rounds nor their depths change the sampled tokens.
    """

    def __init__(
        self,
        context: EngineContext,
        depth: BatchDepth,
        *,
        cache_prompt: bool = True,
        cache_bytes: int = 0,
        head_check: HeadCheck | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create an engine without requests.

        cache_prompt: whether prompts reuse the K and V and states of earlier requests. If False, only completions of
            the same prompt share them.
        cache_bytes: the limit of host memory for cached prefixes that are in no sequence.
        head_check: warns about a head that does not fit the model; None for a warning without file names.
        clock: returns the time in seconds.
        """
        self._context, self.depth, self._clock, self.cache_prompt = context, depth, clock, cache_prompt
        self.prefix_cache = PrefixCache(context, cache_bytes if cache_prompt else 0)
        self._scheduler = Scheduler(context.n_seq_max, context.n_ctx)
        self._numbers = count()
        self._new_requests: deque[Request] = deque()
        self._cancelled_requests: deque[Request] = deque()
        self._close_error: PymtpError | None = None
        self._unfinished: dict[Request, None] = {}  # submitted, and not ended
        self._late_cancel = False  # cancel() was called while requests that it must end were still in a queue
        self._stats = EngineStats()
        self._head_check = head_check or HeadCheck()
        # numbers of the running requests when moves were last planned: between these requests, gaps may stay
        self._uncompacted: list[int] = []

    def submit(self, request: Request) -> None:
        """Add a request, which the next steps run. After close(), the request ends at once."""
        if request.cancel_count is None:
            request.cancel_count = self._context.cancels
        request.number = next(self._numbers)
        request.arrival_time = self._clock()
        self._unfinished[request] = None
        self._new_requests.append(request)
        # Must be read after the previous line; otherwise a close() between the two would leave a request that hangs
        if self._close_error is not None:
            self._reject_new_requests(self._close_error)

    def cancel(self, request: Request) -> None:
        """Let the next step end a request as "cancelled", before it does anything else."""
        if not request.ended:
            request.cancelling = True
            self._cancelled_requests.append(request)

    def figures(self) -> Figures:
        """Return a snapshot of the statistics."""
        cancelled = list(self._cancelled_requests)  # not counted: the next step will end them
        seqs = [request.seq for request in list(self._unfinished) if not request.ended and request not in cancelled]
        n_waiting = seqs.count(None)
        return self._stats.figures(len(seqs) - n_waiting, n_waiting, self._n_prefilled, self.prefix_cache.figures())

    @property
    def idle(self) -> bool:
        """Return whether a step would do nothing: there are no requests, or all are paused streams."""
        return not self._has_events and self._scheduler.idle

    @property
    def closing(self) -> bool:
        """Return whether close() was called."""
        return self._close_error is not None

    @property
    def _has_events(self) -> object:
        """Return a true value if there are new or cancelled requests."""
        return self._new_requests or self._cancelled_requests or self._late_cancel or self._context.cancelled

    def process_queues(self) -> None:
        """Take new requests from their queue, and end cancelled ones."""
        if not self._has_events:
            return
        # Must be read first: then the next lines take all these requests from the queue of new ones before they end
        n_cancelled = len(self._cancelled_requests)
        while self._new_requests:
            request = self._new_requests.popleft()
            self._scheduler.add(request)
            self._late_cancel |= cast(int, request.cancel_count) < self._context.cancels
        if self._late_cancel or self._context.cancelled:
            self._context.cancel(False)
            # Must be read after the previous line; otherwise a cancel() between the two would be missed
            cancel_count = self._context.cancels
            for request in list(self._scheduler):
                if cast(int, request.cancel_count) < cancel_count:
                    self._abort(request, emit_piece=True)
            self._late_cancel = False
        for _ in range(n_cancelled):
            self._abort(self._cancelled_requests.popleft())

    def step(self) -> bool:
        """Admit requests, prefill a share of their prompts, run a round, and emit its tokens.

        Returns False if there was nothing to do. The error of a request that fails is stored in the request.
        """
        self.process_queues()
        scheduler = self._scheduler
        if scheduler.n_waiting:
            scheduler.requeue_preempted()
            self._admit()
        if scheduler.has_gap:
            self._close_gaps()
        decoding = scheduler.decoding()
        must_prefill = len(decoding) < len(scheduler.running)
        if must_prefill:
            for request in decoding:
                request.hand_over()
        prefilled = must_prefill and self.prefill_step(scheduler.prefilling())
        in_round = [request for request in decoding if not request.must_close_thinking]
        for batch in closing_batches(decoding):
            self.run_guarded(batch, self._close_thinking)
        # a failed batch may have restarted some of these requests
        in_round = [request for request in in_round if request.decode_state is not None]
        if in_round:
            self.run_guarded(in_round, self._run_round)
        return prefilled or bool(decoding)

    def close(self, error: PymtpError) -> None:
        """End with an error the streams, the requests that wait for a sequence, and all later ones. The others run."""
        self._close_error = error
        self._reject_new_requests(error)
        for request in list(self._scheduler):
            if request.seq is None or request.max_unread is not None:
                self._abort(request, error)

    def fail_all(self, error: PymtpError) -> None:
        """End all requests with an error, after an error that no request caused. Cached prefixes stay."""
        self._reject_new_requests(error)
        self._scheduler = Scheduler(self._context.n_seq_max, self._context.n_ctx)
        self._uncompacted = []
        for request in self._unfinished:
            request.seq = request.prefill_state = None
        self.prefix_cache.recover()
        for request in list(self._unfinished):
            self._abort(request, error)

    def _reject_new_requests(self, error: PymtpError) -> None:
        """End the requests that are still in the queue of new ones."""
        with suppress(IndexError):
            while True:
                self._abort(self._new_requests.popleft(), error)

    def _abort(self, request: Request, error: PymtpError | None = None, *, emit_piece: bool = False) -> None:
        """End a request as "cancelled", with an error if one is given.

        emit_piece: whether the reader of a stream gets a last piece, without tokens.
        """
        if request.ended:
            return
        with suppress(PymtpError):  # the context may be closed
            request.counters_after = self._context.counters
        self._release_sequence(request, reusable=error is None)
        self._scheduler.remove(request)
        request.decode_state = None
        request.abort(self._clock(), error, emit_piece=emit_piece)
        self._unfinished.pop(request, None)
        if error is None or isinstance(error, ClosedError):
            self._stats.cancelled += 1
        else:
            self._stats.failed += 1

    def fail_request(self, request: Request, error: PymtpError) -> None:
        """End a request with an error."""
        self._abort(request, error.with_traceback(None))  # without the traceback, whose frames refer to the context

    # ── Admit ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        while True:
            request = self._scheduler.next_waiting()
            if request is None:
                preempted = self._scheduler.choose_preempted()
                if preempted is None:
                    return
                preempted.preempted, preempted.number = True, next(self._numbers)
                self._restart(preempted)
                continue
            group = None if self.cache_prompt else request.group or object()
            branch_points = request.branch_points
            if request.group is not None:
                branch_points = (*branch_points, len(request.prompt))
            state = self.prefix_cache.begin(
                request.prompt, self._scheduler.free, request.rank, branch_points, group, self._max_reuse(request)
            )
            request.prefill_state = state
            self._scheduler.start(request, state.seq)
            try:
                if not request.start_time:
                    request.start_time = self._clock()
                    request.counters_before = self._context.counters
                self._context.set_sampling(request.prefill_sampler, state.seq)
            except PymtpError as error:
                self.fail_request(request, error)

    def _release_sequence(self, request: Request, new_tokens: Sequence[int] = (), *, reusable: bool = True) -> None:
        """Release the sequence of a request: later requests may reuse its contents, if these are known.

        new_tokens: tokens of the last round, which are not emitted yet.
        reusable: whether the contents are valid; otherwise the sequence is cleared.
        """
        state, n_past = request.prefill_state, request.n_past
        if state is None:
            return
        request.prefill_state = None
        generated: list[int] | None = [*request.tokens, *new_tokens][: n_past - state.n_computed]
        with suppress(PymtpError):  # the context may be closed or broken: its next call raises the error again
            if state.started and not (reusable and self._context.tokens_held(state.seq) == n_past):
                generated = None
                self._context.clear(state.seq)
        self.prefix_cache.release(state, generated)

    def _restart(self, request: Request) -> None:
        """Release the sequence of a request, and queue it again. Its output stays, and is computed again."""
        self._release_sequence(request)
        self._scheduler.remove(request)
        request.restart()
        self._scheduler.add(request)

    def _close_gaps(self) -> None:
        # moves were not worth their cost for these requests, which by now have even fewer tokens to gain by
        if self._running_numbers == self._uncompacted:
            return
        moves = self._scheduler.plan_moves(self.prefix_cache.reuse_value if self.cache_prompt else lambda seq: 0)
        for request, seq in moves:
            if request.seq is not None:  # None if an earlier failed move has restarted the request
                self.run_guarded([request], self._move_sequence, seq)
        self._uncompacted = self._running_numbers

    @property
    def _running_numbers(self) -> list[int]:
        return [request.number for request in self._scheduler.running]

    def _move_sequence(self, requests: Sequence[Request], seq: int) -> None:
        (request,) = requests
        assert request.seq is not None
        try:
            self.prefix_cache.spill(seq)
            self._context.clear(seq)
            self._context.move(request.seq, seq)
        except (CancelledError, NativeError):
            self.restart_lost_requests()
            return  # the request stays in its sequence
        self.prefix_cache.on_move(request.seq, seq)
        self._scheduler.move(request, seq)

    # ── Prefill ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_first_token(self, request: Request, token: int) -> None:
        """Emit the first token of a request, and start to decode."""
        self._start_decoding(request, token, 1).ended |= request.text.add_token(token)
        self._stats.add_tokens(1)
        self._emit(request, [token], self._clock())

    def on_saved(self, request: Request) -> None:
        """End a request whose prefix was saved, or could not be written."""
        request.counters_after = self._context.counters
        self._release_sequence(request)
        self._scheduler.remove(request)
        self._stats.finished += 1
        request.emit([], [], self._clock(), "length")
        self._unfinished.pop(request, None)

    def on_recomputed(self, request: Request) -> None:
        """Continue to decode a restarted request, whose sequence holds the prompt and all output but the last token."""
        state = self._start_decoding(request, request.tokens[-1], len(request.tokens))
        closed_at = request.text.thinking.closed_at
        if closed_at is not None:
            self._context.set_sampling(request.samplers.after_thinking(len(request.tokens) - closed_at), state.seq)

    def _start_decoding(self, request: Request, token: int, n_output: int) -> DecodeState:
        depth = self.depth.add_sequence(request.params.temperature)
        state = request.start_decoding(token, n_output, self._context.n_ctx, depth)
        if self._head_check.head_failed:
            state.max_drafts = 0
        return state

    # ── Rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run_round(self, requests: Sequence[Request]) -> None:
        states = [request.decode_state for request in requests if request.decode_state is not None]
        rows = run_round(self._context, states, self.depth, self._clock)
        now = self._clock()
        n_tokens = 0
        for request, state in zip(requests, states, strict=True):
            if state.error is not None:
                self.fail_request(request, state.error)
                continue
            n_tokens += len(state.new_tokens)
            self._stats.add_drafts(len(state.verified_drafts), state.n_accepted)
            self._head_check.add(len(state.made_drafts), state.n_correct, state.head_failed, request.params.temperature)
            self._emit(request, state.new_tokens, now)
        self._stats.add_round(len(states), rows, n_tokens, now)

    def _close_thinking(self, requests: Sequence[Request]) -> None:
        # A failure of another batch may have restarted some of these requests
        requests = [request for request in requests if request.must_close_thinking]
        close_thinking(self._context, requests)
        now = self._clock()
        for request in requests:
            state = request.require_decode_state()
            if state.error is not None:
                self.fail_request(request, state.error)
                continue
            self._stats.add_tokens(len(state.new_tokens))
            self._emit(request, state.new_tokens, now)

    def _emit(self, request: Request, tokens: list[int], now: float) -> None:
        state = request.require_decode_state()
        logprobs: list[TokenLogprobs] = []
        if request.logprobs is not None:
            logprobs = [*request.forced_logprobs, *self._context.logprobs(state.seq)][: len(tokens)]
            request.forced_logprobs = []
        reason: FinishReason | None = None
        if state.ended and not request.must_close_thinking:
            request.counters_after = self._context.counters
            self._release_sequence(request, tokens)
            self._scheduler.remove(request)
            reason = "stop" if request.text.ended else "length"
            self._stats.finished += 1
        request.emit(tokens, logprobs, now, reason, (len(state.verified_drafts), state.n_accepted))
        if reason is not None:
            self._unfinished.pop(request, None)

    def run_guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None:
        """Make a call for some requests.

        If the call raises an error, the requests fail with it; if the call is cancelled, they end or restart.
        """
        try:
            call(requests, *arguments)
        except CancelledError:
            for request in requests:
                if not self._context.cancelled:  # the process is ending
                    self._abort(request, emit_piece=True)
                elif not request.ended and request.seq is not None:  # process_queues() ends those meant by cancel()
                    self._restart(request)
        except (NativeError, ClosedError) as error:
            for request in requests:
                self.fail_request(request, error)
        else:
            return
        self.restart_lost_requests()

    def restart_lost_requests(self) -> None:
        """Restart the requests whose sequences lost their contents when a copy from them failed."""
        with suppress(PymtpError):  # the context may be closed
            lost = self.prefix_cache.lost_sequences()
            for request in [request for request in self._scheduler.running if request.seq in lost]:
                self._restart(request)
