"""How an answer ended, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pymtp.engine.request import Completion
from pymtp.engine.text import spellings
from pymtp.model.model import Model
from pymtp.openai.generate_request import Ask, EndReason


class Ended(NamedTuple):
    """
    stop: the stop string that came.
    context_full: whether the context has no place for more, though more tokens might have come.
    prompt, cached, written, thought: tokens of the prompt, those of it that were held already, those that were
        generated, and those of them that are thinking.
    """

    reason: EndReason
    stop: str | None
    context_full: bool
    prompt: int
    cached: int
    written: int
    thought: int

    @property
    def is_whole(self) -> bool:
        """Whether it ended by itself."""
        return self.reason in ("stop", "tool_calls")


def ended(ask: Ask, done: Completion, reason: EndReason, model: Model) -> Ended:
    """How a text ended."""
    data = b"".join(model.token_bytes(token) for token in done.token_ids)
    written = len(done.token_ids)
    limit = ask.params.max_tokens
    return Ended(
        reason=reason,
        stop=stop_found(data, done.text, ask.params.stop) if reason == "stop" else None,
        context_full=reason == "length" and (limit is None or written < limit),
        prompt=len(done.prompt_token_ids),
        cached=done.stats.cached_tokens,
        written=written,
        thought=done.stats.thinking_tokens,
    )


def stop_found(data: bytes, text: str, stops: str | Sequence[str]) -> str | None:
    """The stop string that ended a text: it follows where the text was cut."""
    behind = data.decode(errors="replace")[len(text) :]
    return min((stop for stop in stops if behind.startswith(spellings(stop))), key=len, default=None)
