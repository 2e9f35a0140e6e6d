"""The end of a thinking block whose budget is used up: its closing tokens are forced, in one prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymtp.engine.context import EngineContext
from pymtp.engine.logprobs import logprobs_of
from pymtp.engine.request import Request
from pymtp.errors import InvalidRequestError, NativeError
from pymtp.sampling import TokenLogprobs

MAX_LOGITS_ROWS = 16  # largest number of rows of logits in memory at a time: a row may take a megabyte


def closing_batches(requests: Sequence[Request]) -> list[list[Request]]:
    """Return requests whose thinking must be closed, in batches.

    All requests without log-probabilities share a batch; each request with log-probabilities has its own.
    """
    shared = [request for request in requests if request.logprobs is None]
    return [*([shared] if shared else []), *([request] for request in requests if request.logprobs is not None)]


def close_thinking(context: EngineContext, requests: Sequence[Request]) -> None:
    """Prefill the tokens that close the thinking of each request, and sample the next token.

    Afterwards each decode state has its new tokens, or its error, as after a round. Nothing is prefilled for a request
    whose text ends within the closing tokens. If this raises an error, no request has new tokens.
    """
    continued = [request for request in requests if _add_closing_tokens(request)]
    states = {request: request.require_decode_state() for request in continued}
    chains = {state.seq: [state.token, *state.new_tokens] for state in states.values()}
    if chains and continued[0].logprobs is None:
        context.prefill_batch(chains)
    for request, state in states.items():
        if request.logprobs is not None:
            request.forced_logprobs = list(_prefill_with_logprobs(context, request, chains[state.seq]))
        _sample_next(context, request)


def _prefill_with_logprobs(context: EngineContext, request: Request, chain: list[int]) -> Iterator[TokenLogprobs]:
    state = request.require_decode_state()
    for start in range(0, len(chain), MAX_LOGITS_ROWS):
        rows = context.prefill_logits(chain[start : start + MAX_LOGITS_ROWS], state.seq)
        for row, token in zip(rows, state.new_tokens[start:], strict=False):
            yield logprobs_of(row, token, request.params.logprobs or 0)


def _add_closing_tokens(request: Request) -> bool:
    """Add the closing tokens to the output. Return False if the output ends within them."""
    state, thinking = request.require_decode_state(), request.text.thinking
    state.new_tokens, state.verified_drafts = [], ()
    state.n_by_head = state.n_accepted = state.n_accepted_by_head = 0
    for token in list(thinking.forced)[: state.tokens_left]:
        state.new_tokens.append(token)
        state.tokens_left -= 1
        request.text.add_token(token)
        if request.text.ended:
            break
    state.ended = request.text.ended or state.tokens_left < 1
    return not state.ended


def _sample_next(context: EngineContext, request: Request) -> None:
    state = request.require_decode_state()
    state.n_past += 1 + len(state.new_tokens)
    try:
        context.set_sampling(request.sampler_after_thinking(0), state.seq)
        state.token = context.first_token(state.seq)
    except (InvalidRequestError, NativeError) as error:  # the grammar is refused or allows no token; logits not finite
        state.error = error.with_traceback(None)
        refused = isinstance(error, InvalidRequestError) and error.param is None  # not by a logits processor
        if refused and request.thinking.grammar_prefix:
            state.error = InvalidRequestError(
                f"thinking_budget={request.thinking.budget} closed the thinking where the grammar does not allow "
                "</think>: let the grammar allow it anywhere, or give a grammar of the answer alone"
            )
        return
    state.new_tokens.append(state.token)
    state.tokens_left -= 1
    state.ended = request.text.add_token(state.token) or state.tokens_left < 1 or state.n_past >= context.n_ctx
    state.draft_stats.rounds += 1
    state.draft_stats.depths.append(0)
