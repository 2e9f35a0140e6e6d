"""Rewritten messages, for templates that refuse late system messages, or chats without a user message.

A system message is late if it is not the first message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

INSTRUCTION_ROLES = ("system", "developer")
_TOOL_RESULT = "<tool_response>"  # some clients send a tool's result as a user message with this tag

Messages = Sequence[Mapping[str, Any]]


def message_rewrites(messages: Messages) -> Iterator[Messages]:
    """Yield the messages unchanged, then rewrites of them with the same meaning.

    The caller tries one after the other, until the template accepts it. In the rewrites, a chat without a user message
    (it was cut or compacted) gets an empty user message before the first message that is not a system or developer
    message. System and developer messages after the first message become user messages.
    """
    late = {*_late_messages(messages, INSTRUCTION_ROLES)}
    as_user = [{**message, "role": "user"} if i in late else message for i, message in enumerate(messages)]
    for rewrite in (messages, as_user) if late else (messages,):
        yield rewrite
        if not _has_user_message(rewrite):
            yield _with_empty_user_message(rewrite)


def late_system_messages(messages: Messages) -> list[int]:
    """Return the indices of system messages that are not the first message."""
    return _late_messages(messages, ("system",))


def _late_messages(messages: Messages, roles: Sequence[str]) -> list[int]:
    return [i for i, message in enumerate(messages) if i and message["role"] in roles]


def _has_user_message(messages: Messages) -> bool:
    return any(
        message["role"] == "user" and not str(message.get("content") or "").strip().startswith(_TOOL_RESULT)
        for message in messages
    )


def _with_empty_user_message(messages: Messages) -> Messages:
    n = next((i for i, message in enumerate(messages) if message["role"] not in INSTRUCTION_ROLES), len(messages))
    return [*messages[:n], {"role": "user", "content": ""}, *messages[n:]]
