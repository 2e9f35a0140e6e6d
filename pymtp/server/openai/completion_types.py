"""Request and response models of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pymtp.server.openai.types import (
    FLOAT_AS_INT,
    VALID_TEXT,
    CompletionFields,
    DraftingStats,
    FailFastList,
    ResponseModel,
    TokenId,
    TopLogprobs,
    Usage,
)

MAX_PROMPTS = 2048
Text = Annotated[str, StringConstraints(min_length=1), VALID_TEXT]
Tokens = Annotated[FailFastList[TokenId], Field(min_length=1)]


class CompletionRequest(CompletionFields):
    """One or several prompts that the model continues."""

    prompt: (
        Text
        | Tokens
        | Annotated[FailFastList[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[FailFastList[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = Field(description="A text, a list of token ids, a list of texts, or a list of lists of token ids.")
    echo: bool | None = Field(None, description="Return the prompt before the completion.")
    logprobs: TopLogprobs | None = None
    suffix: None = Field(None, description="Not supported.")
    best_of: Annotated[int, Field(ge=1), FLOAT_AS_INT] | None = Field(None, description="At most n.")


class CompletionLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: CompletionLogprobs | None


class TextCompletion(ResponseModel):
    """A whole completion, or a chunk of a stream: a chunk has only new text, and only the last chunk has `usage`."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    pymtp: DraftingStats | None = None
