"""/tokenize and /detokenize, in llama.cpp's form and in vLLM's."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from pymtp.errors import InvalidRequestError
from pymtp.server.current import CurrentService
from pymtp.server.openai_types import Body, ListOf, TokenId
from pymtp.server.responses_of import failures_of

router = APIRouter(tags=["llama.cpp"])


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
    tokens: ListOf[TokenId]


class Detokenized(BaseModel):
    """content: llama.cpp's name; prompt: vLLM's, the same."""

    content: str
    prompt: str


@router.post("/tokenize", responses=failures_of())
async def tokenize(body: TokenizeRequest, service: CurrentService) -> Tokens:
    """The tokens of a text. Special tokens written out in it are taken as such."""
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InvalidRequestError('a text must come, as "content" or "prompt"')
    model = service.llm.llm.model
    special = bool(body.add_special or body.add_special_tokens)
    tokens = await service.llm.in_thread(lambda: model.tokenize(text, add_special=special))
    return Tokens(
        tokens=[TokenPiece(id=token, piece=_piece(model.token_bytes(token))) for token in tokens]
        if body.with_pieces
        else tokens,
        count=len(tokens),
        max_model_len=service.llm.llm.context.n_ctx,
        token_strs=[model.token_text(token) for token in tokens] if body.return_token_strs else None,
    )


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


@router.post("/detokenize", responses=failures_of())
async def detokenize(body: DetokenizeRequest, service: CurrentService) -> Detokenized:
    """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
    text = await service.llm.in_thread(lambda: service.llm.llm.model.detokenize(body.tokens))
    return Detokenized(content=text, prompt=text)
