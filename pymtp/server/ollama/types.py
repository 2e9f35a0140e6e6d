"""The requests of Ollama's API as pydantic models, and its answers as typed dicts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from pymtp.server.openai.types import (
    FLOAT_AS_INT,
    MAX_PROMPTS,
    VALID_TEXT,
    AnyJson,
    FailFastList,
    JsonObject,
    Penalty,
    Probability,
    RequestModel,
    Seed,
    StopString,
    StopStrings,
)

Text = Annotated[str, VALID_TEXT]
WholeNumber = Annotated[int, Field(ge=-(2**31), lt=2**31), FLOAT_AS_INT]


Images = FailFastList[str]  # base64 of their files
Format = Literal["", "json"] | JsonObject
Think = bool | Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class OllamaOptions(RequestModel):
    """Sampling parameters by Ollama's names. Others, such as num_ctx, are those of the server and change nothing."""

    num_predict: Annotated[int, Field(ge=-2, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Maximum number of tokens; -1 and -2: those of the context."
    )
    temperature: Annotated[float, Field(ge=0, le=1e30)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31), FLOAT_AS_INT] | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: StopString | StopStrings | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=1e30)] | None = None
    repeat_last_n: WholeNumber | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class ModelFields(RequestModel):
    """Fields that all requests have."""

    model: Text | None = None
    options: OllamaOptions | None = None
    keep_alive: str | int | float | None = Field(None, description="No effect: the server keeps its model.")


class OllamaFunction(RequestModel):
    name: Text
    arguments: AnyJson = Field(None, description="The arguments, or their JSON. Anything else becomes one text.")


class OllamaToolCall(RequestModel):
    id: str | None = None
    function: OllamaFunction


class OllamaChatMessage(RequestModel):
    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: Text | None = None
    thinking: Text | None = None
    images: Images | None = None
    tool_calls: FailFastList[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(ModelFields):
    """A chat that the model continues. Without messages, the answer only tells that the model is loaded."""

    messages: FailFastList[OllamaChatMessage] | None = None
    tools: FailFastList[JsonObject] | None = None
    format: Format | None = Field(None, description="json, or the JSON schema of the answer.")
    stream: bool | None = Field(None, description="Default: true.")
    think: Think | None = Field(None, description="Whether the model thinks before it answers, or how much.")


class OllamaGenerateRequest(ModelFields):
    """A prompt that the model answers; a text between prompt and suffix; or, with raw, a text that it continues."""

    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    template: Literal[""] | None = Field(None, description="Not supported: the server has one chat template.")
    raw: bool | None = Field(None, description="Whether the prompt is used as it is, without the chat template.")
    images: Images | None = Field(None, description="Not with raw or suffix.")
    format: Format | None = None
    stream: bool | None = None
    think: Think | None = None


class OllamaEmbedRequest(ModelFields):
    input: Text | Annotated[FailFastList[Text], Field(max_length=MAX_PROMPTS)]
    truncate: bool | None = Field(None, description="false: an input beyond the context is refused, and not cut.")
    dimensions: Annotated[int, Field(ge=1), FLOAT_AS_INT] | None = None


class OllamaEmbeddingsRequest(ModelFields):
    prompt: Text


class OllamaShowRequest(RequestModel):
    model: Text | None = None
    name: Text | None = None


class OllamaErrorBody(TypedDict):
    """The body of an error response."""

    error: str


class OllamaAnsweredCall(TypedDict):
    function: dict[str, Any]


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaAnsweredCall]]


class OllamaAnswer(TypedDict):
    """An answer, or a part of it. Durations are in nanoseconds, and only the last part has them."""

    model: str
    created_at: str
    done: bool
    message: NotRequired[OllamaMessage]
    response: NotRequired[str]
    thinking: NotRequired[str]
    done_reason: NotRequired[str]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
