"""/tokenize and /detokenize, in the forms of llama.cpp and vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.server.dependencies import ServiceDep
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses
from pymtp.server.openai.types import FailFastList, RequestModel, TokenId
from pymtp.validation import replace_surrogates

router = APIRouter(tags=["llama.cpp"])
MAX_INPUT = 2**20  # tokens or characters, far more than any prompt has; a very long context allows longer texts


class TokenizeRequest(RequestModel):
    """content: llama.cpp's name; prompt: vLLM's."""

    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = Field(None, description="Begin with the model's BOS token.")
    add_special_tokens: bool | None = Field(None, description="vLLM's name.")
    with_pieces: bool | None = Field(None, description="Return tokens as objects with their text.")
    return_token_strs: bool | None = None


class TokenPiece(BaseModel):
    id: int
    piece: str | list[int] = Field(description="Text, or a list of bytes where they are no UTF-8.")


class TokenizeResponse(BaseModel):
    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    tokens: Annotated[FailFastList[TokenId], Field(max_length=MAX_INPUT)]
    special: bool | None = Field(None, description="Return control tokens as text.")
    skip_special_tokens: bool | None = Field(None, description="SGLang's name, and the opposite.")


class DetokenizeResponse(BaseModel):
    """content: llama.cpp's name; prompt: vLLM's, the same."""

    content: str
    prompt: str


@router.post("/tokenize", response_model=None, responses={200: {"model": TokenizeResponse}, **error_responses()})
async def tokenize(body: TokenizeRequest, service: ServiceDep) -> Response:
    """Tokenize a text. Special tokens written in it are recognized."""
    return await service.prepare(lambda: _tokenize(body, service.llm.llm))


@router.post("/detokenize", response_model=None, responses={200: {"model": DetokenizeResponse}, **error_responses()})
async def detokenize(body: DetokenizeRequest, service: ServiceDep) -> Response:
    """Detokenize; bytes that are no UTF-8 become U+FFFD."""
    return await service.prepare(lambda: _detokenize(body, service.llm.llm))


# These run on a thread, with the encoding of the JSON, and without pydantic: there may be a million tokens.


def _tokenize(body: TokenizeRequest, llm: LLM) -> Response:
    if body.content is not None and body.prompt is not None:
        raise InvalidRequestError('one text must come, as "content" or "prompt", not both', "prompt")
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InvalidRequestError('a text must come, as "content" or "prompt"', "content")
    text = replace_surrogates(text)
    if len(text) > (limit := max(64 * llm.context.n_ctx, MAX_INPUT)):
        raise InvalidRequestError(f"{len(text)} characters are more than the {limit} that are taken at once")
    tokens = llm.model.tokenize(text, add_special=bool(body.add_special or body.add_special_tokens))
    response: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": llm.context.n_ctx}
    if body.with_pieces:
        response["tokens"] = [{"id": token, "piece": _text_or_bytes(llm.model.token_bytes(token))} for token in tokens]
    response["token_strs"] = [llm.model.token_text(token) for token in tokens] if body.return_token_strs else None
    return AsciiJSONResponse(response)


def _text_or_bytes(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _detokenize(body: DetokenizeRequest, llm: LLM) -> Response:
    if body.special is not None and body.skip_special_tokens is not None:
        raise InvalidRequestError('"special" and "skip_special_tokens" say the same: one may come', "special")
    special = body.special if body.skip_special_tokens is None else not body.skip_special_tokens
    text = llm.model.detokenize(body.tokens, special=bool(special))
    return AsciiJSONResponse({"content": text, "prompt": text})
