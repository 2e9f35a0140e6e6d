"""Bodies of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pymtp.server.openai.types import WHOLE, WHOLE_TEXT, Drafting, ListOf, Out, Sampling, TokenId, TopLogprobs, Usage

MAX_PROMPTS = 2048
Text = Annotated[str, StringConstraints(min_length=1), WHOLE_TEXT]
Tokens = Annotated[ListOf[TokenId], Field(min_length=1)]


class CompletionRequest(Sampling):
    """A text that the model is to go on with."""

    prompt: (
        Text
        | Tokens
        | Annotated[ListOf[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[ListOf[Tokens], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = Field(description="Text or token ids, or several of one of these.")
    echo: bool | None = Field(None, description="The text begins with the prompt.")
    logprobs: TopLogprobs | None = None
    suffix: None = Field(None, description="Not supported.")
    best_of: Annotated[int, Field(ge=1), WHOLE] | None = Field(None, description="No more than n.")


class CompletionLogprobs(Out):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Out):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: CompletionLogprobs | None


class TextCompletion(Out):
    """An answer, or an event of a stream: there `choices` has what is new, and `usage` is in the last."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    pymtp: Drafting | None = None
