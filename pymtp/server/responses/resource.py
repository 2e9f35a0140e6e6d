"""Response models of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pymtp.server.openai.types import DraftingStats, ResponseModel

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[JsonValue], Field(max_length=0)]
    logprobs: Annotated[list[JsonValue], Field(max_length=0)]


class OutputMessage(ResponseModel):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputFunctionCall(ResponseModel):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str = Field(description="JSON of an object. An incomplete call has only the beginning.")
    status: Status


class OutputReasoningText(ResponseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ResponseModel):
    type: Literal["reasoning"]
    id: str
    summary: Annotated[list[JsonValue], Field(max_length=0)]
    content: list[OutputReasoningText]
    encrypted_content: str | None = Field(
        None, description="The thinking as base64, if `include` has reasoning.encrypted_content."
    )
    status: Status


OutputItem = Annotated[OutputMessage | OutputFunctionCall | OutputReasoning, Field(discriminator="type")]


class InputTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="Input tokens that were taken from the prefix cache.")
    cache_write_tokens: Literal[0]


class OutputTokensDetails(ResponseModel):
    reasoning_tokens: int


class ResponseUsage(ResponseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(ResponseModel):
    reason: Literal["max_output_tokens"]


class ResponseError(ResponseModel):
    code: str
    message: str


class ResponseTool(ResponseModel):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, JsonValue] | None
    strict: bool | None


class ResponseNamespace(ResponseModel):
    type: Literal["namespace"]
    name: str
    description: str | None
    tools: list[ResponseTool]


class ResponseReasoning(ResponseModel):
    effort: str | None
    summary: str | None


class Response(ResponseModel):
    """A response of /v1/responses: the output, its status, and fields of the request."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Seconds since 1970.")
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, JsonValue]
    tool_choice: str | dict[str, JsonValue]
    tools: list[Annotated[ResponseTool | ResponseNamespace, Field(discriminator="type")]]
    top_logprobs: Literal[0]
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]
    pymtp: DraftingStats | None = None


class DeletedResponse(ResponseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
