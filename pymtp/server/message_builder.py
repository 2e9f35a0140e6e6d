"""Messages of a chat, made of what other APIs take apart: blocks of /v1/messages, items of /v1/responses."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any


class Turns:
    """Messages of OpenAI's form, as pymtp/openai_format.py reads them."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All of them."""
        return [{"content": "", **message} for message in self._messages]

    def system(self, text: str) -> None:
        """Instructions, wherever they come."""
        self._messages.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        """What the user said."""
        self._messages.append({"role": "user", "content": text})

    def result(self, call: str, text: str) -> None:
        """What a tool answered. call: its id."""
        self._messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def thought(self, text: str) -> None:
        """What the model thought before what follows."""
        last = self._last()
        if last is None or last.keys() & {"content", "tool_calls"}:
            last = self._begin()
        last["reasoning_content"] = last.get("reasoning_content", "") + text

    def said(self, text: str, *, goes_on: bool = False) -> None:
        """What the model said. goes_on: with what it said just before."""
        last = self._last()
        if last is None or "tool_calls" in last or ("content" in last and not goes_on):
            last = self._begin()
        last["content"] = last.get("content", "") + text

    def called(self, call: str, name: str, arguments: str | Mapping[str, Any]) -> None:
        """A call that the model made."""
        last = self._last() or self._begin()
        function = {"name": name, "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": call, "type": "function", "function": function})

    def _last(self) -> dict[str, Any] | None:
        return self._messages[-1] if self._messages and self._messages[-1]["role"] == "assistant" else None

    def _begin(self) -> dict[str, Any]:
        self._messages.append({"role": "assistant"})
        return self._messages[-1]


def sealed(thought: str) -> str:
    """Thinking as a client carries it that must hand it back but not show it. It is no secret: base64."""
    return base64.b64encode(thought.encode("utf-8", "surrogatepass")).decode()


def unsealed(seal: str) -> str:
    """What was sealed; nothing of what another server sealed."""
    try:
        return base64.b64decode(seal, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
