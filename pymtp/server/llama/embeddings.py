"""The routes of /v1/embeddings, in OpenAI's form, and of /embeddings and /embedding, in that of llama.cpp's server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from pymtp.engine.embedder import Pooling, normalized
from pymtp.engine.image_encoder import NO_IMAGES, PromptImages
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.llm import LLM
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.json_response import EncodedJSONResponse, encode_json, encode_list
from pymtp.server.http.response_schema import error_responses, ignored_header
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.llama.read import (
    ImageContent,
    prompt_names,
    prompt_with_images,
    read_images,
    read_prompts,
    tokenize_prompt,
)
from pymtp.server.llama.types import MixedPrompt, PromptObject, Text
from pymtp.server.openai.types import FLOAT_AS_INT, MAX_PROMPTS, FailFastList, RequestModel, UserPart
from pymtp.server.service import Service

router = APIRouter()
MAX_VALUES = 2**24  # numbers in an answer with the vectors of all tokens; each takes about 20 bytes of JSON


class ContentObject(RequestModel):
    """A text, with images, in the form of a message's content."""

    content: FailFastList[UserPart]


OneInput = Text | PromptObject | ContentObject | MixedPrompt
Inputs = OneInput | Annotated[FailFastList[OneInput], Field(max_length=MAX_PROMPTS)]


class EmbeddingFields(RequestModel):
    """The fields of all paths of embeddings."""

    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1), FLOAT_AS_INT] | None = Field(
        None, description="Cut the embeddings to this length, and scale them to length 1 again."
    )
    pooling: Literal["last", "mean"] | None = Field(
        None, description="last: the hidden state of the last token; mean: the mean over all tokens."
    )
    user: str | None = None
    embd_normalize: Literal[2] | None = Field(None, description="2: Euclidean length 1, which embeddings always have.")


class EmbeddingRequest(EmbeddingFields):
    """One or several texts whose embeddings are computed, as for OpenAI's API."""

    input: Inputs = Field(description="A text, token ids, a list of both, an object, or a list of these.")


class NativeEmbeddingRequest(EmbeddingFields):
    """The same for llama.cpp's server, where the texts may also be `content`."""

    input: Inputs | None = None
    content: Inputs | None = Field(None, description="llama.cpp's name of input.")


class EmbeddingData(TypedDict):
    """An embedding: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(TypedDict):
    object: Literal["list"]
    model: str
    data: list[EmbeddingData]
    usage: EmbeddingUsage


class NativeEmbedding(TypedDict):
    """An embedding as llama.cpp's server answers it: a list of one vector; with --pooling none, of one a token."""

    index: int
    embedding: list[list[float]]


@router.post(
    "/v1/embeddings",
    tags=["OpenAI"],
    response_model=None,
    responses={200: {"model": EmbeddingResponse}, **error_responses()},
)
async def embeddings(request: Request, body: EmbeddingRequest, service: ServiceDep) -> Response:
    """Compute the embeddings of texts."""
    fields = body.model_dump(exclude_unset=True)
    pooling = service.pooling(body.pooling)
    vectors, n_tokens = await _embed(request, service, "input", fields["input"], body, pooling)
    data = (
        EmbeddingData(object="embedding", index=i, embedding=_encoded(vector, body.encoding_format))
        for i, vector in enumerate(vectors)
    )
    encoded = await asyncio.to_thread(encode_list, data)
    usage = encode_json(EmbeddingUsage(prompt_tokens=n_tokens, total_tokens=n_tokens))
    model = encode_json(body.model or service.model_name)
    return EncodedJSONResponse(
        f'{{"object":"list","model":{model},"data":{encoded},"usage":{usage}}}',
        headers=ignored_header(body.model_extra or ()),
    )


_NATIVE: Any = {200: {"model": list[NativeEmbedding] | EmbeddingResponse}, **error_responses()}


