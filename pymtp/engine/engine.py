"""The engine: it runs many requests on one context. A step admits requests, prefills, and runs one round."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import cast

from pymtp.drafting.shared_texts import SharedTexts
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.context import EngineContext
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.engine.request import Request
from pymtp.engine.rounds import HeadCheck
from pymtp.engine.runner import RequestRunner
from pymtp.engine.scheduler import Scheduler
from pymtp.errors import CancelledError, NativeError, PymtpError
from pymtp.prefix_cache.cache import PrefixCache
from pymtp.prefix_cache.tree import Space
from pymtp.stats import Figures

# The outputs of earlier requests take at most this share of the host memory for cached prefixes, and this many bytes:
# 64 MiB are some two million tokens.
OUTPUTS_SHARE = 16
MAX_OUTPUT_BYTES = 64 * 2**20


class Engine:
    """Runs requests on a context, as many at the same time as the context has sequences.

    Any thread may call `submit`, `cancel` and `figures`. Only one thread at a time may call the other methods; see
    thread.EngineThread. The output of a request does not depend on other requests: its prompt is prefilled in chunks
    that end at multiples of n_ubatch, and neither rounds nor their depths change the sampled tokens.

    scheduler: decides which requests get a sequence.
    runner: runs the requests that have one.
    """

    def __init__(
        self,
        context: EngineContext,
        depth: BatchDepth,
        *,
        cache_prompt: bool = True,
        cache_bytes: int = 0,
        head_check: HeadCheck | None = None,
        images: ImageEncoder | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create an engine without requests.

        cache_prompt: whether prompts reuse the K and V and states of earlier requests. If False, only completions of
            the same prompt share them.
        cache_bytes: the limit of host memory for cached prefixes that are in no sequence, for the outputs of earlier
            requests, from which later ones draft, and for the rows of images.
        head_check: warns about a head that does not fit the model; None for a warning without file names.
        images: the encoder of the images of prompts, whose cache takes a part of cache_bytes; None without images.
        clock: returns the time in seconds.
        """
        self.depth, self.cache_prompt, self._clock = depth, cache_prompt, clock
        self.prefix_cache = PrefixCache(context, cache_bytes if cache_prompt else 0)
        self.scheduler = Scheduler(context.n_seq_max, context.n_ctx)
        kept = min(cache_bytes // OUTPUTS_SHARE, MAX_OUTPUT_BYTES) if cache_prompt and depth.uses_text else 0
        outputs = SharedTexts(kept)
        self.runner = RequestRunner(
            context, self.scheduler, self.prefix_cache, depth, head_check or HeadCheck(), clock, outputs, images
        )
        self._images = images
        self._other_seconds = 0.0  # the time of calls between steps
        self._numbers = count()
        self._new_requests: deque[Request] = deque()
        self._cancelled_requests: deque[Request] = deque()
        self._close_error: PymtpError | None = None
        self._late_cancel = False  # cancel() was called while requests that it must end were still in a queue
        # numbers of the running requests when moves were last planned: between these requests, gaps may stay
        self._uncompacted: list[int] = []

    def run_on(self, context: EngineContext) -> None:
        """Run requests on another view of the context from the next step on, such as one that changes its results.

        The prefix cache keeps the context that the engine was made with.
        """
        self.runner.context = context

    def submit(self, request: Request) -> None:
        """Add a request, which the next steps run. After close(), the request ends at once."""
        if request.cancel_count is None:
            request.cancel_count = self.runner.context.cancels
        request.number = request.turn = next(self._numbers)
        request.arrival_time = self._clock()
        self.runner.unfinished[request] = None
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
        unfinished = list(self.runner.unfinished)
        seqs = [request.seq for request in unfinished if not request.ended and request not in cancelled]
        n_waiting = seqs.count(None)
        prefixes, output_bytes = self.prefix_cache.figures(), self.runner.outputs.nbytes
        return self.runner.stats.figures(len(seqs) - n_waiting, n_waiting, prefixes, output_bytes)

    @property
    def idle(self) -> bool:
        """Return whether a step would do nothing: there are no requests, or all are paused streams."""
        return not self._has_events and self.scheduler.idle and (self._images is None or not self._images.busy)

    @property
    def closing(self) -> bool:
        """Return whether close() was called."""
        return self._close_error is not None

    @property
    def _has_events(self) -> object:
        """Return a true value if there are new or cancelled requests."""
        return self._new_requests or self._cancelled_requests or self._late_cancel or self.runner.context.cancelled

    def process_queues(self) -> None:
        """Take new requests from their queue, and end cancelled ones."""
        if not self._has_events:
            return
        context, scheduler = self.runner.context, self.scheduler
        # Must be read first: then the next lines take all these requests from the queue of new ones before they end
        n_cancelled = len(self._cancelled_requests)
        while self._new_requests:
            request = self._new_requests.popleft()
            if request.ended:  # fail_all() ended it
                continue
            scheduler.add(request)
            self._late_cancel |= cast(int, request.cancel_count) < context.cancels
        if self._late_cancel or context.cancelled:
            context.cancel(False)
            # Must be read after the previous line; otherwise a cancel() between the two would be missed
            cancel_count = context.cancels
            for request in list(scheduler):
                if cast(int, request.cancel_count) < cancel_count:
                    self.runner.abort(request, emit_piece=True)
            self._late_cancel = False
        for _ in range(n_cancelled):
            self.runner.abort(self._cancelled_requests.popleft())

    def step(self) -> bool:
        """Admit requests, prefill a share of their prompts, run a round and emit its tokens, and go on with an image.

        Returns False if there was nothing to do. The error of a request that fails is stored in the request.
        """
        self.process_queues()
        started = 0.0 if self._images is None else self._clock()
        scheduler, prefilled = self.scheduler, False
        decoding = scheduler.decoding()
        if len(decoding) < len(scheduler.running) or scheduler.has_waiting or scheduler.has_gap:
            self.hand_over()
            if scheduler.has_waiting:
                scheduler.requeue_preempted()
                self._admit()
            if scheduler.has_gap:
                self._close_gaps()
            decoding = scheduler.decoding()
            if len(decoding) < len(scheduler.running):
                prefilled = self.runner.prefill(scheduler.prefilling())
        self.runner.decode(decoding)
        worked = prefilled or bool(decoding)
        if self._images is not None and self._images.busy:
            self.hand_over()
            others = self._other_seconds + (self._clock() - started if worked else 0.0)
            self._other_seconds = 0.0
            if self._images.turn(others or None, lambda: self._has_events):
                self.runner.leave_room()
            return True
        return worked

    def count_call(self, seconds: float) -> None:
        """Count a call between two steps as other work, after which the encoder of images may go on as long."""
        self._other_seconds += seconds

    def hand_over(self) -> None:
        """Wake the readers of streams with unread pieces, before work that may take long."""
        for request in self.scheduler.running:
            request.hand_over()

    def close(self, error: PymtpError) -> None:
        """End with an error the streams, the requests that wait for a sequence, and all later ones. The others run."""
        self._close_error = error
        self._reject_new_requests(error)
        for request in list(self.scheduler):
            if request.seq is None or request.max_unread is not None:
                self.runner.abort(request, error)

    def fail_all(self, error: PymtpError) -> None:
        """End all requests with an error, after an error that no request caused. Cached prefixes stay, if possible."""
        self._reject_new_requests(error)
        self.scheduler.forget_all()
        self._uncompacted = []
        for request in list(self.runner.unfinished):
            request.seq = request.prefill_state = None
        try:
            self.prefix_cache.recover()
        except Exception:  # such as another MemoryError
            self.prefix_cache.clear()
        finally:
            for request in list(self.runner.unfinished):
                self.runner.abort(request, error)

    def _reject_new_requests(self, error: PymtpError) -> None:
        """End the requests that are still in the queue of new ones."""
        with suppress(IndexError):
            while True:
                self.runner.reject(self._new_requests.popleft(), error)

    # ── Admit ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        scheduler, runner = self.scheduler, self.runner
        while True:
            request = scheduler.next_waiting()
            if request is None:
                preempted = scheduler.choose_preempted()
                if preempted is None:
                    return
                if not preempted.waits_for_images:
                    preempted.preempted, preempted.turn = True, next(self._numbers)
                runner.restart(preempted)
                continue
            space = request.space if self.cache_prompt else Space(only=request.group or object())
            # from now on, later requests are prefilled after it, even if they arrived before it
            turn = request.turn if request.had_sequence else next(self._numbers)
            branch_points = request.branch_points
            if request.group is not None:
                branch_points = (*branch_points, len(request.prompt))
            state = self.prefix_cache.begin(
                request.prompt,
                scheduler.free,
                (request.priority, turn),
                branch_points,
                space,
                runner.max_reuse(request),
            )
            request.prefill_state = state
            scheduler.start(request, state.seq)
            request.turn = turn
            try:
                if not request.start_time:
                    request.start_time = self._clock()
                    request.counters_before = runner.context.counters
                runner.context.set_sampling(request.prefill_sampler, state.seq)
                if request.images.by_token:
                    runner.images.make_known(request, runner.context)
            except PymtpError as error:
                runner.fail(request, error)

    def _close_gaps(self) -> None:
        # moves were not worth their cost for these requests, which by now have even fewer tokens to gain by
        if self._running_numbers == self._uncompacted:
            return
        moves = self.scheduler.plan_moves(self.prefix_cache.reuse_value if self.cache_prompt else lambda seq: 0)
        for request, seq in moves:
            if request.seq is not None:  # None if an earlier failed move has restarted the request
                self.runner.run_guarded([request], self._move_sequence, request, seq)
        self._uncompacted = self._running_numbers

    @property
    def _running_numbers(self) -> list[int]:
        return [request.number for request in self.scheduler.running]

    def _move_sequence(self, request: Request, seq: int) -> None:
        context = self.runner.context
        assert request.seq is not None
        try:
            self.prefix_cache.spill(seq)
            context.clear(seq)
            context.move(request.seq, seq)
        except (CancelledError, NativeError):
            self.runner.restart_lost_requests()
            return  # the request stays in its sequence
        self.prefix_cache.on_move(request.seq, seq)
        self.scheduler.move(request, seq)
