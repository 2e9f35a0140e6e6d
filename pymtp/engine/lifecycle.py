"""The life of requests in an engine: they get a sequence, emit tokens, restart, fail and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pymtp.drafting.head_check import HeadCheck
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.context import EngineContext
from pymtp.engine.engine_stats import EngineStats
from pymtp.engine.request import FinishReason, Request
from pymtp.engine.rounds import DecodeState
from pymtp.engine.scheduler import Scheduler
from pymtp.errors import CancelledError, ClosedError, NativeError, PymtpError
from pymtp.prefix_cache.cache import PrefixCache
from pymtp.sampling import TokenLogprobs


class RequestLifecycle:
    """The requests of an engine, and the transitions between their states.

    context: the context that runs the requests.
    scheduler: the queues of the requests.
    unfinished: the requests that were submitted and have not ended.
    """

    def __init__(
        self,
        context: EngineContext,
        depth: BatchDepth,
        prefix_cache: PrefixCache,
        head_check: HeadCheck,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.context, self.depth, self.prefix_cache, self.head_check = context, depth, prefix_cache, head_check
        self.clock = clock
        self.scheduler = Scheduler(context.n_seq_max, context.n_ctx)
        self.unfinished: dict[Request, None] = {}
        self.stats = EngineStats()

    def abort(self, request: Request, error: PymtpError | None = None, *, emit_piece: bool = False) -> None:
        """End a request as "cancelled", with an error if one is given.

        emit_piece: whether the reader of a stream gets a last piece, without tokens.
        """
        if request.ended:
            return
        with suppress(PymtpError):  # the context may be closed
            request.counters_after = self.context.counters
        self.release_sequence(request, reusable=error is None)
        self.scheduler.remove(request)
        request.decode_state = None
        request.abort(self.clock(), error, emit_piece=emit_piece)
        self.unfinished.pop(request, None)
        self._count_failure(error)

    def reject(self, request: Request, error: PymtpError) -> None:
        """End a request that the engine's thread has not taken yet with an error. Any thread may call this."""
        request.abort(self.clock(), error)
        self.unfinished.pop(request, None)
        self._count_failure(error)

    def _count_failure(self, error: PymtpError | None) -> None:
        if error is None or isinstance(error, ClosedError):
            self.stats.cancelled += 1
        else:
            self.stats.failed += 1

    def fail(self, request: Request, error: PymtpError) -> None:
        """End a request with an error."""
        self.abort(request, error.with_traceback(None))  # without the traceback, whose frames refer to the context

    def release_sequence(self, request: Request, new_tokens: Sequence[int] = (), *, reusable: bool = True) -> None:
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
            if state.started and not (reusable and self.context.tokens_held(state.seq) == n_past):
                generated = None
                self.context.clear(state.seq)
        self.prefix_cache.release(state, generated)

    def restart(self, request: Request) -> None:
        """Release the sequence of a request, and queue it again. Its output stays, and is computed again."""
        self.release_sequence(request)
        self.scheduler.remove(request)
        request.restart()
        self.scheduler.add(request)

    def on_first_token(self, request: Request, token: int) -> None:
        """Emit the first token of a request, and start to decode."""
        self._start_decoding(request, token, 1).ended |= request.text.add_token(token)
        self.stats.add_tokens(1)
        self.emit(request, [token], self.clock())

    def on_saved(self, request: Request) -> None:
        """End a request whose prefix was saved, or could not be written."""
        request.counters_after = self.context.counters
        self.release_sequence(request)
        self.scheduler.remove(request)
        self.stats.finished += 1
        request.emit([], [], self.clock(), "length")
        self.unfinished.pop(request, None)

    def on_recomputed(self, request: Request) -> None:
        """Continue to decode a restarted request, whose sequence holds the prompt and all output but the last token."""
        state = self._start_decoding(request, request.tokens[-1], len(request.tokens))
        closed_at = request.text.thinking.closed_at
        if closed_at is not None:
            self.context.set_sampling(request.samplers.after_thinking(len(request.tokens) - closed_at), state.seq)

    def _start_decoding(self, request: Request, token: int, n_output: int) -> DecodeState:
        depth = self.depth.add_sequence(request.params.temperature)
        state = request.start_decoding(token, n_output, self.context.n_ctx, depth)
        if self.head_check.head_failed:
            state.max_drafts = 0
        return state

    def emit(self, request: Request, tokens: list[int], now: float) -> None:
        """Emit the tokens of a round, and end the request if they are its last ones."""
        state = request.require_decode_state()
        logprobs: list[TokenLogprobs] = []
        if request.logprobs is not None:
            logprobs = [*request.forced_logprobs, *self.context.logprobs(state.seq)][: len(tokens)]
            request.forced_logprobs = []
        reason: FinishReason | None = None
        if state.ended and not request.must_close_thinking:
            request.counters_after = self.context.counters
            self.release_sequence(request, tokens)
            self.scheduler.remove(request)
            reason = "stop" if request.text.ended else "length"
            self.stats.finished += 1
        request.emit(tokens, logprobs, now, reason, (len(state.verified_drafts), state.n_accepted))
        if reason is not None:
            self.unfinished.pop(request, None)

    def run_guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None:
        """Make a call for some requests.

        If the call raises an error, the requests fail with it; if the call is cancelled, they end or restart.
        """
        try:
            call(requests, *arguments)
        except CancelledError:
            for request in requests:
                if not self.context.cancelled:  # the process is ending
                    self.abort(request, emit_piece=True)
                elif not request.ended and request.seq is not None:  # process_queues() ends those meant by cancel()
                    self.restart(request)
        except (NativeError, ClosedError) as error:
            for request in requests:
                self.fail(request, error)
        else:
            return
        self.restart_lost_requests()

    def restart_lost_requests(self) -> None:
        """Restart the requests whose sequences lost their contents when a copy from them failed."""
        with suppress(PymtpError):  # the context may be closed
            lost = self.prefix_cache.lost_sequences()
            for request in [request for request in self.scheduler.running if request.seq in lost]:
                self.restart(request)
