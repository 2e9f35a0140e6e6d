"""The chunks of streams of OpenAI's completions, assembled from bytes: for speed, only what is new is JSON-encoded."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pymtp.chat import ContentDelta, OutputEvent, ReasoningDelta, ToolCallDelta, ToolCallStart
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.deltas import PromptProgress as EngineProgress
from pymtp.engine.request import Completion, Piece
from pymtp.model.model import Model
from pymtp.openai.prompt_only import is_prompt_only, without_tokens
from pymtp.openai.request_body import CHAT, TEXT, text_prompts
from pymtp.openai.response_body import (
    CompletionChoice,
    CompletionLogprobs,
    DeltaFunctionCall,
    DeltaToolCall,
    TextOffsets,
    add_logprobs,
    call_id,
    chat_logprobs,
    draft_stats,
    prompt_text,
    response_head,
    text_logprobs,
    usage,
)
from pymtp.openai.timings import prompt_progress, timings
from pymtp.sampling import TokenLogprobs
from pymtp.stats import Stats


class _Chunks:
    """The writer of the chunks of one stream. The fields that all chunks share are encoded once."""

    _prompt_only = False  # whether the completions have no text

    def __init__(self, head: Mapping[str, Any], *, include_usage: bool) -> None:
        """head: the first fields of each chunk. include_usage: whether a last chunk has the usage and no choices."""
        self._begin = b"data: " + json.dumps(head).encode()[:-1] + b', "choices": ['
        self._include_usage = include_usage
        self._end = b', "usage": null}\n\n' if include_usage else b"}\n\n"

    def usage(self, done: Sequence[Sequence[Completion]]) -> bytes:
        """Return the last chunk, which has the usage; b"" unless include_usage is set. done: all completions."""
        if not self._include_usage:
            return b""
        if self._prompt_only:
            done = [[without_tokens(one) for one in completions] for completions in done]
        stats = _stats_extension([one for completions in done for one in completions])
        return self._begin + b'], "usage": ' + json.dumps(usage(done)).encode() + stats + b"}\n\n"

    def _last_extension(self, done: Sequence[Completion]) -> bytes:
        """Return further JSON fields of the chunk that ends the last completion."""
        return b"" if self._include_usage else _stats_extension(done)


class ChatChunks(_Chunks):
    """The writer of the chunks of a chat with n completions."""

    def __init__(
        self,
        model: Model,
        model_name: str,
        n: int,
        *,
        include_usage: bool,
        origins: bool,
        exclude_reasoning: bool = False,
    ) -> None:
        """model_name: the name of the model in the chunks.

        n: the number of completions.
        include_usage: whether the stream ends with a chunk that has the usage and no choices.
        origins: whether each chunk says which of its characters were drafted, at which draft step or from text.
        exclude_reasoning: whether the chunks leave the reasoning out.
        """
        head = response_head(CHAT, model_name) | {"object": "chat.completion.chunk"}
        super().__init__(head, include_usage=include_usage)
        self._model = model
        self._origins = [OriginTracker(model) for _ in range(n)] if origins else None
        self._exclude_reasoning = exclude_reasoning
        self._started = [False] * n

    def progress(self, progress: EngineProgress) -> bytes:
        """Return the chunk that tells how much of the prompt is computed."""
        extension = b', "prompt_progress": ' + json.dumps(prompt_progress(progress)).encode()
        return self._chunk(0, b"", b"null", None, extension)

    def chunk(self, delta: CompletionDelta, stats: Stats | None = None) -> bytes:
        """Return the chunk of a delta; b"" if the delta has nothing to send.

        Before the first chunk of a completion, also returns a chunk with the role of the message.

        stats: the statistics of the completion so far; None for a chunk without timings.
        """
        index = delta.index
        if self._exclude_reasoning:
            delta.events = [event for event in delta.events if not isinstance(event, ReasoningDelta)]
        fields = _delta_fields(delta.events)
        tokens = _token_logprobs(delta.pieces)
        logprobs = json.dumps(chat_logprobs(tokens, self._model)).encode() if tokens else b"null"
        extension = b"" if self._origins is None else self._origins_extension(self._origins[index], delta)
        chunks = b""
        if not self._started[index]:
            self._started[index] = True
            chunks = self._chunk(index, b'"role": "assistant", "content": null', b"null", None)
        if fields or tokens or extension:
            chunks += self._chunk(index, fields, logprobs, None, extension + timings_extension(stats))
        return chunks

    def end(self, delta: CompletionDelta, last: Sequence[Completion] | None) -> bytes:
        """Return the chunk with the finish reason of a completion.

        last: all completions of the request, if they have all finished now; else None.
        """
        extension = b"" if last is None else self._last_extension(last)
        return self._chunk(delta.index, b"", b"null", delta.reason, extension)

    def _chunk(self, index: int, fields: bytes, logprobs: bytes, reason: str | None, extension: bytes = b"") -> bytes:
        reason_json = b"null" if reason is None else b'"%s"' % reason.encode()
        choice = b'{"index": %d, "delta": {%s}, "logprobs": %s, "finish_reason": %s}]'
        return self._begin + choice % (index, fields, logprobs, reason_json) + extension + self._end

    def _origins_extension(self, origins: OriginTracker, delta: CompletionDelta) -> bytes:
        found = origins.push(delta.pieces, delta.events)
        return b"" if found is None else b', "pymtp": ' + json.dumps(found).encode()


class TextChunks(_Chunks):
    """The writer of the chunks of a request of /v1/completions, with n completions of each prompt."""

    def __init__(self, model: Model, model_name: str, fields: Mapping[str, Any]) -> None:
        """model_name: the name of the model in the chunks, unless the request names it. fields: those of the body."""
        include_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
        super().__init__(response_head(TEXT, fields.get("model") or model_name), include_usage=include_usage)
        self._model, self._n = model, fields.get("n") or 1
        self._prompts = text_prompts(fields) if fields.get("echo") else None
        self._prompt_only = is_prompt_only(fields)
        self._offsets: dict[int, TextOffsets] = {}  # by completion, from its first chunk on

    def progress(self, i: int, progress: EngineProgress) -> bytes:
        """Return the chunk that tells how much of prompt i is computed."""
        choice: CompletionChoice = {"index": i * self._n, "text": "", "logprobs": None, "finish_reason": None}
        extension = b', "prompt_progress": ' + json.dumps(prompt_progress(progress)).encode()
        return self._begin + json.dumps(choice).encode() + b"]" + extension + self._end

    def chunk(
        self,
        i: int,
        delta: CompletionDelta,
        last: Sequence[Completion] | None,
        stats: Stats | None = None,
        prompt_logprobs: Callable[[], list[TokenLogprobs]] = list,
    ) -> bytes:
        """Return the chunk of a delta of prompt i; b"" if the delta has nothing to send.

        last: see ChatChunks.end. stats: see ChatChunks.chunk.
        prompt_logprobs: returns those of prompt i, for the first chunk of each completion, which repeats the prompt.
        """
        if self._prompt_only:
            delta = CompletionDelta(delta.index, (), delta.reason and "length")
            last = last and [without_tokens(one) for one in last]
        index = i * self._n + delta.index
        text = "".join(event.text for event in delta.events if isinstance(event, ContentDelta))
        logprobs: CompletionLogprobs | None = None
        if index not in self._offsets:
            echo = "" if self._prompts is None else prompt_text(self._prompts[i], self._model)
            text = echo + text
            self._offsets[index] = TextOffsets(len(echo))
            if self._prompts is not None and (of_prompt := prompt_logprobs()):
                logprobs = text_logprobs(of_prompt, self._model, TextOffsets(special=True))
        if tokens := _token_logprobs(delta.pieces):
            more = text_logprobs(tokens, self._model, self._offsets[index])
            if logprobs is None:
                logprobs = more
            else:
                add_logprobs(logprobs, more)
        if not text and logprobs is None and delta.reason is None:
            return b""
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.reason,  # type: ignore[typeddict-item] # a text has no calls
        }
        extension = timings_extension(stats) if last is None else self._last_extension(last)
        return self._begin + json.dumps(choice).encode() + b"]" + extension + self._end


def _stats_extension(done: Sequence[Completion]) -> bytes:
    """Return the JSON fields of the statistics of all completions, and of the times of the first one."""
    return b', "pymtp": ' + json.dumps(draft_stats(done)).encode() + timings_extension(done[0].stats)


def timings_extension(stats: Stats | None) -> bytes:
    """Return the JSON field of the times of a completion; b"" for None."""
    return b"" if stats is None else b', "timings": ' + json.dumps(timings(stats)).encode()


def _token_logprobs(pieces: Sequence[Piece]) -> list[TokenLogprobs]:
    return [token for piece in pieces for token in piece.logprobs or ()]


def _delta_fields(events: Sequence[OutputEvent]) -> bytes:
    """Return the JSON fields of a chat's delta. Several events for the same field are joined to one value."""
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


