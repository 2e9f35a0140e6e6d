"""The routes of /tokenize and /detokenize, which accept the fields of both llama.cpp's and vLLM's server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses, ignored_header, unknown_names
from pymtp.server.openai.types import FailFastList, RequestModel, TokenId
from pymtp.validation import replace_surrogates

router = APIRouter(tags=["llama.cpp"])
# The most tokens or characters of an input, far more than prompts have; the limit is higher for very long contexts.
MAX_INPUT = 2**20


class TokenizeRequest(RequestModel):
    """A text to be tokenized: `content` as for llama.cpp's server, or `prompt` as for vLLM."""

    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = Field(None, description="Begin with the model's BOS token.")
    add_special_tokens: bool | None = Field(None, description="vLLM's name of add_special.")
    with_pieces: bool | None = Field(None, description="Return tokens as objects with their text.")
    return_token_strs: bool | None = None


class TokenPiece(BaseModel):
    id: int
    piece: str | list[int] = Field(description="The text of the token, or the list of its bytes if they are not UTF-8.")


class TokenizeResponse(BaseModel):
    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    tokens: Annotated[FailFastList[TokenId], Field(max_length=MAX_INPUT)]
    special: bool | None = Field(None, description="Return control tokens as text.")
    skip_special_tokens: bool | None = Field(None, description="SGLang's field: the opposite of special.")


class DetokenizeResponse(BaseModel):
    """The text of tokens, twice: `content` as from llama.cpp's server, and `prompt` as from vLLM."""

    content: str
    prompt: str


@router.post("/tokenize", response_model=None, responses={200: {"model": TokenizeResponse}, **error_responses()})
async def tokenize(body: TokenizeRequest, service: ServiceDep) -> Response:
    """Tokenize a text. Text such as <|im_end|> becomes the special token."""
    return await service.prepare(lambda: _tokenize(body, service.llm.llm))


@router.post("/detokenize", response_model=None, responses={200: {"model": DetokenizeResponse}, **error_responses()})
async def detokenize(body: DetokenizeRequest, service: ServiceDep) -> Response:
    """Convert tokens to text. Bytes that are not UTF-8 become U+FFFD."""
    return await service.prepare(lambda: _detokenize(body, service.llm.llm))


# The following functions run on a thread, encode their JSON there, and avoid pydantic: a request may have a million
# tokens, which would block the event loop for long.


def _tokenize(body: TokenizeRequest, llm: LLM) -> Response:
    if body.content is not None and body.prompt is not None:
        raise InvalidRequestError('give the text as either "content" or "prompt", not both', "prompt")
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InvalidRequestError('give a text as "content" or "prompt"', "content")
    text = replace_surrogates(text)
    if len(text) > (limit := max(64 * llm.context.n_ctx, MAX_INPUT)):
        raise InvalidRequestError(f"the text has {len(text)} characters, more than the limit of {limit}")
    tokens = llm.model.tokenize(text, add_special=bool(body.add_special or body.add_special_tokens))
    response: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": llm.context.n_ctx}
    if body.with_pieces:
        response["tokens"] = [{"id": token, "piece": _text_or_bytes(llm.model.token_bytes(token))} for token in tokens]
    response["token_strs"] = [llm.model.token_text(token) for token in tokens] if body.return_token_strs else None
    return AsciiJSONResponse(response, headers=ignored_header(unknown_names(body)))


def _text_or_bytes(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _detokenize(body: DetokenizeRequest, llm: LLM) -> Response:
    if body.special is not None and body.skip_special_tokens is not None:
        raise InvalidRequestError(
            'give only one of "special" and "skip_special_tokens", which mean the same', "special"
        )
    special = body.special if body.skip_special_tokens is None else not body.skip_special_tokens
    text = llm.model.detokenize(body.tokens, special=bool(special))
    return AsciiJSONResponse({"content": text, "prompt": text}, headers=ignored_header(unknown_names(body)))
