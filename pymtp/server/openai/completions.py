"""The route of /v1/completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.chat import ContentDelta
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest, Output
from pymtp.openai.request_body import TEXT, read_generate_request, text_prompts
from pymtp.openai.response_body import build_response, draft_stats, prompt_text, response_head, text_logprobs, usage
from pymtp.server.admission import Admission
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.errors import stream_error_encoder
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import endpoint_responses, ignored_fields_header
from pymtp.server.http.sse import DONE, EventStream, run_with_cancellation
from pymtp.server.openai.completion_types import CompletionRequest, TextCompletion
from pymtp.server.service import Delta, Service

router = APIRouter(tags=["OpenAI"])


@router.post(TEXT, response_model=None, responses=endpoint_responses(TextCompletion, TextCompletion))
async def completions(request: Request, body: CompletionRequest, service: ServiceDep) -> Response:
    """Generate completions of one or several prompts."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    ignored = ignored_fields_header(TEXT, fields)
    prompts = text_prompts(fields)
    # The fields are read once for all prompts, and on a thread, because compiling a schema takes long.
    first = await service.prepare(
        lambda: read_generate_request(TEXT, fields | {"prompt": prompts[0]}, service.sampling)
    )
    requests = [replace(first, prompt=prompt) for prompt in prompts]
    if fields.get("echo") and fields.get("logprobs") is not None:
        raise InvalidRequestError("echo and logprobs cannot be combined, because prompts have no log-probabilities")
    if not requests[0].stream:
        return AsciiJSONResponse(
            await run_with_cancellation(request, _whole_completion(service, requests, fields)), headers=ignored
        )
    return EventStream(
        _events(service, _RunningPrompts(service, requests), fields), stream_error_encoder(TEXT), ignored
    )


async def _whole_completion(
    service: Service, requests: Sequence[GenerateRequest], fields: dict[str, Any]
) -> dict[str, Any]:
    n = requests[0].params.n
    slots = _slot_semaphore(service, n)
    with service.admit(n * len(requests)) as admission:

        async def run(generate_request: GenerateRequest) -> list[Output]:
            async with slots, service.run_request(generate_request, admission) as running:
                return await running.outputs()

        tasks = [asyncio.create_task(run(generate_request)) for generate_request in requests]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return build_response(TEXT, fields, outputs, service.llm.llm.model, service.model_name)


def _slot_semaphore(service: Service, n: int) -> asyncio.Semaphore:
    """Return a semaphore that limits the prompts of one request that run at the same time.

    The limit is the number of prompts with n completions each that fit into the slots. Further prompts wait outside the
    engine's queue, so that other requests can run between the prompts.
    """
    return asyncio.Semaphore(max(1, service.llm.llm.context.n_seq_max // n))


class _RunningPrompts:
    """The prompts of one streaming request, which run concurrently."""

    def __init__(self, service: Service, requests: Sequence[GenerateRequest]) -> None:
        self._service, self._requests = service, requests
        self._done: list[list[Completion]] = [[] for _ in requests]

    @property
    def done(self) -> list[list[Completion]]:
        """Return the completions of each prompt; complete after the last delta."""
        return self._done

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield pairs (index of a prompt, delta) until all prompts have finished. Raises the first error of any."""
        # The queue holds only one delta: while the client is slow, the pieces of a prompt are joined to fewer deltas.
        queue: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue(1)
        n = self._requests[0].params.n
        slots = _slot_semaphore(self._service, n)

        async def follow(i: int, generate_request: GenerateRequest, admission: Admission) -> None:
            n_unfinished = n
            try:
                async with slots, self._service.run_request(generate_request, admission) as running:
                    async for delta in running:
                        n_unfinished -= delta.finish_reason is not None
                        if not n_unfinished:
                            self._done[i] = running.completions
                        await queue.put((i, delta))
            except Exception as error:
                await queue.put((i, error))

        n_unfinished = n * len(self._requests)
        with self._service.admit(n_unfinished) as admission:
            tasks = [
                asyncio.create_task(follow(i, generate_request, admission))
                for i, generate_request in enumerate(self._requests)
            ]
            try:
                while n_unfinished:
                    i, item = await queue.get()
                    if isinstance(item, Exception):
                        raise item
                    n_unfinished -= item.finish_reason is not None
                    yield i, item
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _events(service: Service, prompts: _RunningPrompts, fields: dict[str, Any]) -> AsyncIterator[bytes]:
    chunks = _CompletionChunks(service, fields)
    async with aclosing(prompts.deltas()) as deltas:
        async for i, delta in deltas:
            if chunk := chunks.chunk(i, delta, prompts):
                yield chunk
    yield chunks.usage(prompts) + DONE


class _CompletionChunks:
    """The writer of the chunks of one stream."""

    def __init__(self, service: Service, fields: dict[str, Any]) -> None:
        self._model = service.llm.llm.model
        self._n = fields.get("n") or 1
        self._prompts = text_prompts(fields)
        self._echo = bool(fields.get("echo"))
        self._include_usage = bool((fields.get("stream_options") or {}).get("include_usage"))
        self._begin = (
            b"data: " + json.dumps(response_head(TEXT, fields.get("model") or service.model_name)).encode()[:-1]
        )
        self._lengths: dict[int, int] = {}
        self._n_unfinished = self._n * len(self._prompts)

    def chunk(self, i: int, delta: Delta, prompts: _RunningPrompts) -> bytes:
        """Return the chunk of a delta of prompt i, or b"" if it has nothing new."""
        index = i * self._n + delta.index
        start = self._lengths.get(index, 0)
        text = "".join(event.text for event in delta.events if isinstance(event, ContentDelta))
        if self._echo and index not in self._lengths:
            text = prompt_text(self._prompts[i], self._model) + text
        tokens = [token for piece in delta.pieces for token in piece.logprobs or ()]
        is_last = delta.finish_reason is not None
        self._lengths[index] = start + len(text)
        self._n_unfinished -= is_last
        if not text and not tokens and not is_last:
            return b""
        logprobs = text_logprobs(tokens, self._model, start) if tokens else None
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish_reason}
        extension = (
            b', "usage": null' if self._include_usage else b"" if self._n_unfinished else _stats_extension(prompts)
        )
        return self._begin + b', "choices": [' + json.dumps(choice).encode() + b"]" + extension + b"}\n\n"

    def usage(self, prompts: _RunningPrompts) -> bytes:
        """Return the last chunk, which has the usage; b"" unless include_usage is set."""
        if not self._include_usage:
            return b""
        encoded = json.dumps(usage(prompts.done)).encode()
        return self._begin + b', "choices": [], "usage": ' + encoded + _stats_extension(prompts) + b"}\n\n"


def _stats_extension(prompts: _RunningPrompts) -> bytes:
    return (
        b', "pymtp": ' + json.dumps(draft_stats([completion for done in prompts.done for completion in done])).encode()
    )
