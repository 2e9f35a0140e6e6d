"""Request and response models of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from pymtp.server.openai.types import (
    FLOAT_AS_INT,
    TEXT_ONLY,
    VALID_TEXT,
    CompletionFields,
    DraftingStats,
    Effort,
    FailFastList,
    Origins,
    RequestModel,
    ResponseModel,
    TemplateFields,
    ThinkingConfig,
    TopLogprobs,
    Usage,
)


class TextContentPart(RequestModel):
    type: Literal["text"]
    text: str


class RefusalContentPart(RequestModel):
    type: Literal["refusal"]
    refusal: str


Text = str | FailFastList[Annotated[TextContentPart, TEXT_ONLY]]
AssistantPart = Annotated[TextContentPart | RefusalContentPart, Field(discriminator="type")]
Name = Annotated[str, StringConstraints(min_length=1), VALID_TEXT]


class SystemMessage(RequestModel):
    role: Literal["system"]
    content: Text


class DeveloperMessage(RequestModel):
    role: Literal["developer"]
    content: Text


class UserMessage(RequestModel):
    role: Literal["user"]
    content: Text


class CalledFunction(RequestModel):
    name: Name
    arguments: str = Field(description="JSON of an object.")


class AssistantToolCall(RequestModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(RequestModel):
    role: Literal["assistant"]
    content: str | FailFastList[Annotated[AssistantPart, TEXT_ONLY]] | None = None
    reasoning_content: str | None = Field(None, description="The thinking before the content.")
    reasoning: str | None = Field(None, description="vLLM's name of reasoning_content.")
    refusal: str | None = None
    tool_calls: FailFastList[AssistantToolCall] | None = None


class ToolMessage(RequestModel):
    role: Literal["tool"]
    content: Text
    tool_call_id: str | None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class FunctionDefinition(RequestModel):
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None


class ChatTool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(RequestModel):
    name: Name


class ChatNamedToolChoice(RequestModel):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(CompletionFields, TemplateFields):
    """A chat that the model continues."""

    model: str  # required, as in OpenAI's API
    messages: FailFastList[Message] = Field(min_length=1)
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31), FLOAT_AS_INT] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: FailFastList[ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatNamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking: ThinkingConfig | None = Field(
        None, description="disabled: sets the template variable enable_thinking to false."
    )
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none: the content includes the thinking."
    )
    continue_final_message: bool | None = Field(
        None, description="Whether the model continues the last message, which must be the assistant's."
    )
    functions: None = Field(None, description="Not supported: use tools.")
    function_call: None = Field(None, description="Not supported: use tool_choice.")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = Field(None, description="Not supported.")
    web_search_options: None = Field(None, description="Not supported.")


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    content: list[TokenLogprob]


class ChatFunctionCall(ResponseModel):
    name: str
    arguments: str


class ChatToolCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: ChatFunctionCall


class ChatMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoice(ResponseModel):
    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: ChatLogprobs | None


class ChatCompletion(ResponseModel):
    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    pymtp: DraftingStats


class DeltaFunctionCall(ResponseModel):
    name: str | None = None
    arguments: str


class DeltaToolCall(ResponseModel):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunctionCall


class DeltaMessage(ResponseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] | None = None


class ChunkChoice(ResponseModel):
    index: int
    delta: DeltaMessage
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    logprobs: ChatLogprobs | None


class ChatChunk(ResponseModel):
    """A chunk of the stream of a chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    pymtp: DraftingStats | Origins | None = None
