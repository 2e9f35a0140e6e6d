"""Responses of /v1/messages: one message, or the events of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json

from pymtp.chat import OutputEvent
from pymtp.server.event_response import Events, FinishInfo
from pymtp.server.http.errors import ErrorInfo, anthropic_error
from pymtp.server.message_builder import encode_thinking
from pymtp.server.messages.types import AnthropicMessage, AnthropicUsage, DirectCaller, OutputBlock, StopReason
from pymtp.server.output_items import ItemChange, OutputItem, OutputItems

PING = {"type": "ping"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageWriter:
    """The writer of one message: as events of a stream, or as a whole. Joined by a client, the events give the same."""

    def __init__(self, model_name: str, request_id: str | None = None, *, shows_thinking: bool = True) -> None:
        """shows_thinking: if False, the thinking blocks are empty, and only their signatures contain the thinking."""
        self._output = OutputItems()
        self._request_id, self._shows_thinking = request_id, shows_thinking
        self._message: AnthropicMessage = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": _usage(0),
        }

    def begin(self, prompt_tokens: int) -> Events:
        """Return the first events of the stream, which precede the output."""
        self._message["usage"] = _usage(prompt_tokens)
        return [{"type": "message_start", "message": self._message}, PING]

    def push(self, events: Sequence[OutputEvent]) -> Events:
        """Return the events for new output. events: the new events of the output parser."""
        return self._item_events(self._output.push(events))

    def end(self, finish: FinishInfo) -> Events:
        """Return the last events of the stream."""
        reason, sequence = _stop_reason(finish)
        delta = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None, "container": None}
        return [
            *self._item_events(self._output.end_item()),
            {"type": "message_delta", "delta": delta, "usage": _finish_usage(finish), "pymtp": finish.stats},
            {"type": "message_stop"},
        ]

    def fail(self, error: ErrorInfo) -> Events:
        """Return the last event of a stream that fails."""
        return [anthropic_error(error, self._request_id)]

    def whole(self, finish: FinishInfo) -> AnthropicMessage:
        """Return the whole message, after all output was pushed."""
        reason, sequence = _stop_reason(finish)
        return {
            **self._message,
            "content": [self._block(item) for item in self._output.items],
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": _finish_usage(finish),
            "pymtp": finish.stats,
        }

    def _item_events(self, changes: Iterable[ItemChange]) -> Events:
        sent: Events = []
        for change, item, text in changes:
            event: dict[str, Any] = {"type": f"content_block_{_EVENT_NAMES[change]}", "index": item.index}
            if change == "start":
                sent.append(event | {"content_block": self._block(item, is_new=True)})
            elif change == "delta":
                if item.kind != "thinking" or self._shows_thinking:
                    sent.append(event | {"delta": _delta(item, text)})
            else:
                if item.kind == "thinking":
                    signature = {"type": "signature_delta", "signature": encode_thinking(item.text)}
                    sent.append({"type": "content_block_delta", "index": item.index, "delta": signature})
                sent.append(event)
        return sent

    def _block(self, item: OutputItem, *, is_new: bool = False) -> OutputBlock:
        """Return the block of an item; without its text if the item is new."""
        text = "" if is_new else item.text
        if item.kind == "text":
            return {"type": "text", "text": text, "citations": None}
        if item.kind == "thinking":
            shown = text if self._shows_thinking else ""
            return {"type": "thinking", "thinking": shown, "signature": encode_thinking(text)}
        # If the call was cut off, the block has only the complete values, as for clients that join the events.
        arguments = from_json(text, allow_partial=True) if text else {}
        called: DirectCaller = {"type": "direct"}
        return {"type": "tool_use", "id": f"toolu_{item.id}", "name": item.name, "input": arguments, "caller": called}


_EVENT_NAMES = {"start": "start", "delta": "delta", "end": "stop"}


def _delta(item: OutputItem, text: str) -> dict[str, Any]:
    if item.kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    kind, field = _DELTAS[item.kind]
    return {"type": kind, field: text}


def _stop_reason(finish: FinishInfo) -> tuple[StopReason, str | None]:
    """Return the stop reason, and the stop sequence if that is the reason."""
    if finish.reason == "tool_calls":
        return "tool_use", None
    if finish.reason == "length":
        return "model_context_window_exceeded" if finish.context_full else "max_tokens", None
    return "end_turn" if finish.stop_string is None else "stop_sequence", finish.stop_string


def _finish_usage(finish: FinishInfo) -> AnthropicUsage:
    return _usage(
        finish.prompt_tokens - finish.cached_tokens,
        finish.cached_tokens,
        finish.completion_tokens,
        finish.thinking_tokens,
    )


def _usage(uncached: int, cached: int = 0, completion: int = 0, thinking: int = 0) -> AnthropicUsage:
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
