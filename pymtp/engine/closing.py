"""The end of a thinking whose budget is out: tokens that are certain, and the one behind them, in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymtp.engine.context import EngineContext
from pymtp.engine.request import Request
from pymtp.errors import InvalidRequestError
from pymtp.sampling import Logits, TokenLogprobs

ROWS = 16  # of logits that are held at once: each may take a megabyte


def close_thinking(context: EngineContext, requests: Sequence[Request]) -> None:
    """Writes what closes the thinking of each, which the target reads as it reads a prompt, and the token behind it.

    Then each writer has its tokens in `out`, or its error, as after a round. Where the text ends within what closes the
    thinking, nothing is launched for it. With log-probabilities there is more than one launch. What is raised tells of
    no tokens.
    """
    plain: list[Request] = []
    reported: list[Request] = []
    for request in requests:
        if _write_forced(request):
            (plain if request.logprobs is None else reported).append(request)
    if plain:
        context.prefill_batch({request.at.seq: [request.at.token, *request.at.out] for request in plain})
    for request in plain:
        _write_next(context, request)
    for request in reported:
        writer = request.at
        chain = [writer.token, *writer.out]
        request.forced_logprobs = []
        for start in range(0, len(chain), ROWS):
            rows = context.prefill_logits(chain[start : start + ROWS], writer.seq)
            pairs = zip(rows, writer.out[start:], strict=False)
            request.forced_logprobs += [logprobs_of(row, token, request.params.logprobs or 0) for row, token in pairs]
        _write_next(context, request)


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
    except InvalidRequestError as error:  # of a grammar
        writer.error = error.with_traceback(None)
        if request.thinking.grammar_prefix:
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
