"""Request models of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired

from pymtp.openai.response_body import About, Answer, DraftingStats
from pymtp.server.openai.types import (
    BY_JSON_TYPE,
    FLOAT_AS_INT,
    TEXT_ONLY,
    VALID_TEXT,
    Effort,
    FailFastList,
    JsonObjectFormat,
    Name,
    OnlyFalse,
    RequestModel,
    SamplingFields,
    TemplateFields,
    Text,
    TextFormat,
    TokenLimit,
    ToolName,
    max_pairs,
)
from pymtp.validation import shown

Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64), VALID_TEXT],
        Annotated[str, StringConstraints(max_length=512), VALID_TEXT],
    ],
    Field(max_length=16),
    max_pairs(16),
]
ITEMS = ("message", "function_call", "function_call_output", "reasoning")
# Tools that OpenAI's servers run. They are accepted and ignored, because agents offer them to every server.
HostedToolType = Literal[
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "tool_search"
]


class TextContent(RequestModel):
    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalContent(RequestModel):
    type: Literal["refusal"]
    refusal: str


class SummaryText(RequestModel):
    type: Literal["summary_text"]
    text: str


class ReasoningText(RequestModel):
    type: Literal["reasoning_text", "text"]
    text: str


Content = Annotated[
    Annotated[TextContent | RefusalContent, Field(discriminator="type")],
    TEXT_ONLY,
]


class MessageItem(RequestModel):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[Text | Annotated[FailFastList[Content], Tag("parts")], BY_JSON_TYPE]


class CallItem(RequestModel):
    type: Literal["function_call"]
    id: str | None = None
    call_id: Name
    name: Name
    namespace: Name | None = None
    arguments: str = Field(description="JSON of an object.")


class CallOutputItem(RequestModel):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: Name
    output: Annotated[Text | Annotated[FailFastList[Content], Tag("parts")], BY_JSON_TYPE]


class ReasoningItem(RequestModel):
    type: Literal["reasoning"]
    id: str | None = None
    summary: FailFastList[SummaryText]
    content: FailFastList[ReasoningText] | None = None
    encrypted_content: str | None = Field(
        None, description="The thinking as base64, which is used if there is no content."
    )


def _item_type(item: Any) -> Any:
    return item.get("type") or "message" if isinstance(item, dict) else getattr(item, "type", None)


def _known_item(item: Any) -> Any:
    kind = _item_type(item)
    if kind == "item_reference":
        raise PydanticCustomError(
            "item", "items are not stored separately: send the item itself, or use previous_response_id"
        )
    if isinstance(item, dict) and kind not in ITEMS:
        raise PydanticCustomError("item", "items of type {kind} are not supported", {"kind": shown(kind)})
    return item


Item = Annotated[
    Annotated[
        Annotated[MessageItem, Tag("message")]
        | Annotated[CallItem, Tag("function_call")]
        | Annotated[CallOutputItem, Tag("function_call_output")]
        | Annotated[ReasoningItem, Tag("reasoning")],
        Discriminator(_item_type),
    ],
    BeforeValidator(_known_item),
]


class ResponsesFunctionTool(RequestModel):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None


class NamespaceTool(RequestModel):
    """A group of functions. Only functions of the same group must have different names."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: FailFastList[ResponsesFunctionTool]


class HostedTool(RequestModel):
    """A tool that OpenAI's servers run. This server ignores it."""

    type: HostedToolType


