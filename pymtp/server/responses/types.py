"""Request models of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired

from pymtp.openai.response_body import About, Answer, DraftingStats
from pymtp.server.openai.types import (
    BY_JSON_TYPE,
    FLOAT_AS_INT,
    TEXT_ONLY,
    VALID_TEXT,
    AnyJson,
    Effort,
    FailFastList,
    Flag,
    ImagePart,
    InputImagePart,
    JsonObject,
    JsonObjectFormat,
    Name,
    OnlyFalse,
    RequestModel,
    SamplingFields,
    StopString,
    StopStrings,
    TemplateFields,
    Text,
    TextFormat,
    ThinkingBudget,
    ThinkingConfig,
    TokenLimit,
    ToolName,
    max_pairs,
    refuse_media,
)
from pymtp.server.responses.history import FOREIGN_ITEMS, ForeignItemType
from pymtp.validation import shown

Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64), VALID_TEXT],
        Annotated[str, StringConstraints(max_length=512), VALID_TEXT],
    ],
    Field(max_length=16),
    max_pairs(16),
]


class TextContent(RequestModel):
    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalContent(RequestModel):
    type: Literal["refusal"]
    refusal: str


TextPart = Annotated[
    Annotated[TextContent | RefusalContent, Field(discriminator="type")],
    TEXT_ONLY,
]
UserPart = Annotated[
    Annotated[TextContent | RefusalContent | InputImagePart | ImagePart, Field(discriminator="type")],
    BeforeValidator(refuse_media),
]


class UserItem(RequestModel):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user"]
    content: Annotated[Text | Annotated[FailFastList[UserPart], Tag("parts")], BY_JSON_TYPE] | None


class SystemItem(RequestModel):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["system", "developer"]
    content: Annotated[Text | Annotated[FailFastList[TextPart], Tag("parts")], BY_JSON_TYPE] | None


class AssistantItem(RequestModel):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["assistant"]
    content: AnyJson = Field(None, description="Text or parts. Parts without text become placeholders.")


class CallItem(RequestModel):
    type: Literal["function_call"]
    id: str | None = None
    call_id: Name
    name: str
    namespace: Name | None = None
    arguments: AnyJson = Field(None, description="JSON of an object. Anything else becomes one text.")


class CallOutputItem(RequestModel):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: Name
    output: AnyJson = Field(None, description="Text or parts. Parts without text and image become placeholders.")


class ReasoningItem(RequestModel):
    type: Literal["reasoning"]
    id: str | None = None
    summary: AnyJson = Field(None, description="Parts with text, which are used if there is no content.")
    content: AnyJson = Field(None, description="Parts with text.")
    encrypted_content: str | None = Field(
        None, description="The thinking as base64, which is used if there is neither content nor summary."
    )


class ForeignItem(RequestModel):
    """An item that this server does not write, such as the call of a tool that only OpenAI defines."""

    type: ForeignItemType


_OWN_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def _item_type(item: Any) -> Any:
    kind, role = _field(item, "type") or "message", _field(item, "role")
    if kind == "message" and role in ("assistant", "user"):
        return role
    return kind if kind in _OWN_ITEMS else "foreign"


def _field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


def _known_item(item: Any) -> Any:
    kind = item.get("type") or "message" if isinstance(item, dict) else None
    if isinstance(item, dict) and not (isinstance(kind, str) and kind in (*_OWN_ITEMS, *FOREIGN_ITEMS)):
        raise PydanticCustomError("item", "items of type {kind} are not supported", {"kind": shown(kind)})
    return item


Item = Annotated[
    Annotated[
        Annotated[SystemItem, Tag("message")]
        | Annotated[UserItem, Tag("user")]
        | Annotated[AssistantItem, Tag("assistant")]
        | Annotated[CallItem, Tag("function_call")]
        | Annotated[CallOutputItem, Tag("function_call_output")]
        | Annotated[ReasoningItem, Tag("reasoning")]
        | Annotated[ForeignItem, Tag("foreign")],
        Discriminator(_item_type),
    ],
    BeforeValidator(_known_item),
]


class ResponsesFunctionTool(RequestModel):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = Field(None, description="A JSON schema of an object.")
    strict: Flag | None = None


class ResponsesOtherTool(RequestModel):
    """A tool that this server cannot offer to the model. It is skipped, and the answer's header names it."""

    type: str


