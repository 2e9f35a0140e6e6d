"""A builder of OpenAI's chat messages from the blocks of /v1/messages or the items of /v1/responses."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeAlias

# A text, or a list of text parts and image parts in OpenAI's form
Content: TypeAlias = "str | Sequence[dict[str, Any]]"
# Fields that are collected as lists of strings, and joined at the end: to add each to a string could take minutes
_PIECES = ("content", "reasoning_content")


class MessageBuilder:
    """A builder of a list of OpenAI's chat messages.

    Where the assistant thinks, writes and calls tools in one turn, all of this becomes one message.
    """

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return all messages. A message without content has the content ""."""
        return [
            {"content": "", **message, **{name: _joined(message[name]) for name in _PIECES if name in message}}
            for message in self._messages
        ]

    def add_system(self, text: str) -> None:
        """Add a system message."""
        self._messages.append({"role": "system", "content": [text]})

    def add_user(self, content: Content) -> None:
        """Add a user message."""
        self._messages.append({"role": "user", "content": content})

    def add_tool_result(self, call_id: str, content: Content) -> None:
        """Add the result of a tool call."""
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def add_reasoning(self, text: str) -> None:
        """Add thinking to the assistant's last message; start a new one if it already has content or tool calls."""
        last = self._last_assistant()
        if last is None or last.keys() & {"content", "tool_calls"}:
            last = self._start_assistant()
        last.setdefault("reasoning_content", []).append(text)

    def add_text(self, text: str, *, continues: bool = False) -> None:
        """Add text to the assistant's last message, or to a new message if that has content or tool calls.

        continues: append the text to the last message even if that has content.
        """
        last = self._last_assistant()
        if last is None or "tool_calls" in last or ("content" in last and not continues):
            last = self._start_assistant()
        last.setdefault("content", []).append(text)

    def add_tool_call(self, call_id: str, name: str, arguments: object) -> None:
        """Add a tool call to the assistant's last message, or to a new message if another role spoke last.

        arguments: an object or its JSON; anything else becomes one text (see `past_arguments`).
        """
        last = self._last_assistant() or self._start_assistant()
        function = {"name": name, "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _last_assistant(self) -> dict[str, Any] | None:
        return self._messages[-1] if self._messages and self._messages[-1]["role"] == "assistant" else None

    def _start_assistant(self) -> dict[str, Any]:
        self._messages.append({"role": "assistant"})
        return self._messages[-1]


def _joined(pieces: Any) -> Any:
    """Return the text of the pieces of the assistant's text; the content of another role unchanged."""
    return "".join(pieces) if isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces) else pieces


def encode_thinking(text: str) -> str:
    """Encode thinking as base64, for clients that send it back but do not show it. Nothing is encrypted."""
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def decode_thinking(encoded: str) -> str:
    """Decode the result of `encode_thinking`. Return "" for other data, such as the signatures of other servers."""
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
