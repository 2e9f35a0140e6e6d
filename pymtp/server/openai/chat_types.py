"""Bodies of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from pymtp.server.openai.types import (
    READABLE,
    WHOLE,
    WHOLE_TEXT,
    Body,
    Drafting,
    Effort,
    ListOf,
    Origins,
    Out,
    Sampling,
    Templating,
    Thinking,
    TopLogprobs,
    Usage,
)


class TextPart(Body):
    type: Literal["text"]
    text: str


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


Text = str | ListOf[Annotated[TextPart, READABLE]]
AssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Name = Annotated[str, StringConstraints(min_length=1), WHOLE_TEXT]


class SystemMessage(Body):
    role: Literal["system"]
    content: Text


class DeveloperMessage(Body):
    role: Literal["developer"]
    content: Text


class UserMessage(Body):
    role: Literal["user"]
    content: Text


class CalledFunction(Body):
    name: Name
    arguments: str = Field(description="JSON of an object.")


class ToolCall(Body):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: str | ListOf[Annotated[AssistantPart, READABLE]] | None = None
    reasoning_content: str | None = Field(None, description="What was thought before the content.")
    reasoning: str | None = Field(None, description="The same, as vLLM names it.")
    refusal: str | None = None
    tool_calls: ListOf[ToolCall] | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Text
    tool_call_id: str | None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class FunctionTool(Body):
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Body):
    name: Name


class NamedChoice(Body):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Sampling, Templating):
    """A chat that the model is to go on with."""

    model: str  # as OpenAI's API demands
    messages: ListOf[Message] = Field(min_length=1)
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = Field(None, description="disabled: the template's enable_thinking is false.")
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none: thinking stays in the content."
    )
    continue_final_message: bool | None = Field(None, description="The last message, the assistant's, is gone on with.")
    functions: None = Field(None, description="Not supported: use tools.")
    function_call: None = Field(None, description="Not supported: use tool_choice.")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = Field(None, description="Not supported.")
    web_search_options: None = Field(None, description="Not supported.")


class TopLogprob(Out):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Out):
    content: list[TokenLogprob]


class AnswerFunction(Out):
    name: str
    arguments: str


class AnswerCall(Out):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(Out):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AnswerCall] | None = None


class ChatChoice(Out):
    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: ChatLogprobs | None


class ChatCompletion(Out):
    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    pymtp: Drafting


class FunctionDelta(Out):
    name: str | None = None
    arguments: str


class CallDelta(Out):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(Out):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(Out):
    index: int
    delta: Delta
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    logprobs: ChatLogprobs | None


class ChatChunk(Out):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    pymtp: Drafting | Origins | None = None
