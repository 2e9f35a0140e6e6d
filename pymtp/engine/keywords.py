"""The fields of SamplingParams as keywords of calls: for type checkers and editors, and as they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from typing_extensions import TypedDict

from pymtp.samplers import SAMPLING_NAMES_ELSEWHERE, LogitsProcessor
from pymtp.sampling import SamplingParams
from pymtp.validation import refuse_unknown

# keywords of the calls themselves, which a wrong keyword may be close to; the second are those of chats alone
_OWN_KEYWORDS = ("priority",)
_CHAT_KEYWORDS = ("tools", "tool_choice", "chat_template_kwargs")
_NAMES = frozenset(field.name for field in fields(SamplingParams))


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingParams, with the same types; tests/llm/test_keywords.py compares them."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    logit_bias: Mapping[int, float]
    grammar: str | None
    json_schema: str | Mapping[str, Any] | type | None
    grammar_prefix: int
    logprobs: int | None
    n: int
    draft_tokens: int | None
    thinking_budget: int | None
    thinking_end: str
    stop_token_ids: Sequence[int]
    cache_prompt: bool
    cache_salt: str
    distinct_calls: bool
    strict_schema: bool
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    top_n_sigma: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    samplers: str | Sequence[str] | None
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    prompt_logprobs: int | None


def with_keywords(
    caller: str,
    params: Any,
    keywords: Mapping[str, Any],
    default: Callable[[], SamplingParams] = SamplingParams,
) -> Any:
    """Return the params of a call with the fields that the call gives as keywords.

    caller: the called method, for the message about an unknown keyword.
    params: SamplingParams, a list of them, or None for the default.

    Raises TypeError for a keyword that is no field of SamplingParams, and InvalidRequestError for values outside their
    range. Anything that is no SamplingParams is returned unchanged, to be refused with the prompts.
    """
    for name in _CHAT_KEYWORDS:
        if name in keywords:  # otherwise Python has taken it
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}: chat() and stream_chat() take it")
    also = (*_OWN_KEYWORDS, *_CHAT_KEYWORDS) if caller.endswith("chat") else _OWN_KEYWORDS
    refuse_unknown(f"{caller}()", keywords, _NAMES, SAMPLING_NAMES_ELSEWHERE, also=also)
    if params is None:
        params = default()
    if not keywords:
        return params
    if isinstance(params, SamplingParams):
        return replace(params, **keywords)
    if isinstance(params, Sequence) and not isinstance(params, (str, bytes)):
        return [replace(one, **keywords) if isinstance(one, SamplingParams) else one for one in params]
    return params
