"""The answer to a request of /v1/messages and /v1/responses: one JSON object, or a stream of named events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol

from fastapi import Request
from fastapi.responses import Response

from pymtp.chat import OutputEvent
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.request import Completion
from pymtp.engine.text import stop_spellings
from pymtp.model.model import Model
from pymtp.openai.generate_request import GenerateRequest, OutputFinishReason
from pymtp.openai.response_body import DraftingStats, draft_stats
from pymtp.openai.timings import PromptProgress, prompt_progress, timings
from pymtp.server.http.errors import ErrorInfo, error_info
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.sse import KEEPALIVE, EventStream, encode_events, run_until_disconnect
from pymtp.server.service import RunningRequest, Service
from pymtp.stats import Stats

Events = list[dict[str, Any]]


class EventWriter(Protocol):
    """The writer of one answer in the form of an API, as events of a stream and as a whole."""

    def begin(self, prompt_tokens: int) -> Events:
        """Return the first events of the stream, which precede the output."""

    def push(self, events: Sequence[OutputEvent]) -> Events:
        """Return the events for new output. events: the new events of the output parser."""

    def end(self, finish: FinishInfo) -> Events:
        """Return the last events of the stream."""

    def fail(self, error: ErrorInfo) -> Events:
        """Return the last events of a stream that fails."""

    def whole(self, finish: FinishInfo) -> Mapping[str, Any]:
        """Return the whole answer, after all output was pushed."""


async def respond(
    request: Request,
    service: Service,
    generate_request: GenerateRequest,
    writer: EventWriter,
    *,
    on_end: Callable[[], None] = lambda: None,
    last: bytes = b"",
    keepalive: bytes = KEEPALIVE,
    headers: Mapping[str, str] | None = None,
    on_progress: Callable[[PromptProgress], Events] | None = None,
    timings_per_token: bool = False,
) -> Response:
    """Run a request, and return the HTTP response with its answer.

    on_end: called when the answer is complete.
    last: the last bytes of the stream.
    keepalive: the data to send while there is no event.
    headers: further headers of the response.
    on_progress: returns the events of a stream that tell how much of the prompt is computed; None for no such events.
    timings_per_token: whether the events of output in a stream, and its last event, have timings.
    """

    def finished(running: RunningRequest, delta: CompletionDelta) -> FinishInfo:
        assert delta.reason is not None
        return finish_info(generate_request, running.completions[0], delta.reason, service.llm.llm.model)

    async def whole() -> Mapping[str, Any]:
        async with service.run_request(generate_request) as running:
            async for delta in running:
                writer.push(delta.events)
        answer = writer.whole(finished(running, delta))
        on_end()
        return answer

    async def events(running: RunningRequest) -> AsyncIterator[bytes]:
        async with stack:
            yield encode_events(writer.begin(running.prompt_tokens))
            if on_progress is not None:
                async for progress in running.prompt_progress():
                    yield encode_events(on_progress(prompt_progress(progress)))
            async for delta in running:
                if events := writer.push(delta.events):
                    yield encode_events(timed(events, running.stats(0)))
            events = writer.end(finished(running, delta))
            on_end()
            yield encode_events([*events[:-1], *timed(events[-1:], running.stats(0))]) + last

    def timed(events: Events, stats: Stats) -> Events:
        return [event | {"timings": timings(stats)} for event in events] if timings_per_token else events

    if not generate_request.stream:
        return AsciiJSONResponse(await run_until_disconnect(request.receive, whole()), headers=headers)
    stack = AsyncExitStack()
    running = await stack.enter_async_context(service.run_request(generate_request))
    return EventStream(
        events(running),
        lambda error: encode_events(writer.fail(error_info(error))) + last,
        headers,
        keepalive=keepalive,
    )


class FinishInfo(NamedTuple):
    """The finish reason of a completion, and its token counts.

    reason: the finish reason.
    stop_string: the stop string that ended the completion; None if no stop string did.
    context_full: whether the completion ended because the context was full.
    prompt_tokens: the number of tokens of the prompt.
    cached_tokens: the number of prompt tokens that were taken from the prefix cache.
    completion_tokens: the number of tokens of the completion, thinking included.
    thinking_tokens: the number of thinking tokens of the completion.
    stats: the statistics of its drafts.
    """

    reason: OutputFinishReason
    stop_string: str | None
    context_full: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    thinking_tokens: int
    stats: DraftingStats | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the completion ended by itself, and not at a length limit."""
        return self.reason in ("stop", "tool_calls")


def finish_info(request: GenerateRequest, done: Completion, reason: OutputFinishReason, model: Model) -> FinishInfo:
    """Return the FinishInfo of a finished completion."""
    data = b"".join(model.token_bytes(token) for token in done.token_ids)
    written = len(done.token_ids)
    limit = request.params.max_tokens
    return FinishInfo(
        reason=reason,
        stop_string=find_stop_string(data, done.text, request.params.stop) if reason == "stop" else None,
        context_full=reason == "length" and (limit is None or written < limit),
        prompt_tokens=len(done.prompt_token_ids),
        cached_tokens=done.stats.cached_tokens,
        completion_tokens=written,
        thinking_tokens=done.stats.thinking_tokens,
        stats=draft_stats([done]),
    )


def find_stop_string(data: bytes, text: str, stops: str | Sequence[str]) -> str | None:
    """Return the stop string that ended a completion, or None.

    data: the bytes of all generated tokens, which include the stop string.
    text: the text of the completion, which ends before the stop string.
    stops: the stop strings of the request.
    """
    rest = data.decode(errors="replace")[len(text) :]
    return min((stop for stop in stops if rest.startswith(stop_spellings(stop))), key=len, default=None)
