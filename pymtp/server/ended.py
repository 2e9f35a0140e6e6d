"""How an answer ended, and what it cost."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pymtp.asks import Ask, EndReason
from pymtp.engine.request import Completion
from pymtp.model import Model
from pymtp.text import spellings


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


def ended(ask: Ask, done: Completion, reason: EndReason, thoughts: Sequence[tuple[int, int]], model: Model) -> Ended:
    """thoughts: where the text is thinking, in characters: from, to."""
    each = [model.token_bytes(token) for token in done.token_ids]
    written = len(done.token_ids)
    limit = ask.params.max_tokens
    return Ended(
        reason=reason,
        stop=stop_found(b"".join(each), done.text, ask.params.stop) if reason == "stop" else None,
        context_full=reason == "length" and (limit is None or written < limit),
        prompt=len(done.prompt_token_ids),
        cached=done.stats.cached_tokens,
        written=written,
        thought=tokens_within(each, thoughts),
    )


def stop_found(data: bytes, text: str, stops: str | Sequence[str]) -> str | None:
    """The stop string that ended a text: it follows where the text was cut."""
    behind = data.decode(errors="replace")[len(text) :]
    return min((stop for stop in stops if behind.startswith(spellings(stop))), key=len, default=None)


def tokens_within(each: Iterable[bytes], places: Sequence[tuple[int, int]]) -> int:
    """How many tokens begin within places of their text. each: the tokens' bytes. places: rising, in characters."""
    if not places:
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n = at = i = 0
    for data in each:
        while i < len(places) and places[i][1] <= at:
            i += 1
        if i == len(places):
            break
        n += places[i][0] <= at
        at += len(decoder.decode(data))
    return n
