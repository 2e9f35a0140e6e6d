"""/tokenize and /detokenize, in llama.cpp's form and in vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.server.dependencies import CurrentService
from pymtp.server.http.ascii_json import AsciiJson
from pymtp.server.http.responses_of import failures_of
from pymtp.server.openai.types import Body, ListOf, TokenId
from pymtp.validation import whole_text

router = APIRouter(tags=["llama.cpp"])
MOST = 2**20  # far more than any prompt has: tokens, or characters of a text unless the context is very long


class TokenizeRequest(Body):
    """content: llama.cpp's name; prompt: vLLM's."""

    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = Field(None, description="Whether the model's begin of text comes first.")
    add_special_tokens: bool | None = Field(None, description="vLLM's name.")
    with_pieces: bool | None = Field(None, description="Tokens are objects, with their text.")
    return_token_strs: bool | None = None


class TokenPiece(BaseModel):
    id: int
    piece: str | list[int] = Field(description="Text; bytes where they are none.")


class Tokens(BaseModel):
    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(Body):
    tokens: Annotated[ListOf[TokenId], Field(max_length=MOST)]
    special: bool | None = Field(None, description="Whether control tokens come as they are written.")
    skip_special_tokens: bool | None = Field(None, description="SGLang's name, and the opposite.")


class Detokenized(BaseModel):
    """content: llama.cpp's name; prompt: vLLM's, the same."""

    content: str
    prompt: str


@router.post("/tokenize", response_model=None, responses={200: {"model": Tokens}, **failures_of()})
async def tokenize(body: TokenizeRequest, service: CurrentService) -> Response:
    """The tokens of a text. Special tokens written out in it are taken as such."""
    return await service.prepare(lambda: _tokens(body, service.llm.llm))


@router.post("/detokenize", response_model=None, responses={200: {"model": Detokenized}, **failures_of()})
async def detokenize(body: DetokenizeRequest, service: CurrentService) -> Response:
    """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
    return await service.prepare(lambda: _text(body, service.llm.llm))


# Off the event loop, the JSON too: there may be a million tokens. Nothing looks at them one by one as pydantic would.


def _tokens(body: TokenizeRequest, llm: LLM) -> Response:
    if body.content is not None and body.prompt is not None:
        raise InvalidRequestError('one text must come, as "content" or "prompt", not both', "prompt")
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InvalidRequestError('a text must come, as "content" or "prompt"', "content")
    text = whole_text(text)
    if len(text) > (most := max(64 * llm.context.n_ctx, MOST)):
        raise InvalidRequestError(f"{len(text)} characters are more than the {most} that are taken at once")
    tokens = llm.model.tokenize(text, add_special=bool(body.add_special or body.add_special_tokens))
    told: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": llm.context.n_ctx}
    if body.with_pieces:
        told["tokens"] = [{"id": token, "piece": _piece(llm.model.token_bytes(token))} for token in tokens]
    told["token_strs"] = [llm.model.token_text(token) for token in tokens] if body.return_token_strs else None
    return AsciiJson(told)


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _text(body: DetokenizeRequest, llm: LLM) -> Response:
    if body.special is not None and body.skip_special_tokens is not None:
        raise InvalidRequestError('"special" and "skip_special_tokens" say the same: one may come', "special")
    special = body.special if body.skip_special_tokens is None else not body.skip_special_tokens
    text = llm.model.detokenize(body.tokens, special=bool(special))
    return AsciiJson({"content": text, "prompt": text})
