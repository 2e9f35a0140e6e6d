"""The times of a completion under the names of llama.cpp's server, which adds them to the answers of all its APIs."""

from __future__ import annotations

from typing_extensions import NotRequired, TypedDict

from pymtp.engine.deltas import PromptProgress as EngineProgress
from pymtp.stats import Stats


class Timings(TypedDict):
    """The times and token counts of a completion, as llama.cpp's server names them. Times are in milliseconds.

    cache_n: prompt tokens from the prefix cache. prompt_n: prompt tokens that were computed.
    predicted_n: generated tokens. The rates leave out the first one, which the prefill computes.
    draft_n, draft_n_accepted: verified and accepted drafts; missing without drafts.
    draft_n_by_text, draft_n_accepted_by_text: those of them that came from text; missing without any.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]
    draft_n_by_text: NotRequired[int]
    draft_n_accepted_by_text: NotRequired[int]


class PromptProgress(TypedDict):
    """How much of a prompt is computed. total, cache, processed: numbers of tokens; processed includes cache."""

    total: int
    cache: int
    processed: int
    time_ms: float


def prompt_progress(progress: EngineProgress) -> PromptProgress:
    """Return the progress of a prompt, under the names of llama.cpp's server."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": round(1e3 * progress.seconds, 3),
    }


def timings(stats: Stats) -> Timings:
    """Return the times of a completion that has ended or that still runs."""
    prompt_n, steps = stats.prompt_tokens - stats.cached_tokens, max(0, stats.completion_tokens - 1)
    prompt_ms, predicted_ms = 1e3 * max(0.0, stats.prefill_seconds), 1e3 * max(0.0, stats.decode_seconds)
    found: Timings = {
        "cache_n": stats.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
        "prompt_per_second": 1e3 * prompt_n / prompt_ms if prompt_ms else 0.0,
        "predicted_n": stats.completion_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
        "predicted_per_second": 1e3 / predicted_ms * steps if predicted_ms else 0.0,
    }
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    if stats.drafted_by_text:
        found |= {"draft_n_by_text": stats.drafted_by_text, "draft_n_accepted_by_text": stats.accepted_by_text}
    return found
