"""Chunks of a chat's stream, as bytes: only texts go through a JSON encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pymtp.chat import CallArguments, CallBegun, Event, Said, Thought
from pymtp.engine.request import Completion, Piece
from pymtp.model.model import Model
from pymtp.openai.requests import CHAT
from pymtp.openai.responses import call_id, chat_logprobs, drafting, head, usage
from pymtp.server.openai.origins import Origins
from pymtp.server.service import Update


class ChatChunks:
    """The chunks of one answer, of n texts."""

    def __init__(self, model: Model, model_name: str, n: int, *, include_usage: bool, origins: bool) -> None:
        """include_usage: a last chunk without choices has the usage. origins: chunks tell what was drafted."""
        begin = head(CHAT, model_name) | {"object": "chat.completion.chunk"}
        self._model = model
        self._begin = b"data: " + json.dumps(begin).encode()[:-1] + b', "choices": ['
        self._include_usage = include_usage
        self._end = b', "usage": null}\n\n' if include_usage else b"}\n\n"
        self._origins = [Origins(model) for _ in range(n)] if origins else None
        self._begun = [False] * n

    def chunk(self, update: Update) -> bytes:
        """What is new of a text: one chunk, and before the first one that says whose turn it is."""
        index = update.index
        delta = self._delta(update.events)
        logprobs = _logprobs(update.pieces, self._model)
        told = b"" if self._origins is None else self._told(index, update)
        found = b""
        if not self._begun[index]:
            self._begun[index] = True
            found = self._chunk(index, b'"role": "assistant", "content": ""', b"null", None)
        if delta or logprobs != b"null" or told:
            found += self._chunk(index, delta, logprobs, None, told)
        return found

    def end(self, update: Update, last: Sequence[Completion] | None) -> bytes:
        """The chunk that says why a text ended. last: of the last text to end, all of them."""
        told = b"" if last is None or self._include_usage else self._drafting(last)
        return self._chunk(update.index, b"", b"null", update.finish_reason, told)

    def usage(self, done: Sequence[Completion]) -> bytes:
        """The chunk without choices, where it was asked for."""
        if not self._include_usage:
            return b""
        said = json.dumps(usage([done])).encode()
        return self._begin + b'], "usage": ' + said + self._drafting(done) + b"}\n\n"

    def _chunk(self, index: int, delta: bytes, logprobs: bytes, reason: str | None, told: bytes = b"") -> bytes:
        why = b"null" if reason is None else b'"%s"' % reason.encode()
        return b'%s{"index": %d, "delta": {%s}, "logprobs": %s, "finish_reason": %s}]%s%s' % (
            self._begin,
            index,
            delta,
            logprobs,
            why,
            told,
            self._end,
        )

    def _delta(self, events: Sequence[Event]) -> bytes:
        """The fields of a delta, each joined of all events that are for it."""
        thought = "".join(event.text for event in events if isinstance(event, Thought))
        said = "".join(event.text for event in events if isinstance(event, Said))
        fields = []
        if thought:
            text = json.dumps(thought)
            fields.append(f'"reasoning_content": {text}, "reasoning": {text}')
        if said:
            fields.append(f'"content": {json.dumps(said)}')
        if calls := _calls(events):
            fields.append(f'"tool_calls": {json.dumps(calls)}')
        return ", ".join(fields).encode()

    def _told(self, index: int, update: Update) -> bytes:
        assert self._origins is not None
        said = self._origins[index].of(update.pieces, update.events)
        return b"" if said is None else b', "pymtp": ' + json.dumps(said).encode()

    def _drafting(self, done: Sequence[Completion]) -> bytes:
        return b', "pymtp": ' + json.dumps(drafting(done)).encode()


def _calls(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What is new of calls: the name of one that began, and what came of its arguments."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, CallBegun):
            function = {"name": event.name, "arguments": ""}
            found[event.index] = {"index": event.index, "id": call_id(), "type": "function", "function": function}
        elif isinstance(event, CallArguments):
            call = found.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    return list(found.values())


def _logprobs(pieces: Sequence[Piece], model: Model) -> bytes:
    each = [one for piece in pieces for one in piece.logprobs or ()]
    return json.dumps(chat_logprobs(each, model)).encode() if each else b"null"
