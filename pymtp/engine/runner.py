"""The requests that have a sequence: their prompts are prefilled, they decode in rounds, and they end or restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from pymtp.drafting.depth import MAX_AUTO
from pymtp.drafting.shared_texts import SharedTexts
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.closing import close_thinking, closing_batches
from pymtp.engine.context import EngineContext
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.engine.request import FinishReason, Request
from pymtp.engine.request_images import RequestImages
from pymtp.engine.rounds import DecodeState, HeadCheck, run_round
from pymtp.engine.scheduler import Scheduler
from pymtp.errors import CancelledError, ClosedError, InvalidRequestError, NativeError, PymtpError
from pymtp.prefix_cache.cache import PrefixCache
from pymtp.sampling import Sampler, SamplingParams, TokenLogprobs
from pymtp.stats import EngineStats

_PLAIN = Sampler(SamplingParams())  # replaces a sampler with a logits processor


class RequestRunner:
    """Runs the requests of an engine: it prefills prompts, runs rounds, and ends, fails or restarts requests.

    A chunk of a prompt ends at a multiple of n_ubatch tokens, or where the prefix cache wants a checkpoint.

    context: the context that runs the requests.
    outputs: the outputs of earlier requests, from which later ones draft.
    images: the images of the requests.
    unfinished: the requests that were submitted and have not ended.
    stats: the counters of the engine.
    """

    def __init__(
        self,
        context: EngineContext,
        scheduler: Scheduler,
        prefix_cache: PrefixCache,
        depth: BatchDepth,
        head_check: HeadCheck,
        clock: Callable[[], float],
        outputs: SharedTexts,
        images: ImageEncoder | None,
    ) -> None:
        self.context, self._scheduler, self._prefix_cache = context, scheduler, prefix_cache
        self._depth, self._head_check, self._clock = depth, head_check, clock
        self.outputs, self.images = outputs, RequestImages(images)
        self.unfinished: dict[Request, None] = {}
        self.stats = EngineStats()

    # ── Prefill ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prefill(self, requests: Sequence[Request]) -> bool:
        """Prefill at most n_ubatch tokens of these prompts, in their order. Return False if there was nothing to do.

        The limit keeps the pause between two rounds of decoding requests short. Recomputing the output of a restarted
        request, or writing a chunk of a prefix file, counts as n_ubatch tokens.
        """
        left = limit = self.context.n_ubatch
        worked = False
        for request in requests:
            while request.decode_state is None and request.seq is not None and self._can_prefill(request):
                whole_share = request.first_token_sampled or _is_saving(request)
                cost = limit if whole_share else self._chunk_end(request) - request.n_prefilled
                if cost > left and left < limit:
                    return True
                left -= cost
                worked = True
                if request.first_token_sampled:
                    self.run_guarded([request], self._recompute_output, request)
                else:
                    self.run_guarded([request], self._prefill_chunk, request, requests)
                if left <= 0:
                    return True
        return worked

    def leave_room(self) -> None:
        """Leave host memory to the outputs and the images that are kept for later requests."""
        encoder = self.images.encoder
        self._prefix_cache.leave_room(self.outputs.nbytes + (0 if encoder is None else encoder.nbytes))

    def max_reuse(self, request: Request) -> int | None:
        """Return how many prompt tokens a request may take from the cache; None for no limit.

        Also adds cached states to the saver of a request whose prefix is saved.
        """
        saver = request.saver
        if saver is None:
            return None
        saver.add_states(self._prefix_cache.checkpoint_states(request.prompt, saver.checkpoints))
        return saver.max_reuse

    def _can_prefill(self, request: Request) -> bool:
        """Load the cached tokens of a prompt. Return False if it waits for tokens that another prefills, or images."""
        if not request.first_token_sampled:
            self.run_guarded([request], self._prepare_chunk, request)
        state = request.prefill_state
        if state is None or state.waiting:
            return False
        if not request.images.by_token:
            return True
        chunk = request.prompt[state.n_computed : self._chunk_end(request)] if state.unfinished else ()
        try:
            return self.images.ask(request, state.n_computed, chunk)
        except PymtpError as error:
            self.fail(request, error)
            return False

    def _prepare_chunk(self, request: Request) -> None:
        state, saver = request.prefill_state, request.saver
        assert state is not None
        if saver is not None:
            state.max_reuse = saver.max_reuse
        try:
            ready = self._prefix_cache.prepare_chunk(state)
        except NativeError:  # for example, no memory for a copy
            self._prefix_cache.prefill_uncached(state)
            self.restart_lost_requests()
            ready = True
        if saver is not None and ready:
            saver.take_checkpoint(self.context, state.seq, state.n_computed)
        if not request.tokens:
            request.cached_tokens = state.n_cached

    def _chunk_end(self, request: Request) -> int:
        assert request.prefill_state is not None
        n_ubatch = self.context.n_ubatch
        ubatch_end = request.n_prefilled - request.n_prefilled % n_ubatch + n_ubatch
        end = min(request.prefill_state.next_checkpoint, ubatch_end)
        return end if request.saver is None else min(end, request.saver.next_stop(request.n_prefilled))

    def _prefill_chunk(self, request: Request, others: Iterable[Request]) -> None:
        """Prefill the next chunk of a prompt, if any is left. After the last one, sample a token, or save K and V.

        Other requests that wait for this chunk copy the sequence before anything else changes it.
        """
        seq, state, saver = request.seq, request.prefill_state, request.saver
        assert seq is not None
        assert state is not None
        if state.unfinished:
            end = self._chunk_end(request)
            tokens = request.prompt[state.n_computed : end]
            self.context.prefill_batch({seq: tokens}, self.images.rows(request, tokens) if request.image_jobs else {})
            self.stats.prefilled += end - state.n_computed
            self.stats.prefills += 1
            self._prefix_cache.on_prefill(state, end)
            if saver is not None:
                saver.take_checkpoint(self.context, seq, end)
            for other in others:
                if other.prefill_state is not None and other.prefill_state.waiting and other is not request:
                    self.run_guarded([other], self._prepare_chunk, other)
            if request.prefill_state is not state:  # a failed copy emptied the sequence: the request restarts
                return
        if state.unfinished:
            return
        if request.image_jobs:
            self.images.leave(request)
        if saver is None:
            self._sample_first_token(request)
            return
        self._prefix_cache.skip_logits(state)
        if saver.write_cells(self.context, state.seq):
            self._end_saving(request)

    def _end_saving(self, request: Request) -> None:
        """End a request whose prefix was saved, or could not be written."""
        request.counters_after = self.context.counters
        self._release_sequence(request)
        self._scheduler.remove(request)
        self.stats.finished += 1
        request.emit([], [], self._clock(), "length")
        self.unfinished.pop(request, None)

    def _sample_first_token(self, request: Request) -> None:
        state = request.prefill_state
        assert state is not None
        forced = () if request.tokens else request.text.thinking.forced  # not empty with a thinking budget of 0
        try:
            if forced and request.logprobs is not None:
                self.context.set_sampling(request.sampler_of(forced[0]), state.seq)
            token = self.context.first_token(state.seq)
        except InvalidRequestError as error:  # the grammar allows no token
            self.fail(request, error)
            return
        self._prefix_cache.on_first_token(state)
        request.first_token_sampled = True
        if request.tokens:  # the request was restarted: the next steps compute its output again
            return
        token = forced[0] if forced else token
        decoding = self._start_decoding(request, token, 1)
        decoding.ended |= request.text.add_token(token)
        self.stats.tokens += 1
        self._emit(request, decoding, [token], self._clock())

    def _recompute_output(self, request: Request) -> None:
        """Compute the next output tokens of a restarted request again; after the last ones, continue to decode.

        The tokens are verified, as rounds did it, and not prefilled, because only the same kernels give the same bits.
        """
        tokens, start, seq = request.tokens, request.n_recomputed, request.seq
        assert seq is not None
        # not longer: each number of rows has a graph of its own, and only these are usual
        rows = 1 + max(self.context.draft_tokens, min(MAX_AUTO, self.context.max_drafts))
        chain = tokens[start : min(start + rows, len(tokens) - 1)]
        if chain:
            result = self.context.verify_chains({seq: chain})[seq]
            if isinstance(result, PymtpError):
                self.fail(request, result)
                return
            request.n_recomputed += len(chain)
        if request.n_recomputed == len(tokens) - 1:
            self._start_decoding(request, tokens[-1], len(tokens))
            closed_at = request.text.thinking.closed_at
            if closed_at is not None:
                self.context.set_sampling(request.sampler_after_thinking(len(tokens) - closed_at), seq)

    def _start_decoding(self, request: Request, token: int, n_output: int) -> DecodeState:
        depth = self._depth.add_sequence(request.params.temperature)
        text = None
        if request.params.draft_tokens != 0:
            earlier = None if request.space.only is not None else self.outputs.of(_key(request))
            text = self._depth.add_text(earlier, [*request.prompt, *request.tokens])
        state = request.start_decoding(token, n_output, self.context.n_ctx, depth, text)
        if self._head_check.head_failed:
            state.max_drafts = 0
        return state

    # ── Rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def decode(self, requests: Sequence[Request]) -> None:
        """Run one round of decoding requests. Those whose thinking must be closed get its closing tokens instead."""
        closing = [request for request in requests if request.must_close_thinking]
        if closing:
            for batch in closing_batches(closing):
                self.run_guarded(batch, self._close_thinking, batch)
        # a failed prefill or batch may have restarted some of these requests
        in_round = [request for request in requests if request.decode_state is not None and request not in closing]
        if in_round:
            self.run_guarded(in_round, self._run_round, in_round)

    def _run_round(self, requests: Sequence[Request]) -> None:
        states = [request.decode_state for request in requests if request.decode_state is not None]
        rows = run_round(self.context, states, self._depth, self._clock)
        now = self._clock()
        n_tokens = sum(len(state.new_tokens) for state in states if state.error is None)
        self.stats.add_round(len(states), rows, n_tokens, now)  # before a waiter wakes and looks at the figures
        for request, state in zip(requests, states, strict=True):
            if state.error is not None:
                self.fail(request, state.error)
                continue
            self.stats.drafts[state.n_by_head, state.n_accepted_by_head] += 1
            self.stats.rounds_with_drafts += bool(state.verified_drafts)
            self.stats.drafted_by_text += len(state.verified_drafts) - state.n_by_head
            self.stats.accepted_by_text += state.n_accepted - state.n_accepted_by_head
            self._head_check.add(len(state.made_drafts), state.n_correct, state.head_failed, request.params.temperature)
            self._emit(request, state, state.new_tokens, now)

    def _close_thinking(self, requests: Sequence[Request]) -> None:
        # A failure of another batch may have restarted some of these requests
        requests = [request for request in requests if request.must_close_thinking]
        close_thinking(self.context, requests)
        now = self._clock()
        for request in requests:
            state = request.require_decode_state()
            if state.error is not None:
                self.fail(request, state.error)
                continue
            self.stats.tokens += len(state.new_tokens)
            self._emit(request, state, state.new_tokens, now)

    def _emit(self, request: Request, state: DecodeState, tokens: list[int], now: float) -> None:
        """Emit the tokens of a round, and end the request if they are its last ones."""
        logprobs: list[TokenLogprobs] = []
        if request.logprobs is not None:
            logprobs = [*request.forced_logprobs, *self.context.logprobs(state.seq)][: len(tokens)]
            request.forced_logprobs = []
        reason: FinishReason | None = None
        if state.ended and not request.must_close_thinking:
            request.counters_after = self.context.counters
            self._release_sequence(request, tokens)
            self._scheduler.remove(request)
            reason = "stop" if request.text.ended else "length"
            self.stats.finished += 1
            if state.text is not None and request.space.only is None:
                with suppress(NativeError):  # without memory, later requests have fewer drafts
                    self.outputs.add(_key(request), [*request.tokens, *tokens])
                self.leave_room()
            state.text = None  # a stream may keep the request for long
        elif state.text is not None:
            state.text.generate(tokens)
        n_verified, n_accepted = len(state.verified_drafts), state.n_accepted
        by_text = n_verified - state.n_by_head, n_accepted - state.n_accepted_by_head
        request.emit(tokens, logprobs, now, reason, (n_verified, n_accepted, *by_text))
        if reason is not None:
            self.unfinished.pop(request, None)

    # ── Ends and restarts ───────────────────────────────────────────────────────────────────────────────────────────

    def abort(self, request: Request, error: PymtpError | None = None, *, emit_piece: bool = False) -> None:
        """End a request as "cancelled", with an error if one is given.

        emit_piece: whether the reader of a stream gets a last piece, without tokens.
        """
        if request.ended:
            return
        with suppress(PymtpError):  # the context may be closed
            request.counters_after = self.context.counters
        self._release_sequence(request, reusable=error is None)
        self.images.leave(request)
        self._scheduler.remove(request)
        request.decode_state = None
        self._abort(request, error, emit_piece=emit_piece)

    def reject(self, request: Request, error: PymtpError) -> None:
        """End a request that the scheduler does not have yet with an error. Any thread may call this."""
        self._abort(request, error)

    def _abort(self, request: Request, error: PymtpError | None, *, emit_piece: bool = False) -> None:
        if error is None or isinstance(error, ClosedError):  # counted before the waiter looks at the figures
            self.stats.cancelled += 1
        else:
            self.stats.failed += 1
        request.abort(self._clock(), error, emit_piece=emit_piece)
        self.unfinished.pop(request, None)

    def fail(self, request: Request, error: PymtpError) -> None:
        """End a request with an error."""
        self.abort(request, error.with_traceback(None))  # without the traceback, whose frames refer to the context

    def restart(self, request: Request) -> None:
        """Release the sequence of a request, and queue it again. Its output stays, and is computed again."""
        self._release_sequence(request)
        if not request.waits_for_images:
            self.images.leave(request)
        self._scheduler.remove(request)
        request.restart()
        self._scheduler.add(request)

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
            if state.started and not (reusable and self.context.tokens_held(state.seq) == n_past):
                generated = None
                self.context.clear(state.seq)
            if request.params.logits_processor is not None:
                # the context would keep the function, which may refer to the LLM, and so the LLM would never be freed
                self.context.set_sampling(_PLAIN, state.seq)
        self._prefix_cache.release(state, generated)

    def run_guarded(self, requests: Sequence[Request], call: Callable[..., None], *arguments: object) -> None:
        """Make a call for some requests.

        If the call raises an error, the requests fail with it; if the call is cancelled, they end or restart.
        """
        try:
            call(*arguments)
        except CancelledError:
            for request in requests:
                if not self.context.cancelled:  # the process is ending
                    self.abort(request, emit_piece=True)
                elif not request.ended and request.seq is not None:  # process_queues() ends those meant by cancel()
                    self.restart(request)
        except PymtpError as error:
            for request in requests:
                self.fail(request, error)
        else:
            return
        self.restart_lost_requests()

    def restart_lost_requests(self) -> None:
        """Restart the requests whose sequences lost their contents when a copy from them failed."""
        with suppress(PymtpError):  # the context may be closed
            lost = self._prefix_cache.lost_sequences()
            for request in [request for request in self._scheduler.running if request.seq in lost]:
                self.restart(request)


def _key(request: Request) -> str:
    """Return the name under which outputs are kept for later requests: those of other keys and salts see nothing."""
    return f"{request.space.owner} {request.space.salt}"


def _is_saving(request: Request) -> bool:
    """Return whether the prompt is prefilled, and must be written to a prefix file now."""
    return request.saver is not None and request.prefill_state is not None and not request.prefill_state.unfinished
