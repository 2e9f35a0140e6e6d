"""Messages, and the length of the prefix that two prompts share."""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.chat import Message


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, reasoning: str = "One could sort it first.") -> Message:
    return {"role": "assistant", "reasoning_content": reasoning, "content": content}


def shared_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
