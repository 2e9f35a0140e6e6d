"""Answers of /v1/messages, whole and as events."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json

from pymtp.chat import Event
from pymtp.server.finish import Ended
from pymtp.server.message_builder import sealed
from pymtp.server.output_items import Change, Part, Parts

PING = {"type": "ping"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageWriter:
    """One answer. Its events, taken together by a client, are what `whole` is."""

    def __init__(self, model_name: str, *, shows_thinking: bool = True) -> None:
        """shows_thinking: otherwise blocks of thinking are empty, and their signature holds it."""
        self.parts = Parts()
        self._shows_thinking = shows_thinking
        self._head: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
        }

    def begin(self, prompt_tokens: int) -> list[dict[str, Any]]:
        """The events before the first token."""
        message = self._head | {"usage": _usage(prompt_tokens)}
        return [{"type": "message_start", "message": message}, PING]

    def go_on(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """The events that say what is new."""
        return self._told(self.parts.take(events))

    def end(self, ended: Ended, more: dict[str, Any]) -> list[dict[str, Any]]:
        """The last events. more: further fields of the message."""
        delta = _stop(ended) | {"stop_details": None, "container": None}
        return [
            *self._told(self.parts.end()),
            {"type": "message_delta", "delta": delta, "usage": _usage_of(ended)} | more,
            {"type": "message_stop"},
        ]

    def whole(self, ended: Ended) -> dict[str, Any]:
        """The message, after all of `go_on`."""
        blocks = [self._block(part) for part in self.parts.row]
        return self._head | {"content": blocks} | _stop(ended) | {"usage": _usage_of(ended)}

    def _told(self, changes: Iterable[Change]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for what, part, text in changes:
            event: dict[str, Any] = {"type": f"content_block_{_EVENTS[what]}", "index": part.index}
            if what == "begun":
                found.append(event | {"content_block": self._empty(part)})
            elif what == "grown":
                if part.kind != "thinking" or self._shows_thinking:
                    found.append(event | {"delta": _delta(part, text)})
            else:
                if part.kind == "thinking":
                    signature = {"type": "signature_delta", "signature": sealed(part.text)}
                    found.append({"type": "content_block_delta", "index": part.index, "delta": signature})
                found.append(event)
        return found

    def _empty(self, part: Part) -> dict[str, Any]:
        if part.kind == "text":
            return {"type": "text", "text": "", "citations": None}
        if part.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        name = {"id": f"toolu_{part.id}", "name": part.name}
        return {"type": "tool_use", **name, "input": {}, "caller": {"type": "direct"}}

    def _block(self, part: Part) -> dict[str, Any]:
        block = self._empty(part)
        if part.kind == "text":
            block["text"] = part.text
        elif part.kind == "thinking":
            block |= {"thinking": part.text if self._shows_thinking else "", "signature": sealed(part.text)}
        elif part.text:
            # of a call that was cut short, what clients make of its events: values that are complete
            block["input"] = from_json(part.text, allow_partial=True)
        return block


_EVENTS = {"begun": "start", "grown": "delta", "ended": "stop"}


def _delta(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    kind, field = _DELTAS[part.kind]
    return {"type": kind, field: text}


def _stop(ended: Ended) -> dict[str, Any]:
    if ended.reason == "tool_calls":
        reason = "tool_use"
    elif ended.reason == "length":
        reason = "model_context_window_exceeded" if ended.context_full else "max_tokens"
    else:
        reason = "end_turn" if ended.stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": ended.stop if reason == "stop_sequence" else None}


def _usage_of(ended: Ended) -> dict[str, Any]:
    return _usage(ended.prompt - ended.cached, ended.cached, ended.written, ended.thought)


def _usage(read: int, cached: int = 0, written: int = 0, thought: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": read,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens": written,
        "output_tokens_details": {"thinking_tokens": thought},
        "server_tool_use": None,
        "inference_geo": None,
        "service_tier": "standard",
    }
