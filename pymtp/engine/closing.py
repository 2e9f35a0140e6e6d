"""The end of a thinking whose budget is out: tokens that are certain, and the one behind them, in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pymtp.engine.context import EngineContext
from pymtp.engine.request import Request
from pymtp.errors import InvalidRequestError, NativeError
from pymtp.sampling import Logits, TokenLogprobs

ROWS = 16  # of logits that are held at once: each may take a megabyte


def launches(requests: Iterable[Request]) -> list[list[Request]]:
    """Requests whose thinking is to be closed, by the launch that they share: none with log-probabilities do."""
    each = [request for request in requests if request.closes]
    together = [request for request in each if request.logprobs is None]
    return [*([together] if together else []), *([request] for request in each if request.logprobs is not None)]


def close_thinking(context: EngineContext, requests: Sequence[Request]) -> None:
    """Writes what closes the thinking of each, which the target reads as it reads a prompt, and the token behind it.

    Then each writer has its tokens in `out`, or its error, as after a round. Where the text ends within what closes the
    thinking, nothing is launched for it. What is raised tells of no tokens.
    """
    going_on = [request for request in requests if _write_forced(request)]
    chains = {request.at.seq: [request.at.token, *request.at.out] for request in going_on}
    if chains and going_on[0].logprobs is None:
        context.prefill_batch(chains)
    for request in going_on:
        if request.logprobs is not None:
            request.forced_logprobs = list(_read_with_logprobs(context, request, chains[request.at.seq]))
        _write_next(context, request)


def _read_with_logprobs(context: EngineContext, request: Request, chain: list[int]) -> Iterator[TokenLogprobs]:
    for start in range(0, len(chain), ROWS):
        rows = context.prefill_logits(chain[start : start + ROWS], request.at.seq)
        for row, token in zip(rows, request.at.out[start:], strict=False):
            yield logprobs_of(row, token, request.params.logprobs or 0)


def _write_forced(request: Request) -> bool:
    """Whether more may come behind what closes the thinking."""
    writer, thinking = request.at, request.text.thinking
    writer.out, writer.drafts, writer.accepted = [], (), 0
    for token in list(thinking.forced)[: writer.left]:
        writer.out.append(token)
        writer.left -= 1
        request.text.ends(token)
        if request.text.ended:
            break
    writer.ended = request.text.ended or writer.left < 1
    return not writer.ended


def _write_next(context: EngineContext, request: Request) -> None:
    writer = request.at
    context.set_sampling(request.samplers.behind(0), writer.seq)
    writer.n_past += 1 + len(writer.out)
    try:
        writer.token = context.first_token(writer.seq)
    except (InvalidRequestError, NativeError) as error:  # of a grammar, or logits that are no numbers
        writer.error = error.with_traceback(None)
        if isinstance(error, InvalidRequestError) and request.thinking.grammar_prefix:
            writer.error = InvalidRequestError(
                f"thinking_budget={request.thinking.budget} closed the thinking where the grammar does not allow "
                "</think>: let the grammar allow it anywhere, or give a grammar of the answer alone"
            )
        return
    writer.out.append(writer.token)
    writer.left -= 1
    writer.ended = request.text.ends(writer.token) or writer.left < 1 or writer.n_past >= context.n_ctx
    writer.tally.rounds += 1
    writer.tally.depths.append(0)


def logprobs_of(row: Logits, token: int, n: int) -> TokenLogprobs:
    """As the native side reports them, for a token that was not sampled there."""
    most = row.max()
    each = row - (most + np.log(np.exp(row.astype(np.float64) - most).sum()))
    top = np.lexsort((np.arange(len(row)), -row))[:n]  # equals by their ids
    return TokenLogprobs(token, float(each[token]), tuple((int(i), float(each[i])) for i in top))
