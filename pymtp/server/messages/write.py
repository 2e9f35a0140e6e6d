"""Responses of /v1/messages: one message, or the events of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json

from pymtp.chat import OutputEvent
from pymtp.server.finish import FinishInfo
from pymtp.server.message_builder import encode_thinking
from pymtp.server.output_items import ItemChange, OutputItem, OutputItems

PING = {"type": "ping"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageWriter:
    """The writer of one message: as events of a stream, or as a whole. Joined by a client, the events give the same."""

    def __init__(self, model_name: str, *, shows_thinking: bool = True) -> None:
        """shows_thinking: if False, the thinking blocks are empty, and only their signatures contain the thinking."""
        self._output = OutputItems()
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
        """Return the first events of the stream, which precede the output."""
        message = self._head | {"usage": _usage(prompt_tokens)}
        return [{"type": "message_start", "message": message}, PING]

    def push(self, events: Sequence[OutputEvent]) -> list[dict[str, Any]]:
        """Return the events for new output. events: the new events of the output parser."""
        return self._item_events(self._output.push(events))

    def end(self, finish: FinishInfo, more: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the last events of the stream. more: further fields of the event message_delta."""
        delta = _stop_fields(finish) | {"stop_details": None, "container": None}
        return [
            *self._item_events(self._output.end_item()),
            {"type": "message_delta", "delta": delta, "usage": _finish_usage(finish)} | more,
            {"type": "message_stop"},
        ]

    def message(self, finish: FinishInfo) -> dict[str, Any]:
        """Return the whole message. Must be called after all output was pushed."""
        blocks = [self._block(item) for item in self._output.items]
        return self._head | {"content": blocks} | _stop_fields(finish) | {"usage": _finish_usage(finish)}

    def _item_events(self, changes: Iterable[ItemChange]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        for change, item, text in changes:
            event: dict[str, Any] = {"type": f"content_block_{_EVENT_NAMES[change]}", "index": item.index}
            if change == "start":
                sent.append(event | {"content_block": self._empty_block(item)})
            elif change == "delta":
                if item.kind != "thinking" or self._shows_thinking:
                    sent.append(event | {"delta": _delta(item, text)})
            else:
                if item.kind == "thinking":
                    signature = {"type": "signature_delta", "signature": encode_thinking(item.text)}
                    sent.append({"type": "content_block_delta", "index": item.index, "delta": signature})
                sent.append(event)
        return sent

    def _empty_block(self, item: OutputItem) -> dict[str, Any]:
        if item.kind == "text":
            return {"type": "text", "text": "", "citations": None}
        if item.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        name = {"id": f"toolu_{item.id}", "name": item.name}
        return {"type": "tool_use", **name, "input": {}, "caller": {"type": "direct"}}

    def _block(self, item: OutputItem) -> dict[str, Any]:
        block = self._empty_block(item)
        if item.kind == "text":
            block["text"] = item.text
        elif item.kind == "thinking":
            block |= {"thinking": item.text if self._shows_thinking else "", "signature": encode_thinking(item.text)}
        elif item.text:
            # If the call was cut off, the block has only the complete values, as for clients that join the events.
            block["input"] = from_json(item.text, allow_partial=True)
        return block


_EVENT_NAMES = {"start": "start", "delta": "delta", "end": "stop"}


def _delta(item: OutputItem, text: str) -> dict[str, Any]:
    if item.kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    kind, field = _DELTAS[item.kind]
    return {"type": kind, field: text}


def _stop_fields(finish: FinishInfo) -> dict[str, Any]:
    if finish.reason == "tool_calls":
        reason = "tool_use"
    elif finish.reason == "length":
        reason = "model_context_window_exceeded" if finish.context_full else "max_tokens"
    else:
        reason = "end_turn" if finish.stop_string is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": finish.stop_string if reason == "stop_sequence" else None}


def _finish_usage(finish: FinishInfo) -> dict[str, Any]:
    return _usage(
        finish.prompt_tokens - finish.cached_tokens,
        finish.cached_tokens,
        finish.completion_tokens,
        finish.thinking_tokens,
    )


def _usage(uncached: int, cached: int = 0, completion: int = 0, thinking: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": uncached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens": completion,
        "output_tokens_details": {"thinking_tokens": thinking},
        "server_tool_use": None,
        "inference_geo": None,
        "service_tier": "standard",
    }