@router.post("/embedding", tags=["llama.cpp"], response_model=None, responses=_NATIVE)
@router.post("/embeddings", tags=["llama.cpp"], response_model=None, responses=_NATIVE)
async def native_embeddings(request: Request, body: NativeEmbeddingRequest, service: ServiceDep) -> Response:
    """Compute the embeddings of texts. With a model's name, which OpenAI's clients send, answer as /v1/embeddings."""
    fields = body.model_dump(exclude_unset=True)
    name = "content" if fields.get("input") is None else "input"
    if fields.get(name) is None:
        raise InvalidRequestError('give a text as "input" or "content"', "input")
    if body.model is not None and name == "input":
        return await embeddings(request, EmbeddingRequest.model_validate(fields), service)
    has_pooling = body.pooling is not None or service.settings.pooling != "none"
    if not has_pooling and body.dimensions is not None:
        raise InvalidRequestError("dimensions cannot be combined with --pooling none", "dimensions")
    pooling = service.pooling(body.pooling) if has_pooling else None
    vectors, _ = await _embed(request, service, name, fields[name], body, pooling)

    def encode() -> str:
        answers = []
        for i, vector in enumerate(vectors):
            rows = encode_list(row.tolist() for row in np.atleast_2d(vector))
            answers.append(f'{{"index":{i},"embedding":{rows}}}')
        return f"[{','.join(answers)}]"

    return EncodedJSONResponse(await asyncio.to_thread(encode), headers=ignored_header(body.model_extra or ()))


async def _embed(
    request: Request, service: Service, name: str, given: Any, body: EmbeddingFields, pooling: Pooling | None
) -> tuple[list[NDArray[np.float32]], int]:
    """Return the embeddings of the inputs of a body, and their number of tokens.

    name: the field of the inputs. pooling: see Service.embed.
    """
    service.check_model(body.model)
    llm = service.llm.llm
    if body.dimensions is not None and body.dimensions > llm.model.n_embd:
        raise InvalidRequestError(f"dimensions must be at most {llm.model.n_embd}, the model's own", "dimensions")
    asked = read_prompts(given, name)
    names = prompt_names(asked, given, name)
    with service.admit(len(asked), 1) as admission:
        async with read_images(request, service, asked, names, admission) as inputs:
            read = await service.prepare(lambda: [read_input(llm, *one) for one in zip(inputs, names, strict=True)])
            prompts = [one.tokens for one in read]
            if pooling is None and (n := sum(map(len, prompts)) * llm.model.n_embd) > MAX_VALUES:
                raise InvalidRequestError(
                    f"{name}: the vectors of all tokens have {n} numbers, and a request may have {MAX_VALUES}: send "
                    "less",
                    name,
                )
            work = service.embed(prompts, pooling, admission, [one.images for one in read])
            vectors = await run_until_disconnect(request.receive, work)
    if body.dimensions is not None:
        vectors = [normalized(vector[: body.dimensions]) for vector in vectors]
    return vectors, sum(map(len, prompts))


class EmbeddingInput(NamedTuple):
    """The tokens of an input, and its images."""

    tokens: Sequence[int]
    images: PromptImages = NO_IMAGES


def read_input(llm: LLM, given: Any, name: str) -> EmbeddingInput:
    """Read an input of a body. Raises InvalidRequestError, with its name, for one that is refused."""
    try:
        if isinstance(given, ImageContent):
            with_images = prompt_with_images(given, llm)
            return EmbeddingInput(with_images.tokens, llm._embedding_images(with_images))
        if isinstance(given, dict) and "prompt_string" not in given:
            given = "".join(part["text"] for part in given["content"])
        prompt = given if isinstance(given, str) else tokenize_prompt(given, llm.model, llm.context.n_ctx)
        return EmbeddingInput(llm._embedding_tokens(prompt))
    except ContextFullError as error:
        raise ContextFullError(f"{name} is too large: {error}", name) from error
    except InvalidRequestError as error:
        if (error.param or "").startswith(name):  # an image, which it names
            raise
        raise InvalidRequestError(f"{name}: {error}", name) from error


def _encoded(vector: NDArray[np.float32], encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
