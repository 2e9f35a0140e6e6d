"""The end of a completion: its reason, its stop string and its token counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pymtp.engine.request import Completion
from pymtp.engine.text import stop_spellings
from pymtp.model.model import Model
from pymtp.openai.generate_request import GenerateRequest, OutputFinishReason


class FinishInfo(NamedTuple):
    """The finish reason of a completion, and its token counts.

    stop_string: the stop string that ended the text, if one did.
    context_full: the context was full before max_tokens was reached.
    cached_tokens: tokens of the prompt that came from the prefix cache.
    thinking_tokens: tokens of the completion that are thinking.
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
        """Tell whether the completion ended by itself, and not at a limit."""
        return self.reason in ("stop", "tool_calls")


def finish_info(request: GenerateRequest, done: Completion, reason: OutputFinishReason, model: Model) -> FinishInfo:
    """Build the FinishInfo of a completion."""
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
    """Return the stop string that ended a text: its spelling follows the end of the text in `data`."""
    rest = data.decode(errors="replace")[len(text) :]
    return min((stop for stop in stops if rest.startswith(stop_spellings(stop))), key=len, default=None)