def _tool_type(tool: Any) -> str:
    kind = _field(tool, "type")
    if kind == "namespace":
        return "namespace"
    return "other" if isinstance(kind, str) and kind != "function" else "function tool"


def _function_or_other(tool: Any) -> str:
    return "function tool" if _tool_type(tool) == "function tool" else "other"


class NamespaceTool(RequestModel):
    """A group of functions. Only functions of the same group must have different names."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: FailFastList[
        Annotated[
            Annotated[ResponsesFunctionTool, Tag("function tool")] | Annotated[ResponsesOtherTool, Tag("other")],
            Discriminator(_function_or_other),
        ]
    ]


ResponsesTool = Annotated[
    Annotated[ResponsesFunctionTool, Tag("function tool")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[ResponsesOtherTool, Tag("other")],
    Discriminator(_tool_type),
]


class ResponsesNamedToolChoice(RequestModel):
    type: Literal["function"]
    name: Name
    namespace: Name | None = None


class OtherToolChoice(RequestModel):
    """The choice of a tool that is no function, and that this server cannot offer."""

    type: str
    name: str | None = None


class AllowedToolsChoice(RequestModel):
    """The tools that the model may call. The prompt still lists all tools of the request."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required", "none"] = "auto"
    tools: FailFastList[
        Annotated[
            Annotated[ResponsesNamedToolChoice, Tag("function tool")] | Annotated[OtherToolChoice, Tag("other")],
            Discriminator(_function_or_other),
        ]
    ] = Field(min_length=1)


def _choice_type(choice: Any) -> str:
    return "allowed_tools" if _field(choice, "type") == "allowed_tools" else _function_or_other(choice)


ResponsesToolChoice = (
    Literal["auto", "none", "required"]
    | Annotated[
        Annotated[ResponsesNamedToolChoice, Tag("function tool")]
        | Annotated[AllowedToolsChoice, Tag("allowed_tools")]
        | Annotated[OtherToolChoice, Tag("other")],
        Discriminator(_choice_type),
    ]
)


class Reasoning(RequestModel):
    effort: Effort | None = None
    enabled: bool | None = Field(None, description="OpenRouter's field: whether the model thinks.")
    max_tokens: ThinkingBudget | None = Field(None, description="OpenRouter's name of thinking_budget.")
    exclude: OnlyFalse | None = Field(None, description="Not supported.")
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Ignored: all thinking is returned."
    )


class ResponsesSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: JsonObject = Field(alias="schema")
    strict: Flag | None = Field(
        None, description="Whether a keyword that no grammar can express is refused. Otherwise a header names it."
    )


class TextOptions(RequestModel):
    format: Annotated[TextFormat | JsonObjectFormat | ResponsesSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseRequest(SamplingFields, TemplateFields):
    """An input that the model answers."""

    model: Name | None = None
    input: Annotated[Text | Annotated[FailFastList[Item], Tag("parts")], BY_JSON_TYPE]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, description="The id of a stored response.")
    store: bool | None = Field(None, description="Default: true.")
    stream: bool | None = None
    max_output_tokens: TokenLimit | None = None
    stop: StopString | StopStrings | None = Field(None, description="The same as in /v1/chat/completions.")
    tools: FailFastList[ResponsesTool] | None = None
    tool_choice: ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1), FLOAT_AS_INT] | None = Field(
        None, description="Ignored: it limits hosted tools."
    )
    reasoning: Reasoning | None = None
    thinking: ThinkingConfig | None = Field(None, description="The same as in /v1/chat/completions.")
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
    timings_per_token: bool | None = Field(None, description="Whether the events of output have timings.")
    return_progress: bool | None = Field(None, description="Whether a stream tells how much of the prompt is computed.")
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
