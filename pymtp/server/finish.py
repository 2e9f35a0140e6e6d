"""How a completion ended: its finish reason, its stop string and its token counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pymtp.engine.request import Completion
from pymtp.engine.text import stop_spellings
from pymtp.model.model import Model
from pymtp.openai.generate_request import GenerateRequest, OutputFinishReason


class FinishInfo(NamedTuple):
    """The finish reason of a completion, and its token counts.

    reason: the finish reason.
    stop_string: the stop string that ended the completion; None if no stop string did.
    context_full: whether the completion ended because the context was full.
    prompt_tokens: the number of tokens of the prompt.
    cached_tokens: the number of prompt tokens that were taken from the prefix cache.
    completion_tokens: the number of tokens of the completion, thinking included.
    thinking_tokens: the number of thinking tokens of the completion.
    """

    reason: OutputFinishReason
    stop_string: str | None
    context_full: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    thinking_tokens: int

    @property
    def is_complete(self) -> bool:
        """Return whether the completion ended by itself, and not at a length limit."""
        return self.reason in ("stop", "tool_calls")


def finish_info(request: GenerateRequest, done: Completion, reason: OutputFinishReason, model: Model) -> FinishInfo:
    """Return the FinishInfo of a finished completion."""
    data = b"".join(model.token_bytes(token) for token in done.token_ids)
    written = len(done.token_ids)
    limit = request.params.max_tokens
    return FinishInfo(
        reason=reason,
        stop_string=find_stop_string(data, done.text, request.params.stop) if reason == "stop" else None,
        context_full=reason == "length" and (limit is None or written < limit),
        prompt_tokens=len(done.prompt_token_ids),
        cached_tokens=done.stats.cached_tokens,
        completion_tokens=written,
        thinking_tokens=done.stats.thinking_tokens,
    )


def find_stop_string(data: bytes, text: str, stops: str | Sequence[str]) -> str | None:
    """Return the stop string that ended a completion, or None.

    data: the bytes of all generated tokens, which include the stop string.
    text: the text of the completion, which ends before the stop string.
    stops: the stop strings of the request.
    """
    rest = data.decode(errors="replace")[len(text) :]
    return min((stop for stop in stops if rest.startswith(stop_spellings(stop))), key=len, default=None)