def _tool_calls(events: Sequence[OutputEvent]) -> list[DeltaToolCall]:
    """Return the `tool_calls` of a chat's delta: the names of new calls, and the new parts of their arguments."""
    calls: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            function: DeltaFunctionCall = {"name": event.name, "arguments": ""}
            calls[event.index] = {"index": event.index, "id": call_id(), "type": "function", "function": function}
        elif isinstance(event, ToolCallDelta):
            call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    return list(calls.values())


BY_TEXT = "text"  # the origin of characters whose token is a draft from text


class OriginTracker:
    """A tracker of the characters of one completion, which determines whether each character was drafted.

    The origin of a character is the draft step that proposed its token: 1 for the head's first draft of a round, 2 for
    the second, and so on. It is BY_TEXT for a draft from text, and 0 if the token was sampled from the target model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        # A character belongs to the token that completes it. The text was decoded by the same kind of decoder, so the
        # lengths agree.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._runs: list[
            tuple[int, int | str]
        ] = []  # pairs (end, step) of the runs of characters that were not sent yet
        self._length = 0

    def push(self, pieces: Sequence[Piece], events: Sequence[OutputEvent]) -> dict[str, Any] | None:
        """Return the `pymtp` object of the chunk for new pieces and events; None if the chunk needs none.

        The object has two fields. `origins` lists [name of the delta's field, number of characters, draft step] in the
        order of the text. `rounds` lists, of each round, [number of verified drafts, number of accepted drafts, number
        of the verified ones that came from text, number of the accepted ones that did].

        pieces: the new pieces of the engine, which have the tokens and the number of accepted drafts.
        events: the new events of the output parser, which have the characters that the chunk sends.
        """
        for piece in pieces:
            by_head = piece.accepted - piece.accepted_by_text
            for i, token in enumerate(piece.token_ids):
                self._length += len(self._decoder.decode(self._model.token_bytes(token)))
                step = i + 1 if i < by_head else BY_TEXT if i < piece.accepted else 0
                self._runs.append((self._length, step))
        origins: list[list[str | int]] = []
        for event in events:
            if isinstance(event, (ReasoningDelta, ContentDelta)):
                field = "content" if isinstance(event, ContentDelta) else "reasoning_content"
                origins += [[field, n, step] for n, step in self._slice(event.start, event.end)]
        rounds = [
            [piece.drafted, piece.accepted, piece.drafted_by_text, piece.accepted_by_text]
            for piece in pieces
            if piece.token_ids
        ]
        return {"origins": origins, "rounds": rounds} if origins or rounds else None

    def _slice(self, start: int, end: int) -> list[tuple[int, int | str]]:
        """Return pairs (number of characters, draft step) for a slice of the text. Slices must not go backwards."""
        self._runs = [run for run in self._runs if run[0] > start]
        runs: list[tuple[int, int | str]] = []
        for stop, step in self._runs:
            n = min(stop, end) - start
            if n > 0:
                if runs and runs[-1][1] == step:
                    runs[-1] = (runs[-1][0] + n, step)
                else:
                    runs.append((n, step))
                start += n
        # If the text ended within a character, its replacement character belongs to no token, and gets step 0.
        return [*runs, (end - start, 0)] if start < end else runs
