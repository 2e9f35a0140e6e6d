"""The prefill of prompts: the tokens that are not in the prefix cache, in chunks, up to the first output token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymtp.engine.lifecycle import RequestLifecycle
from pymtp.engine.request import Request
from pymtp.errors import InvalidRequestError, NativeError, PymtpError


class Prefill:
    """Prefills the prompts of an engine.

    A chunk of a prompt ends at a multiple of n_ubatch tokens, or where the prefix cache wants a checkpoint.

    n_prefilled: prompt tokens that were prefilled, and not taken from the cache.
    """

    def __init__(self, lifecycle: RequestLifecycle) -> None:
        self._lifecycle, self._prefix_cache = lifecycle, lifecycle.prefix_cache
        self.n_prefilled = 0

    def step(self, requests: Sequence[Request]) -> bool:
        """Prefill at most n_ubatch tokens of these prompts, in their order. Return False if there was nothing to do.

        The limit keeps the pause between two rounds of decoding requests short. Recomputing the output of a restarted
        request, or writing a chunk of a prefix file, counts as n_ubatch tokens.
        """
        left = limit = self._lifecycle.context.n_ubatch
        worked = False
        for request in requests:
            while request.decode_state is None and request.seq is not None and self._can_prefill(request):
                whole_share = request.first_token_sampled or self._is_saving(request)
                cost = limit if whole_share else self._chunk_end(request) - request.n_prefilled
                if cost > left and left < limit:
                    return True
                left -= cost
                worked = True
                step = self._recompute_output if request.first_token_sampled else self._prefill_chunk
                self._lifecycle.run_guarded([request], step, requests)
                if left <= 0:
                    return True
        return worked

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
        """Load the cached tokens of a prompt. Return False if another request still prefills tokens that both share."""
        if not request.first_token_sampled:
            self._lifecycle.run_guarded([request], self._prepare_chunk)
        return request.prefill_state is not None and not request.prefill_state.waiting

    def _prepare_chunk(self, requests: Sequence[Request]) -> None:
        (request,) = requests
        state, saver = request.prefill_state, request.saver
        assert state is not None
        if saver is not None:
            state.max_reuse = saver.max_reuse
        try:
            ready = self._prefix_cache.prepare_chunk(state)
        except NativeError:  # for example, no memory for a copy
            self._prefix_cache.prefill_uncached(state)
            self._lifecycle.restart_lost_requests()
            ready = True
        if saver is not None and ready:
            saver.take_checkpoint(self._lifecycle.context, state.seq, state.n_computed)
        if not request.tokens:
            request.cached_tokens = state.n_cached

    def _chunk_end(self, request: Request) -> int:
        assert request.prefill_state is not None
        n_ubatch = self._lifecycle.context.n_ubatch
        ubatch_end = request.n_prefilled - request.n_prefilled % n_ubatch + n_ubatch
        end = min(request.prefill_state.next_checkpoint, ubatch_end)
        return end if request.saver is None else min(end, request.saver.next_stop(request.n_prefilled))

    def _is_saving(self, request: Request) -> bool:
        """Return whether the prompt is prefilled, and must be written to a prefix file now."""
        return request.saver is not None and request.prefill_state is not None and not request.prefill_state.unfinished

    def _prefill_chunk(self, requests: Sequence[Request], others: Iterable[Request]) -> None:
        """Prefill the next chunk of a prompt, if any is left. After the last one, sample a token, or save K and V.

        Other requests that wait for this chunk copy the sequence before anything else changes it.
        """
        (request,) = requests
        seq, state = request.seq, request.prefill_state
        assert seq is not None
        assert state is not None
        if state.unfinished:
            end = self._chunk_end(request)
            self._lifecycle.context.prefill_batch({seq: request.prompt[state.n_computed : end]})
            self.n_prefilled += end - state.n_computed
            self._prefix_cache.on_prefill(state, end)
            if request.saver is not None:
                request.saver.take_checkpoint(self._lifecycle.context, seq, end)
            for other in others:
                if other.prefill_state is not None and other.prefill_state.waiting and other is not request:
                    self._lifecycle.run_guarded([other], self._prepare_chunk)
            if request.prefill_state is not state:  # a failed copy emptied the sequence: the request restarts
                return
        if not state.unfinished and request.saver is None:
            self._sample_first_token(requests)
        if request.prefill_state is state and self._is_saving(request):
            self._save_part(request)

    def _save_part(self, request: Request) -> None:
        """Write the next chunk of a request's K and V to its prefix file. After the last chunk, end the request."""
        state, saver = request.prefill_state, request.saver
        assert state is not None
        assert saver is not None
        self._prefix_cache.skip_logits(state)
        if saver.write_cells(self._lifecycle.context, state.seq):
            self._lifecycle.on_saved(request)

    def _sample_first_token(self, requests: Sequence[Request]) -> None:
        (request,) = requests
        state = request.prefill_state
        assert state is not None
        forced = () if request.tokens else request.text.thinking.forced  # not empty with a thinking budget of 0
        try:
            if forced and request.logprobs is not None:
                self._lifecycle.context.set_sampling(request.samplers.always(forced[0]), state.seq)
            token = self._lifecycle.context.first_token(state.seq)
        except InvalidRequestError as error:  # the grammar allows no token
            self._lifecycle.fail(request, error)
            return
        self._prefix_cache.on_first_token(state)
        request.first_token_sampled = True
        if not request.tokens:  # else the request was restarted: the next steps compute its output again
            self._lifecycle.on_first_token(request, forced[0] if forced else token)

    def _recompute_output(self, requests: Sequence[Request], _others: Iterable[Request]) -> None:
        """Compute the next output tokens of a restarted request again.

        The tokens are verified, as rounds did it, and not prefilled, because only the same kernels give the same bits.
        """
        (request,) = requests
        tokens, start, seq = request.tokens, request.n_recomputed, request.seq
        assert seq is not None
        chain = tokens[start : min(start + 1 + self._lifecycle.context.draft_tokens, len(tokens) - 1)]
        if chain:
            result = self._lifecycle.context.verify_chains({seq: chain})[seq]
            if isinstance(result, PymtpError):
                self._lifecycle.fail(request, result)
                return
            request.n_recomputed += len(chain)
        if request.n_recomputed == len(tokens) - 1:
            self._lifecycle.on_recomputed(request)
