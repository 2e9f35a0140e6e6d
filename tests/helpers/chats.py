"""Messages, and where prompts part."""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.chat import Message


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def answered(content: str, thought: str = "One could sort it first.") -> Message:
    return {"role": "assistant", "reasoning_content": thought, "content": content}


def parting(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
