"""Responses of /v1/responses: one object, or the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pymtp.chat import OutputEvent
from pymtp.openai.timings import PromptProgress
from pymtp.sampling import SamplingParams
from pymtp.server.event_response import Events, FinishInfo
from pymtp.server.http.errors import ErrorInfo
from pymtp.server.http.json_response import PreencodedObject
from pymtp.server.message_builder import MessageBuilder, encode_thinking
from pymtp.server.output_items import ItemChange, OutputItem, OutputItems
from pymtp.server.responses import types
from pymtp.server.responses.read import namespace_functions, namespaces, tool_fields
from pymtp.server.responses.store import new_response_id

_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseWriter:
    """The writer of the events of one response. The last event contains the whole response.

    response: the response so far.
    """

    def __init__(self, body: Mapping[str, Any], params: SamplingParams, replica: str = "") -> None:
        """body: the validated body of the request.

        params: the sampling parameters, which the response reports.
        replica: the name of the server that stores the response; "" if there is only one server.
        """
        self._output = OutputItems()
        self._sequence_number = 0
        self._includes_encrypted = "reasoning.encrypted_content" in (body.get("include") or ())
        self._finish: FinishInfo | None = None
        self._namespaces = namespaces(body)
        self.response = _initial_response(body, params, replica)

    def begin(self, prompt_tokens: int = 0) -> Events:
        """Return the first events of the stream, which precede the output."""
        names = ("response.created", "response.in_progress")
        return self._number_events({"type": name, "response": self.response} for name in names)

    def progress(self, progress: PromptProgress) -> Events:
        """Return the event that tells how much of the prompt is computed."""
        event = {"type": "response.in_progress", "response": self.response, "prompt_progress": progress}
        return self._number_events([event])

    def push(self, events: Sequence[OutputEvent]) -> Events:
        """Return the events for new output. events: the new events of the output parser."""
        return self._number_events(self._item_events(self._output.push(events)))

    def end(self, finish: FinishInfo) -> Events:
        """Return the last events. The last event contains the whole response."""
        # Empty output gets an empty message, because clients expect at least one message.
        sent = [] if self._output.items else self._item_events(self._output.start_item("text"))
        self._finish = finish
        sent += self._item_events(self._output.end_item())
        status = "completed" if finish.is_complete else "incomplete"
        self.response = self.response.replace(
            {
                "status": status,
                "completed_at": int(time.time()) if finish.is_complete else None,
                "incomplete_details": None if finish.is_complete else {"reason": "max_output_tokens"},
                "output": self._output_json(),
                "usage": _usage(finish),
                "pymtp": finish.stats,
            }
        )
        return self._number_events([*sent, {"type": f"response.{status}", "response": self.response}])

    def whole(self, finish: FinishInfo) -> PreencodedObject:
        """Return the whole response, after all output was pushed."""
        self.end(finish)
        return self.response

    def fail(self, error_info: ErrorInfo) -> Events:
        """Return the last event of a response that fails during generation."""
        error = {"code": _CODES.get(error_info.status, "server_error"), "message": error_info.message}
        response = self.response.replace({"status": "failed", "error": error, "output": self._output_json()})
        return self._number_events([{"type": "response.failed", "response": response}])

    def messages(self) -> list[dict[str, Any]]:
        """Return the output as chat messages. Incomplete tool calls are left out."""
        builder = MessageBuilder()
        for item in self._output.items:
            if item.kind == "thinking":
                builder.add_reasoning(item.text)
            elif item.kind == "text":
                builder.add_text(item.text)
            elif item.is_complete:
                builder.add_tool_call(_call_id(item), item.name, item.text)
        return builder.messages

    def _number_events(self, events: Iterable[dict[str, Any]]) -> Events:
        sent = []
        for event in events:
            sent.append(event | {"sequence_number": self._sequence_number})
            self._sequence_number += 1
        return sent

    def _item_events(self, changes: Iterable[ItemChange]) -> Events:
        sent: Events = []
        for change, item, text in changes:
            at = {"item_id": _item_id(item), "output_index": item.index}
            if item.kind != "call":
                at["content_index"] = 0
            if change == "start":
                sent.append(self._item_event("added", item))
                if item.kind != "call":
                    sent.append({"type": "response.content_part.added", **at, "part": _content(item, "")})
            elif change == "delta":
                sent.append(
                    {"type": f"response.{_EVENT_NAMES[item.kind]}.delta", **at, "delta": text, **_LOGPROBS[item.kind]}
                )
            else:
                if item.is_complete:
                    sent.append({"type": f"response.{_EVENT_NAMES[item.kind]}.done", **at, **_done(item)})
                if item.kind != "call":
                    sent.append({"type": "response.content_part.done", **at, "part": _content(item, item.text)})
                sent.append(self._item_event("done", item))
        return sent

    def _item_event(self, change: Literal["added", "done"], item: OutputItem) -> dict[str, Any]:
        item_json = self._item_json(item, is_new=change == "added")
        return {"type": f"response.output_item.{change}", "output_index": item.index, "item": item_json}

    def _output_json(self) -> list[types.OutputItem]:
        return [self._item_json(item) for item in self._output.items]

    def _item_json(self, item: OutputItem, *, is_new: bool = False) -> types.OutputItem:
        """Return the JSON object of an item; without its text if the item is new."""
        text = "" if is_new else item.text
        item_id, status = _item_id(item), "in_progress" if is_new else self._status(item)
        if item.kind == "text":
            texts = [] if is_new else [_text_content(text)]
            return {"type": "message", "id": item_id, "status": status, "role": "assistant", "content": texts}
        if item.kind == "thinking":
            thoughts = [] if is_new else [_thinking_content(text)]
            thinking: types.OutputReasoning = {
                "type": "reasoning",
                "id": item_id,
                "status": status,
                "summary": [],
                "content": thoughts,
            }
            if self._includes_encrypted:
                thinking["encrypted_content"] = encode_thinking(text)
            return thinking
        namespace, name = self._namespaces.get(item.name, (None, item.name))
        call: types.OutputFunctionCall = {
            "type": "function_call",
            "id": item_id,
            "status": status,
            "call_id": _call_id(item),
            "arguments": text,
            "name": name,
        }
        if namespace is not None:
            call["namespace"] = namespace
        return call

    def _status(self, item: OutputItem) -> types.Status:
        is_last = item is self._output.items[-1]
        cut = is_last and (self._finish is None or not self._finish.is_complete)
        whole = item.is_complete if item.kind == "call" else not cut
        return "completed" if whole else "incomplete"


_ID_PREFIXES = {"text": "msg", "thinking": "rs", "call": "fc"}
_EVENT_NAMES = {"text": "output_text", "thinking": "reasoning_text", "call": "function_call_arguments"}
_LOGPROBS: dict[str, dict[str, Any]] = {"text": {"logprobs": []}, "thinking": {}, "call": {}}


def _item_id(item: OutputItem) -> str:
    return f"{_ID_PREFIXES[item.kind]}_{item.id}"


def _call_id(item: OutputItem) -> str:
    return f"call_{item.id}"


def _text_content(text: str) -> types.OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _thinking_content(text: str) -> types.OutputReasoningText:
    return {"type": "reasoning_text", "text": text}


def _content(item: OutputItem, text: str) -> types.OutputText | types.OutputReasoningText:
    return _thinking_content(text) if item.kind == "thinking" else _text_content(text)


def _done(item: OutputItem) -> dict[str, Any]:
    if item.kind == "call":
        return {"arguments": item.text}
    return {"text": item.text, **_LOGPROBS[item.kind]}


def _initial_response(body: Mapping[str, Any], params: SamplingParams, replica: str) -> PreencodedObject:
    """Return the response without output and usage. Many of its fields repeat fields of the request."""
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    own: types.OwnFields = {
        "id": new_response_id(replica),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "store": body.get("store") is not False,
        "temperature": params.temperature,
        "top_logprobs": 0,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "truncation": "disabled",
        "usage": None,
    }
    repeated: types.RequestFields = {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "safety_identifier": body.get("safety_identifier"),
        "user": body.get("user"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [listed for tool in body.get("tools") or () if (listed := _listed_tool(tool)) is not None],
    }
    return PreencodedObject(own, repeated)


def _listed_tool(tool: Mapping[str, Any]) -> types.ResponseTool | types.ResponseNamespace | None:
    """Return the JSON object by which a response lists a tool; None for a tool that is skipped."""
    if tool["type"] == "namespace":
        functions = [tool_fields(function) for function in namespace_functions(tool)]
        return {"type": "namespace", "name": tool["name"], "description": tool.get("description"), "tools": functions}
    return tool_fields(tool) if tool["type"] == "function" else None


def _usage(finish: FinishInfo) -> types.ResponseUsage:
    return {
        "input_tokens": finish.prompt_tokens,
        "input_tokens_details": {"cached_tokens": finish.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": finish.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": finish.thinking_tokens},
        "total_tokens": finish.prompt_tokens + finish.completion_tokens,
    }
