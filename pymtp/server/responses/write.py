"""Answers of /v1/responses, whole and as events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pymtp.chat import Event
from pymtp.sampling import SamplingParams
from pymtp.server.finish import Ended
from pymtp.server.http.ascii_json import Echoing
from pymtp.server.http.errors import Failure
from pymtp.server.message_builder import Turns, sealed
from pymtp.server.output_items import Change, Part, Parts
from pymtp.server.responses.ids import new_id
from pymtp.server.responses.read import namespaces, tool_of

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseWriter:
    """One answer. What its events tell, item by item, is the output of the answer in the last one."""

    def __init__(self, body: Mapping[str, Any], params: SamplingParams, replica: str = "") -> None:
        """replica: of several servers, the one that keeps the answer."""
        self.parts = Parts()
        self._number = 0
        self._seals = "reasoning.encrypted_content" in (body.get("include") or ())
        self._ended: Ended | None = None
        self._namespaces = namespaces(body)
        self._response = _begun(body, params, replica)

    def begin(self) -> list[dict[str, Any]]:
        """The events before the first token."""
        names = ("response.created", "response.in_progress")
        return self._numbered({"type": name, "response": self._response} for name in names)

    def go_on(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """The events that say what is new."""
        return self._numbered(self._told(self.parts.take(events)))

    def end(self, ended: Ended, more: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The last events. The last of them has the answer as a whole. more: further fields of that."""
        found = [] if self.parts.row else self._told(self.parts.begin("text"))  # clients look for a message
        self._ended = ended
        found += self._told(self.parts.end())
        status = "completed" if ended.is_whole else "incomplete"
        changes = {
            "status": status,
            "completed_at": int(time.time()) if ended.is_whole else None,
            "incomplete_details": None if ended.is_whole else {"reason": "max_output_tokens"},
            "output": self._output(),
            "usage": _usage(ended),
            **more,
        }
        return self._numbered([*found, {"type": f"response.{status}", "response": self._response.but(changes)}])

    def fail(self, failure: Failure) -> list[dict[str, Any]]:
        """The last event of an answer that failed in the middle."""
        error = {"code": _CODES.get(failure.status, "server_error"), "message": failure.message}
        response = self._response.but({"status": "failed", "error": error, "output": self._output()})
        return self._numbered([{"type": "response.failed", "response": response}])

    def turns(self) -> list[dict[str, Any]]:
        """The answer as messages of a chat."""
        turns = Turns()
        for part in self.parts.row:
            if part.kind == "thinking":
                turns.thought(part.text)
            elif part.kind == "text":
                turns.said(part.text)
            elif part.is_whole:
                turns.called(_call_id(part), part.name, part.text)
        return turns.messages

    def _numbered(self, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for event in events:
            found.append(event | {"sequence_number": self._number})
            self._number += 1
        return found

    def _told(self, changes: Iterable[Change]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for what, part, text in changes:
            at = {"item_id": _item_id(part), "output_index": part.index}
            if part.kind != "call":
                at["content_index"] = 0
            if what == "begun":
                found.append(self._told_item("added", part))
                if part.kind != "call":
                    found.append({"type": "response.content_part.added", **at, "part": _content(part, "")})
            elif what == "grown":
                found.append(
                    {"type": f"response.{_NAMES[part.kind]}.delta", **at, "delta": text, **_LOGPROBS[part.kind]}
                )
            else:
                if part.is_whole:
                    found.append({"type": f"response.{_NAMES[part.kind]}.done", **at, **_done(part)})
                if part.kind != "call":
                    found.append({"type": "response.content_part.done", **at, "part": _content(part, part.text)})
                found.append(self._told_item("done", part))
        return found

    def _told_item(self, what: Literal["added", "done"], part: Part) -> dict[str, Any]:
        item = self._item(part, begins=what == "added")
        return {"type": f"response.output_item.{what}", "output_index": part.index, "item": item}

    def _output(self) -> list[dict[str, Any]]:
        return [self._item(part) for part in self.parts.row]

    def _item(self, part: Part, *, begins: bool = False) -> dict[str, Any]:
        status = "in_progress" if begins else self._status(part)
        item: dict[str, Any] = {"id": _item_id(part), "status": status}
        content = [] if begins else [_content(part, part.text)]
        if part.kind == "text":
            return {"type": "message", **item, "role": "assistant", "content": content}
        if part.kind == "thinking":
            seal = {"encrypted_content": "" if begins else sealed(part.text)} if self._seals else {}
            return {"type": "reasoning", **item, "summary": [], "content": content, **seal}
        call = {"type": "function_call", **item, "call_id": _call_id(part), "arguments": "" if begins else part.text}
        if part.name not in self._namespaces:
            return call | {"name": part.name}
        namespace, name = self._namespaces[part.name]
        return call | {"name": name, "namespace": namespace}

    def _status(self, part: Part) -> str:
        is_last = part is self.parts.row[-1]
        cut = is_last and (self._ended is None or not self._ended.is_whole)
        whole = part.is_whole if part.kind == "call" else not cut
        return "completed" if whole else "incomplete"


_PREFIXES = {"text": "msg", "thinking": "rs", "call": "fc"}
_NAMES = {"text": "output_text", "thinking": "reasoning_text", "call": "function_call_arguments"}
_LOGPROBS: dict[str, dict[str, Any]] = {"text": {"logprobs": []}, "thinking": {}, "call": {}}


def _item_id(part: Part) -> str:
    return f"{_PREFIXES[part.kind]}_{part.id}"


def _call_id(part: Part) -> str:
    return f"call_{part.id}"


def _content(part: Part, text: str) -> dict[str, Any]:
    if part.kind == "thinking":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _done(part: Part) -> dict[str, Any]:
    if part.kind == "call":
        return {"arguments": part.text}
    return {"text": part.text, **_LOGPROBS[part.kind]}


def _begun(body: Mapping[str, Any], params: SamplingParams, replica: str) -> Echoing:
    """The answer before the first token, with what was asked for."""
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    own = {
        "id": new_id(replica),
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
    echo = {
        **{name: body.get(name) for name in _ECHOED},
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [told for tool in body.get("tools") or () if (told := _tool(tool)) is not None],
    }
    return Echoing(own, echo)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """A tool as the answer tells of it; None of one that was passed over."""
    if tool["type"] == "namespace":
        about = {name: tool.get(name) for name in ("type", "name", "description")}
        return about | {"tools": [tool_of(each) for each in tool["tools"]]}
    return tool_of(tool) if tool["type"] == "function" else None


def _usage(ended: Ended) -> dict[str, Any]:
    return {
        "input_tokens": ended.prompt,
        "input_tokens_details": {"cached_tokens": ended.cached, "cache_write_tokens": 0},
        "output_tokens": ended.written,
        "output_tokens_details": {"reasoning_tokens": ended.thought},
        "total_tokens": ended.prompt + ended.written,
    }
