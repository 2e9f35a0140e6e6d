"""The routes of /completion and /infill, in the form of llama.cpp's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Discriminator, Tag

from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.request import Completion
from pymtp.openai.answer_rules import has_rule
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.infill import first_tokens, infill_tokens, last_tokens, read_fim_tokens
from pymtp.openai.timings import prompt_progress
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.errors import stream_error_encoder
from pymtp.server.http.json_response import EncodedJSONResponse, encode_pieces
from pymtp.server.http.response_schema import endpoint_responses, ignored_header
from pymtp.server.http.sse import EventStream, run_until_disconnect
from pymtp.server.llama.probabilities import check_post_sampling
from pymtp.server.llama.read import (
    NativeOptions,
    ignored_names,
    is_plain,
    prompt_names,
    prompt_parts,
    read_images,
    read_native,
    read_prompts,
    with_prompt,
)
from pymtp.server.llama.types import InfillRequest, NativeChunk, NativeCompletion, NativeRequest
from pymtp.server.llama.write import NativeWriter, check_settings
from pymtp.server.openai.routes import OpenPrompt, admit_prompts, run_prompts
from pymtp.server.openai.routes import completions as openai_completions
from pymtp.server.openai.types import CompletionRequest
from pymtp.server.service import Admission, RunningRequest, Service

router = APIRouter(tags=["llama.cpp"])
# Both OpenAI's clients without /v1 in their base URL and llama.cpp's send /completions. OpenAI's always name a model.
AnyCompletionRequest = Annotated[
    Annotated[NativeRequest, Tag("native")] | Annotated[CompletionRequest, Tag("openai")],
    Discriminator(lambda body: "openai" if isinstance(body, dict) and body.get("model") is not None else "native"),
]
_RESPONSES = endpoint_responses(cast(type[Any], NativeCompletion | list[NativeCompletion]), NativeChunk)


@router.post("/completion", response_model=None, responses=_RESPONSES)
async def completion(request: Request, body: NativeRequest, service: ServiceDep) -> Response:
    """Generate completions of one or several prompts; for several, the answer is a list."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    llm = service.llm.llm
    prompts = read_prompts(fields["prompt"])
    names = prompt_names(prompts, fields["prompt"], "prompt")

    def read() -> tuple[GenerateRequest, NativeOptions]:
        return read_native(fields, llm.model, service.sampling)

    is_slow = has_rule(fields) or fields.get("logit_bias")  # texts with a bias are tokenized
    first, options = await service.prepare(read) if is_slow else read()
    _check(first, options, len(prompts))  # before images are fetched
    async with AsyncExitStack() as stack:
        admission = stack.enter_context(admit_prompts(service, len(prompts), first.params.n))
        prompts = await stack.enter_async_context(read_images(request, service, prompts, names, admission))

        def with_prompts() -> list[GenerateRequest]:
            return [with_prompt(first, prompt, llm, options) for prompt in prompts]

        is_fast = not options.only_prompt and all(map(is_plain, prompts))
        requests = with_prompts() if is_fast else await service.prepare(with_prompts)
        as_list = isinstance(fields["prompt"], list)
        response = await _respond(request, service, requests, options, fields, admission, as_list=as_list)
        if isinstance(response, EventStream):
            response.resources = stack.pop_all()
        return response


@router.post("/completions", include_in_schema=False, response_model=None)
async def completions(request: Request, body: AnyCompletionRequest, service: ServiceDep) -> Response:
    """Answer a request of OpenAI's API, which names a model, or else one of llama.cpp's server."""
    if isinstance(body, CompletionRequest):
        return await openai_completions(request, body, service)
    return await completion(request, body, service)


