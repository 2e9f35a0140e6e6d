"""Messages of a chat as templates want them that take no instructions in the middle, or no chat without a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INSTRUCTIONS = ("system", "developer")  # roles
_RESULT = "<tool_response>"  # some clients send what a tool answered as the user's

Messages = Sequence[Mapping[str, Any]]


def arrangements(messages: Messages) -> Iterator[Messages]:
    """The messages as they are, then in other ways to say the same, for templates that refuse what came before.

    A chat without a question of the user gets an empty one before the first message that is no instruction: it was cut,
    or compacted. Later instructions become the user's.
    """
    yield messages
    if not _has_question(messages):
        yield _questioned(messages)
    if _later(messages, INSTRUCTIONS):
        told = [
            {**message, "role": "user"} if i and message["role"] in INSTRUCTIONS else message
            for i, message in enumerate(messages)
        ]
        yield told
        if not _has_question(told):
            yield _questioned(told)


def later_systems(messages: Messages) -> list[int]:
    """Find the places of messages of the system that are not the first."""
    return _later(messages, ("system",))


def _later(messages: Messages, roles: Sequence[str]) -> list[int]:
    return [i for i, message in enumerate(messages) if i and message["role"] in roles]


def _has_question(messages: Messages) -> bool:
    return any(
        message["role"] == "user" and not str(message.get("content") or "").strip().startswith(_RESULT)
        for message in messages
    )


def _questioned(messages: Messages) -> Messages:
    n = next((i for i, message in enumerate(messages) if message["role"] not in INSTRUCTIONS), len(messages))
    return [*messages[:n], {"role": "user", "content": ""}, *messages[n:]]
