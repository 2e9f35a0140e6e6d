"""The routes of Ollama's API that generate text and embeddings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pymtp.engine.embedder import normalized
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.infill import first_tokens
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.errors import error_info
from pymtp.server.http.json_response import AsciiJSONResponse, EncodedJSONResponse, encode_json, encode_list
from pymtp.server.http.response_schema import error_responses, ignored_header
from pymtp.server.http.sse import EventStream, run_until_disconnect
from pymtp.server.ollama.models import check_model
from pymtp.server.ollama.read import ignored_names, read_chat, read_generate
from pymtp.server.ollama.types import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaErrorBody,
    OllamaGenerateRequest,
)
from pymtp.server.ollama.write import AnswerWriter, encode_line, nanoseconds
from pymtp.server.service import RunningRequest, Service

router = APIRouter(tags=["Ollama"])
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": OllamaAnswer,
        "description": "The answer; with stream, which is the default, a line for each part of it.",
    },
    **error_responses(OllamaErrorBody),
}


@router.post("/api/chat", response_model=None, responses=_RESPONSES)
async def chat(request: Request, body: OllamaChatRequest, service: ServiceDep) -> Response:
    """Generate the assistant's next message of a chat."""
    fields = body.model_dump(exclude_unset=True)
    name = check_model(service, body.model)
    writer = AnswerWriter(name, chat=True)
    ignored = ignored_header(ignored_names(fields, OllamaChatRequest.model_fields))
    if not body.messages:
        return AsciiJSONResponse(writer.loaded(), headers=ignored)
    return await _respond(request, service, read_chat(fields, service.sampling), writer, ignored)


@router.post("/api/generate", response_model=None, responses=_RESPONSES)
async def generate(request: Request, body: OllamaGenerateRequest, service: ServiceDep) -> Response:
    """Answer a prompt, fill in the text between a prompt and a suffix, or continue a text."""
    fields = body.model_dump(exclude_unset=True)
    name = check_model(service, body.model)
    writer = AnswerWriter(name, chat=False)
    ignored = ignored_header(ignored_names(fields, OllamaGenerateRequest.model_fields))
    if not body.prompt and not body.suffix and not body.images:
        return AsciiJSONResponse(writer.loaded(), headers=ignored)
    return await _respond(request, service, read_generate(fields, service.sampling), writer, ignored)


async def _respond(
    request: Request,
    service: Service,
    generate_request: GenerateRequest,
    writer: AnswerWriter,
    headers: Mapping[str, str],
) -> Response:
    async def whole() -> OllamaAnswer:
        async with service.run_request(generate_request) as running:
            (output,) = await running.outputs()
        return writer.whole(output)

    async def lines(running: RunningRequest) -> AsyncIterator[bytes]:
        async with stack:
            async for delta in running:
                if (part := writer.part(delta.events)) is not None:
                    yield encode_line(part)
            for part in writer.end(running.output(0)):
                yield encode_line(part)

    if not generate_request.stream:
        return AsciiJSONResponse(await run_until_disconnect(request.receive, whole()), headers=headers)
    stack = AsyncExitStack()
    running = await stack.enter_async_context(service.run_request(generate_request))
    return EventStream(
        lines(running),
        lambda error: encode_line({"error": error_info(error).message}),
        {**headers, "Content-Type": "application/x-ndjson"},
        keepalive=encode_line(writer.empty()),
    )


@router.post("/api/embed", response_model=None, responses=error_responses(OllamaErrorBody))
async def embed(request: Request, body: OllamaEmbedRequest, service: ServiceDep) -> Response:
    """Compute the embeddings of texts. A text beyond the context is cut, unless truncate is false."""
    name = check_model(service, body.model)
    llm, start = service.llm.llm, time.perf_counter()
    if body.dimensions is not None and body.dimensions > llm.model.n_embd:
        raise InvalidRequestError(f"dimensions must be at most {llm.model.n_embd}, the model's own", "dimensions")
    texts = [body.input] if isinstance(body.input, str) else body.input
    pooling = service.pooling()
    with service.admit(len(texts), 1) as admission:
        prompts = await service.prepare(lambda: [_tokens(llm, text, cut=body.truncate is not False) for text in texts])
        vectors = await run_until_disconnect(request.receive, service.embed(prompts, pooling, admission))
    if body.dimensions is not None:
        vectors = [normalized(vector[: body.dimensions]) for vector in vectors]
    rest = {
        "model": name,
        "total_duration": nanoseconds(time.perf_counter() - start),
        "load_duration": 0,
        "prompt_eval_count": sum(map(len, prompts)),
    }
    encoded = await asyncio.to_thread(encode_list, (vector.tolist() for vector in vectors))
    return EncodedJSONResponse(
        f'{encode_json(rest)[:-1]},"embeddings":{encoded}}}',
        headers=ignored_header(ignored_names(body.model_dump(exclude_unset=True), OllamaEmbedRequest.model_fields)),
    )


@router.post("/api/embeddings", response_model=None, responses=error_responses(OllamaErrorBody))
async def embeddings(request: Request, body: OllamaEmbeddingsRequest, service: ServiceDep) -> Response:
    """Compute the embedding of one text, in the older form of the API."""
    check_model(service, body.model)
    llm = service.llm.llm
    pooling = service.pooling()
    with service.admit(1) as admission:
        tokens = await service.prepare(lambda: _tokens(llm, body.prompt, cut=True))
        (vector,) = await run_until_disconnect(request.receive, service.embed([tokens], pooling, admission))
    ignored = ignored_names(body.model_dump(exclude_unset=True), OllamaEmbeddingsRequest.model_fields)
    return AsciiJSONResponse({"embedding": vector.tolist()}, headers=ignored_header(ignored))


def _tokens(llm: LLM, text: str, *, cut: bool) -> list[int]:
    """Return the tokens of a text, without those beyond the context if `cut`."""
    n_ctx = llm.context.n_ctx
    return llm._embedding_tokens(first_tokens(llm.model, [text], n_ctx, add_special=True)[:n_ctx] if cut else text)