@router.post("/infill", response_model=None, responses=_RESPONSES)
async def infill(request: Request, body: InfillRequest, service: ServiceDep) -> Response:
    """Fill in the text between a prefix and a suffix."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    llm = service.llm.llm
    special, n_ctx = read_fim_tokens(llm.model), llm.context.n_ctx

    def read() -> tuple[list[GenerateRequest], NativeOptions]:
        first, options = read_native(fields, llm.model, service.sampling)
        prompt = infill_tokens(
            llm.model,
            special,
            last_tokens(llm.model, prompt_parts(fields["input_prefix"]), n_ctx),
            first_tokens(llm.model, prompt_parts(fields["input_suffix"]), n_ctx),
            begun=fields.get("prompt") or "",
            files=[(file.get("filename") or "", file["text"]) for file in fields.get("input_extra") or ()],
            n_ctx=n_ctx,
            n_predict=first.params.max_tokens,
        )
        return [with_prompt(first, prompt, llm, options)], options

    requests, options = await service.prepare(read)
    _check(requests[0], options, 1)
    return await _respond(request, service, requests, options, fields)


def _check(request: GenerateRequest, options: NativeOptions, n_prompts: int) -> None:
    """Raise InvalidRequestError for options that cannot be answered."""
    if options.post_sampling:
        check_post_sampling(request.params)
    check_settings(request.params, options, n_prompts * request.params.n)


async def _respond(
    request: Request,
    service: Service,
    requests: Sequence[GenerateRequest],
    options: NativeOptions,
    fields: dict[str, Any],
    admission: Admission | None = None,
    *,
    as_list: bool = False,
) -> Response:
    headers = ignored_header(ignored_names(fields))
    writer = NativeWriter(requests[0], options, service.llm.llm.model, fields.get("model") or service.model_name)
    if options.stream:
        events = _events(service, requests, options, writer, admission)
        return EventStream(events, stream_error_encoder(request.url.path), headers)
    work = _completions(service, requests, options.max_predict_seconds, admission)
    done = await run_until_disconnect(request.receive, work)

    def build() -> str:
        answers = [writer.answer(i, j, one) for i, several in enumerate(done) for j, one in enumerate(several)]
        # a list of numbers and texts is one prompt
        single = len(answers) == 1 and not (as_list and not is_one_prompt(fields["prompt"]))
        # the pieces are tokens: [i].completion_probabilities[j]
        return encode_pieces(answers[0], 2) if single else encode_pieces(answers, 3)

    return EncodedJSONResponse(await asyncio.to_thread(build), headers=headers)


def is_one_prompt(prompt: object) -> bool:
    """Return whether the prompt of a body is one prompt, and no list of prompts."""
    return len(read_prompts(prompt)) == 1 and read_prompts(prompt)[0] is prompt


async def _completions(
    service: Service, requests: Sequence[GenerateRequest], max_seconds: float, admission: Admission | None
) -> list[list[Completion]]:
    async def follow(i: int, prompt: OpenPrompt) -> list[Completion]:
        async with prompt as running:
            async for _ in _within_time(running, max_seconds):
                pass
            return running.completions

    async with run_prompts(service, requests, follow, admission) as tasks:
        return await asyncio.gather(*tasks)


async def _within_time(running: RunningRequest, max_seconds: float) -> AsyncIterator[CompletionDelta]:
    """Yield deltas. End the completions when one has a second line and `max_seconds` have passed since its first token.

    max_seconds: 0 for no limit.
    """
    loop, start, has_line = asyncio.get_running_loop(), 0.0, False
    async for delta in running:
        yield delta
        start = start or loop.time()
        has_line |= any("\n" in piece.text for piece in delta.pieces)
        if max_seconds and has_line and loop.time() - start > max_seconds:
            running.stop()


async def _events(
    service: Service,
    requests: Sequence[GenerateRequest],
    options: NativeOptions,
    writer: NativeWriter,
    admission: Admission | None,
) -> AsyncIterator[bytes]:
    # pairs of events, and whether they end a completion; while the client is slow, pieces are joined to fewer events
    queue: asyncio.Queue[tuple[bytes, bool] | Exception] = asyncio.Queue(1)

    async def follow(i: int, prompt: OpenPrompt) -> None:
        try:
            async with prompt as running:
                if options.return_progress:
                    async for progress in running.prompt_progress():
                        await queue.put((writer.progress(i, prompt_progress(progress), running.stats(0)), False))
                async for delta in _within_time(running, options.max_predict_seconds):
                    events = writer.chunks(i, delta, running.stats(delta.index))
                    if delta.reason is not None:
                        events += writer.last(i, delta.index, running.completion(delta.index))
                    await queue.put((events, delta.reason is not None))
        except Exception as error:
            await queue.put(error)

    n_unfinished = len(requests) * requests[0].params.n
    async with run_prompts(service, requests, follow, admission):
        while n_unfinished:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            events, is_last = item
            n_unfinished -= is_last
            if events:
                yield events
