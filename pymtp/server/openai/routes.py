"""The routes of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.engine.deltas import CompletionDelta, PromptProgress
from pymtp.engine.request import Completion
from pymtp.openai.answer_rules import has_rule
from pymtp.openai.chunks import ChatChunks, TextChunks
from pymtp.openai.generate_request import GenerateRequest, Output, left_out_keywords
from pymtp.openai.request_body import (
    CHAT,
    TEXT,
    excludes_reasoning,
    read_generate_request,
    text_prompts,
    unknown_fields,
)
from pymtp.openai.response_body import ChatCompletion, TextCompletion, build_response
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.errors import stream_error_encoder
from pymtp.server.http.json_response import AsciiJSONResponse, EncodedJSONResponse, encode_pieces
from pymtp.server.http.left_out import note_left_out
from pymtp.server.http.response_schema import endpoint_responses, ignored_fields_header, ignored_header
from pymtp.server.http.sse import DONE, EventStream, run_until_disconnect
from pymtp.server.image_parts import ignored_details
from pymtp.server.openai.types import ChatChunk, ChatRequest, CompletionRequest
from pymtp.server.service import Admission, RunningRequest, Service

router = APIRouter(tags=["OpenAI"])
_TOKEN_LEVEL = 5  # where an answer has the log-probabilities of its tokens: choices[i].logprobs.content[j]


@router.post(CHAT, response_model=None, responses=endpoint_responses(ChatCompletion, ChatChunk))
async def chat_completions(request: Request, body: ChatRequest, service: ServiceDep) -> Response:
    """Generate one or several completions of a chat."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    generate_request = read_generate_request(CHAT, fields, service.sampling)
    unknown = unknown_fields(CHAT, fields if generate_request.stream else {**fields, "verbose": None})
    ignored = ignored_header([*unknown, *ignored_details("messages", fields["messages"])])
    if not generate_request.stream:
        work = _response(CHAT, service, [generate_request], fields, ignored)
        return await run_until_disconnect(request.receive, work)
    stack = AsyncExitStack()
    running = await stack.enter_async_context(service.run_request(generate_request))
    return EventStream(_chat_events(service, running, stack, fields), stream_error_encoder(CHAT), ignored)


async def _chat_events(
    service: Service, running: RunningRequest, stack: AsyncExitStack, fields: dict[str, Any]
) -> AsyncIterator[bytes]:
    options = fields.get("stream_options") or {}
    n = fields.get("n") or 1
    chunks = ChatChunks(
        service.llm.llm.model,
        fields.get("model") or service.model_name,
        n,
        include_usage=bool(options.get("include_usage")),
        origins=bool((fields.get("pymtp") or {}).get("origins")),
        exclude_reasoning=excludes_reasoning(fields),
    )
    n_unfinished = n
    async with stack:
        if fields.get("return_progress"):
            async for progress in running.prompt_progress():
                yield chunks.progress(progress)
        async for delta in running:
            chunk = chunks.chunk(delta, running.stats(delta.index) if fields.get("timings_per_token") else None)
            if delta.reason is not None:
                n_unfinished -= 1
                chunk += chunks.end(delta, None if n_unfinished else running.completions)
            if chunk:
                yield chunk
        yield chunks.usage([running.completions]) + DONE