def _check_tool_type(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in (None, "function", "namespace", *get_args(HostedToolType)):
        return tool
    raise PydanticCustomError(
        "tool", "tools of type {kind} are not supported: only functions are", {"kind": shown(kind)}
    )


ResponsesTool = Annotated[
    Annotated[ResponsesFunctionTool | NamespaceTool | HostedTool, Field(discriminator="type")],
    BeforeValidator(_check_tool_type),
]


class ResponsesNamedToolChoice(RequestModel):
    type: Literal["function"]
    name: Name
    namespace: Name | None = None


class AllowedToolsChoice(RequestModel):
    """The tools that the model may call. The prompt still lists all tools of the request."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required", "none"] = "auto"
    tools: FailFastList[ResponsesNamedToolChoice] = Field(min_length=1)


class Reasoning(RequestModel):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Ignored: all thinking is returned."
    )


class ResponsesSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, JsonValue] = Field(alias="schema")
    strict: bool | None = Field(None, description="No effect: the output always follows the schema.")


class TextOptions(RequestModel):
    format: Annotated[TextFormat | JsonObjectFormat | ResponsesSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseRequest(SamplingFields, TemplateFields):
    """An input that the model answers."""

    model: Name
    input: Annotated[Text | Annotated[FailFastList[Item], Tag("parts")], BY_JSON_TYPE]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, description="The id of a stored response.")
    store: bool | None = Field(None, description="Default: true.")
    stream: bool | None = None
    max_output_tokens: TokenLimit | None = None
    tools: FailFastList[ResponsesTool] | None = None
    tool_choice: (
        Literal["auto", "none", "required"]
        | Annotated[ResponsesNamedToolChoice | AllowedToolsChoice, Field(discriminator="type")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1), FLOAT_AS_INT] | None = Field(
        None, description="Ignored: it limits hosted tools."
    )
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: FailFastList[str] | None = Field(None, description="Only reasoning.encrypted_content has an effect.")
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = Field(None, description="Ignored: input is never truncated.")
    top_logprobs: Annotated[int, Field(ge=0, le=0), FLOAT_AS_INT] | None = Field(
        None, description="Not supported: use /v1/chat/completions."
    )
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    background: OnlyFalse | None = Field(None, description="Not supported.")
    conversation: None = Field(None, description="Not supported: use previous_response_id.")
    prompt: None = Field(None, description="Not supported.")


Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[JsonValue], Field(max_length=0)]
    logprobs: Annotated[list[JsonValue], Field(max_length=0)]


class OutputMessage(Answer):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputFunctionCall(Answer):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    namespace: NotRequired[str | None]
    arguments: Annotated[str, About("JSON of an object. An incomplete call has only the beginning.")]
    status: Status


class OutputReasoningText(Answer):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Answer):
    type: Literal["reasoning"]
    id: str
    summary: Annotated[list[JsonValue], Field(max_length=0)]
    content: list[OutputReasoningText]
    encrypted_content: NotRequired[
        Annotated[str | None, About("The thinking as base64, if `include` has reasoning.encrypted_content.")]
    ]
    status: Status


OutputItem = Annotated[OutputMessage | OutputFunctionCall | OutputReasoning, Field(discriminator="type")]


class InputTokensDetails(Answer):
    cached_tokens: Annotated[int, About("Input tokens that were taken from the prefix cache.")]
    cache_write_tokens: Literal[0]


class OutputTokensDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class ResponseError(Answer):
    code: str
    message: str


class ResponseTool(Answer):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, JsonValue] | None
    strict: bool | None


class ResponseNamespace(Answer):
    type: Literal["namespace"]
    name: str
    description: str | None
    tools: list[ResponseTool]


class ResponseReasoning(Answer):
    effort: str | None
    summary: str | None


class RequestFields(Answer):
    """The fields of a response that repeat fields of the request."""

    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    previous_response_id: str | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    metadata: dict[str, str]
    model: str
    text: dict[str, JsonValue]
    tool_choice: str | dict[str, JsonValue]
    tools: list[Annotated[ResponseTool | ResponseNamespace, Field(discriminator="type")]]


class OwnFields(Answer):
    """The other fields of a response."""

    id: str
    object: Literal["response"]
    created_at: Annotated[int, About("Seconds since 1970.")]
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    parallel_tool_calls: bool
    reasoning: ResponseReasoning
    service_tier: Literal["default"]
    store: bool
    temperature: float
    top_logprobs: Literal[0]
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    pymtp: NotRequired[DraftingStats | None]


class Response(OwnFields, RequestFields):
    """A response of /v1/responses: the output, its status, and fields of the request."""


class DeletedResponse(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
