"""Reports of probabilities in llama.cpp's form: before the sampling as log-probabilities, or after it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.samplers import SAMPLERS
from pymtp.sampling import MAX_LOGPROBS, SamplingParams, TokenLogprobs
from pymtp.server.llama.types import NativeLogprob, NativeTopLogprob

LOWEST = -3.4028235e38  # llama.cpp's log-probability of a token that is impossible, because JSON has no infinity


def native_logprobs(logprobs: Iterable[TokenLogprobs], n_probs: int, model: Model) -> list[NativeLogprob]:
    """Return the log-probabilities of tokens, each with those of the n_probs most likely tokens."""

    def token(number: int, logprob: float) -> NativeTopLogprob:
        return {**_token(number, model), "logprob": max(logprob, LOWEST)}  # type: ignore[typeddict-item]

    return [
        {**token(one.token_id, one.logprob), "top_logprobs": [token(*top) for top in one.top[:n_probs]]}  # type: ignore[typeddict-item]
        for one in logprobs
    ]


def check_post_sampling(params: SamplingParams) -> None:
    """Raise InvalidRequestError for params whose probabilities after the sampling are not known.

    The engine reports the model's own probabilities of MAX_LOGPROBS tokens, before bias, penalties and grammars.
    """
    has_penalty = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0)
    changes = {
        "logit_bias": bool(params.logit_bias),
        "a penalty": has_penalty and params.penalty_last_n != 0,
        "a grammar or schema": params.gbnf is not None,
        "dry_multiplier": params.dry_multiplier > 0,
        "top_n_sigma": params.top_n_sigma > 0,
        "typical_p": params.typical_p < 1,
        "xtc_probability": params.xtc_probability > 0,
        "dynatemp_range": params.dynatemp_range > 0,
        "samplers": params.samplers not in (None, SAMPLERS),
    }
    for name, given in changes.items():
        if given:
            raise InvalidRequestError(f"post_sampling_probs cannot be combined with {name}", "post_sampling_probs")
    if params.temperature > 0 and not 0 < params.top_k <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"post_sampling_probs needs top_k from 1 to {MAX_LOGPROBS}, not {params.top_k}", "post_sampling_probs"
        )


def post_sampling_probs(
    logprobs: Iterable[TokenLogprobs], params: SamplingParams, n_probs: int, model: Model
) -> list[NativeLogprob]:
    """Return the probabilities with which tokens were sampled, each with those of the n_probs most likely tokens.

    logprobs: with MAX_LOGPROBS tokens each.
    """

    def token(number: int, prob: float) -> NativeTopLogprob:
        return {**_token(number, model), "prob": prob}  # type: ignore[typeddict-item]

    found: list[NativeLogprob] = []
    for one in logprobs:
        probs = sampled_probs(one, params)
        top = [token(number, prob) for number, prob in probs[:n_probs]]
        found.append({**token(one.token_id, dict(probs).get(one.token_id, 0.0)), "top_probs": top})  # type: ignore[typeddict-item]
    return found


def sampled_probs(one: TokenLogprobs, params: SamplingParams) -> list[tuple[int, float]]:
    """Return the tokens that could be sampled with their probabilities, the most likely first.

    Filters in SamplingParams' order: top-k, top-p, min-p, temperature.
    """
    if params.temperature == 0:
        return [(one.token_id, 1.0)]
    kept = list(one.top[: params.top_k])
    total = sum(math.exp(logprob) for _, logprob in kept)
    if params.top_p < 1:
        reached = 0.0
        for i, (_, logprob) in enumerate(kept):
            reached += math.exp(logprob) / total
            if reached >= params.top_p:
                kept = kept[: i + 1]
                break
    if params.min_p > 0:
        limit = kept[0][1] + math.log(params.min_p)
        kept = [(number, logprob) for number, logprob in kept if logprob >= limit]
    weights = [math.exp((logprob - kept[0][1]) / params.temperature) for _, logprob in kept]
    sampled = [(number, weight / sum(weights)) for (number, _), weight in zip(kept, weights, strict=True)]
    return [(number, prob) for number, prob in sampled if prob > 0]


def _token(number: int, model: Model) -> dict[str, object]:
    data = model.token_bytes(number)
    return {"id": number, "token": data.decode("utf-8", "ignore"), "bytes": list(data)}