@router.post(TEXT, response_model=None, responses=endpoint_responses(TextCompletion, TextCompletion))
async def completions(request: Request, body: CompletionRequest, service: ServiceDep) -> Response:
    """Generate completions of one or several prompts."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    ignored = ignored_fields_header(TEXT, fields)
    prompts = text_prompts(fields)

    def read() -> GenerateRequest:  # once for all prompts, which may be megabytes large
        return read_generate_request(TEXT, fields | {"prompt": ""}, service.sampling)

    first = await service.prepare(read) if has_rule(fields) else read()
    note_left_out(left_out_keywords(first, None))
    requests = [replace(first, prompt=prompt) for prompt in prompts]
    if not requests[0].stream:
        return await run_until_disconnect(request.receive, _response(TEXT, service, requests, fields, ignored))
    return EventStream(_text_events(service, requests, fields), stream_error_encoder(TEXT), ignored)


T = TypeVar("T")
OpenPrompt = AbstractAsyncContextManager[RunningRequest]


def admit_prompts(service: Service, n_prompts: int, n: int) -> AbstractContextManager[Admission]:
    """Admit an HTTP request of several prompts with n completions each: see `Service.admit`."""
    return service.admit(n * n_prompts, n * max(1, service.llm.llm.context.n_seq_max // n))


@asynccontextmanager
async def run_prompts(
    service: Service,
    requests: Sequence[GenerateRequest],
    follow: Callable[[int, OpenPrompt], Coroutine[Any, Any, T]],
    admission: Admission | None = None,
) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Run all prompts of a request, and cancel those that still run when the context is left.

    No more prompts run at the same time than fit into the slots with their n completions each. Further prompts wait
    outside the engine's queue, so that other requests can run between the prompts.

    follow: called with the index of a prompt and the context that runs the prompt.
    admission: that of `admit_prompts`; None admits the request.

    Raises QueueFullError.
    """
    n = requests[0].params.n
    with nullcontext(admission) if admission else admit_prompts(service, len(requests), n) as admission:
        slots = asyncio.Semaphore(admission.n_places // n)

        @asynccontextmanager
        async def run(request: GenerateRequest) -> AsyncIterator[RunningRequest]:
            async with slots, service.run_request(request, admission) as running:
                yield running

        tasks = [asyncio.create_task(follow(i, run(request))) for i, request in enumerate(requests)]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _response(
    url: str,
    service: Service,
    requests: Sequence[GenerateRequest],
    fields: dict[str, Any],
    headers: dict[str, str],
) -> Response:
    async def follow(i: int, prompt: OpenPrompt) -> list[Output]:
        async with prompt as running:
            return await running.outputs()

    async with run_prompts(service, requests, follow) as tasks:
        outputs = await asyncio.gather(*tasks)

    def build() -> ChatCompletion | TextCompletion:
        return build_response(url, fields, outputs, service.llm.llm.model, service.model_name)

    if requests[0].params.logprobs is None:
        return AsciiJSONResponse(build(), headers=headers)
    # on a thread: log-probabilities can take seconds
    return EncodedJSONResponse(await asyncio.to_thread(lambda: encode_pieces(build(), _TOKEN_LEVEL)), headers=headers)


async def _text_events(
    service: Service, requests: Sequence[GenerateRequest], fields: dict[str, Any]
) -> AsyncIterator[bytes]:
    # The queue holds only one delta: while the client is slow, the pieces of a prompt are joined to fewer deltas.
    queue: asyncio.Queue[tuple[int, CompletionDelta | PromptProgress, RunningRequest] | Exception] = asyncio.Queue(1)

    async def follow(i: int, prompt: OpenPrompt) -> None:
        try:
            async with prompt as running:
                if fields.get("return_progress"):
                    async for progress in running.prompt_progress():
                        await queue.put((i, progress, running))
                async for delta in running:
                    await queue.put((i, delta, running))
        except Exception as error:
            await queue.put(error)

    chunks = TextChunks(service.llm.llm.model, service.model_name, fields)
    n_unfinished = [requests[0].params.n] * len(requests)
    done: list[list[Completion]] = [[] for _ in requests]
    async with run_prompts(service, requests, follow):
        while any(n_unfinished):
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            i, delta, running = item
            if isinstance(delta, PromptProgress):
                yield chunks.progress(i, delta)
                continue
            n_unfinished[i] -= delta.reason is not None
            if not n_unfinished[i]:
                done[i] = running.completions
            last = None if any(n_unfinished) else [one for completions in done for one in completions]
            stats = running.stats(delta.index) if fields.get("timings_per_token") else None
            build = partial(chunks.chunk, i, delta, last, stats, running.echo_logprobs)
            # on a thread: the log-probabilities of a prompt can take seconds
            if chunk := build() if requests[0].params.prompt_logprobs is None else await asyncio.to_thread(build):
                yield chunk
    yield chunks.usage(done) + DONE
