"""The chunks of a chat completion's stream, assembled from bytes: for speed, only their texts are JSON-encoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta, ToolCallDelta, ToolCallStart
from pymtp.engine.request import Completion, Piece
from pymtp.model.model import Model
from pymtp.openai.request_body import CHAT
from pymtp.openai.response_body import call_id, chat_logprobs, draft_stats, response_head, usage
from pymtp.server.openai.origins import OriginTracker
from pymtp.server.service import Delta


class ChatChunks:
    """The writer of the chunks of one stream with n completions."""

    def __init__(self, model: Model, model_name: str, n: int, *, include_usage: bool, origins: bool) -> None:
        """model_name: the name of the model in the chunks.

        n: the number of completions.
        include_usage: whether the stream ends with a chunk that has the usage and no choices.
        origins: whether each chunk says which of its characters were drafted, and at which draft step.
        """
        begin = response_head(CHAT, model_name) | {"object": "chat.completion.chunk"}
        self._model = model
        self._begin = b"data: " + json.dumps(begin).encode()[:-1] + b', "choices": ['
        self._include_usage = include_usage
        self._end = b', "usage": null}\n\n' if include_usage else b"}\n\n"
        self._origins = [OriginTracker(model) for _ in range(n)] if origins else None
        self._started = [False] * n

    def chunk(self, delta: Delta) -> bytes:
        """Return the chunk of a delta; b"" if the delta has nothing to send.

        Before the first chunk of a completion, also returns a chunk with the role of the message.
        """
        index = delta.index
        fields = self._delta_fields(delta.events)
        logprobs = _logprobs(delta.pieces, self._model)
        extension = b"" if self._origins is None else self._origins_extension(index, delta)
        chunks = b""
        if not self._started[index]:
            self._started[index] = True
            chunks = self._chunk(index, b'"role": "assistant", "content": ""', b"null", None)
        if fields or logprobs != b"null" or extension:
            chunks += self._chunk(index, fields, logprobs, None, extension)
        return chunks

    def end(self, delta: Delta, last: Sequence[Completion] | None) -> bytes:
        """Return the chunk with the finish reason of a completion.

        last: all completions of the request, if they have all finished now; else None.
        """
        extension = b"" if last is None or self._include_usage else self._stats_extension(last)
        return self._chunk(delta.index, b"", b"null", delta.finish_reason, extension)

    def usage(self, done: Sequence[Completion]) -> bytes:
        """Return the last chunk, which has the usage; b"" unless include_usage is set."""
        if not self._include_usage:
            return b""
        encoded = json.dumps(usage([done])).encode()
        return self._begin + b'], "usage": ' + encoded + self._stats_extension(done) + b"}\n\n"

    def _chunk(self, index: int, fields: bytes, logprobs: bytes, reason: str | None, extension: bytes = b"") -> bytes:
        reason_json = b"null" if reason is None else b'"%s"' % reason.encode()
        return b'%s{"index": %d, "delta": {%s}, "logprobs": %s, "finish_reason": %s}]%s%s' % (
            self._begin,
            index,
            fields,
            logprobs,
            reason_json,
            extension,
            self._end,
        )

    def _delta_fields(self, events: Sequence[OutputEvent]) -> bytes:
        """Return the JSON fields of a delta object. Several events for the same field are joined to one value."""
        reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        content = "".join(event.text for event in events if isinstance(event, ContentDelta))
        fields = []
        if reasoning:
            text = json.dumps(reasoning)
            fields.append(f'"reasoning_content": {text}, "reasoning": {text}')
        if content:
            fields.append(f'"content": {json.dumps(content)}')
        if tool_calls := _tool_calls(events):
            fields.append(f'"tool_calls": {json.dumps(tool_calls)}')
        return ", ".join(fields).encode()

    def _origins_extension(self, index: int, delta: Delta) -> bytes:
        assert self._origins is not None
        encoded = self._origins[index].push(delta.pieces, delta.events)
        return b"" if encoded is None else b', "pymtp": ' + json.dumps(encoded).encode()

    def _stats_extension(self, done: Sequence[Completion]) -> bytes:
        return b', "pymtp": ' + json.dumps(draft_stats(done)).encode()


def _tool_calls(events: Sequence[OutputEvent]) -> list[dict[str, Any]]:
    """Return the `tool_calls` of a delta object: the names of new calls, and the new parts of their arguments."""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            calls[event.index] = {"index": event.index, "id": call_id(), "type": "function", "function": function}
        elif isinstance(event, ToolCallDelta):
            call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    return list(calls.values())


def _logprobs(pieces: Sequence[Piece], model: Model) -> bytes:
    tokens = [token for piece in pieces for token in piece.logprobs or ()]
    return json.dumps(chat_logprobs(tokens, model)).encode() if tokens else b"null"
