"""Request and response models of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired

from pymtp.openai.response_body import About, Answer, DraftingStats
from pymtp.server.openai.types import (
    BY_JSON_TYPE,
    FLOAT_AS_INT,
    Effort,
    FailFastList,
    Name,
    RequestModel,
    SamplingFields,
    StopStrings,
    TemplateFields,
    Text,
    TokenLimit,
    ToolName,
)
from pymtp.validation import shown


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str


class TextSource(RequestModel):
    type: Literal["text"]
    data: str


class DocumentBlock(RequestModel):
    """A document, which must be plain text."""

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = None


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(
        None, description="The encoded thinking of this server, which is used if `thinking` is empty."
    )


class RedactedThinkingBlock(RequestModel):
    type: Literal["redacted_thinking"]
    data: str = Field(description="Ignored.")


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, JsonValue]


def _reject_media(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    source = block.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") != "text":
        kind = f"document of {source.get('type')}"
    elif kind not in ("image", "search_result", "container_upload"):
        return block
    raise PydanticCustomError("unreadable", "this model reads only text, not {kind}", {"kind": shown(kind)})


ToolResultContent = Annotated[
    Annotated[TextBlock | DocumentBlock, Field(discriminator="type")], BeforeValidator(_reject_media)
]


class ToolResultBlock(RequestModel):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Annotated[Text | Annotated[FailFastList[ToolResultContent], Tag("parts")], BY_JSON_TYPE] | None = None
    is_error: bool | None = None


UserBlock = Annotated[
    Annotated[TextBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")], BeforeValidator(_reject_media)
]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]


class AnthropicUserMessage(RequestModel):
    role: Literal["user"]
    content: Annotated[Text | Annotated[FailFastList[UserBlock], Tag("parts")], BY_JSON_TYPE]


class AnthropicAssistantMessage(RequestModel):
    role: Literal["assistant"]
    content: Annotated[Text | Annotated[FailFastList[AssistantBlock], Tag("parts")], BY_JSON_TYPE]


class AnthropicSystemMessage(RequestModel):
    role: Literal["system"]
    content: Annotated[Text | Annotated[FailFastList[TextBlock], Tag("parts")], BY_JSON_TYPE]


InputMessage = Annotated[
    AnthropicUserMessage | AnthropicAssistantMessage | AnthropicSystemMessage, Field(discriminator="role")
]


def _check_tool_type(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in (None, "custom"):
        return tool
    raise PydanticCustomError(
        "tool", "tools of type {kind} are not supported: a tool must have an input_schema", {"kind": shown(kind)}
    )


class AnthropicTool(RequestModel):
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, JsonValue] = Field(description="A JSON schema of an object.")
    strict: bool | None = None


class AutoToolChoice(RequestModel):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyToolChoice(RequestModel):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class NamedToolChoice(RequestModel):
    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class NoToolChoice(RequestModel):
    type: Literal["none"]


Display = Literal["summarized", "omitted"]


class ThinkingOn(RequestModel):
    type: Literal["enabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, lt=2**31), FLOAT_AS_INT] | None = Field(
        None, description="Maximum number of thinking tokens; 0: no thinking."
    )
    display: Display | None = Field(
        None, description="omitted: `thinking` is empty, and only the signature contains the thinking."
    )


class ThinkingOff(RequestModel):
    type: Literal["disabled"]


class AnthropicSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(RequestModel):
    effort: Effort | None = None
    format: AnthropicSchemaFormat | None = None


class CountTokensRequest(TemplateFields):
    """A chat whose prompt tokens are to be counted."""

    model: Name
    messages: FailFastList[InputMessage] = Field(min_length=1)
    system: Annotated[Text | Annotated[FailFastList[TextBlock], Tag("parts")], BY_JSON_TYPE] | None = None
    tools: FailFastList[Annotated[AnthropicTool, BeforeValidator(_check_tool_type)]] | None = None
    tool_choice: (
        Annotated[AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice, Field(discriminator="type")] | None
    ) = None
    thinking: Annotated[ThinkingOn | ThinkingOff, Field(discriminator="type")] | None = Field(
        None, description="Default: disabled."
    )
    output_config: OutputConfig | None = None


class MessageRequest(CountTokensRequest, SamplingFields):
    """A chat that the model continues. If the last message is the assistant's, the model continues this message."""

    max_tokens: TokenLimit
    stream: bool | None = None
    stop_sequences: StopStrings | None = None
    mcp_servers: None = Field(None, description="Not supported.")


class CountTokensResponse(Answer):
    input_tokens: int


class OutputTextBlock(Answer):
    type: Literal["text"]
    text: str
    citations: None


class OutputThinkingBlock(Answer):
    type: Literal["thinking"]
    thinking: str
    signature: str


class DirectCaller(Answer):
    type: Literal["direct"]


class OutputToolUseBlock(Answer):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[dict[str, JsonValue], About("The arguments. If the call was cut off, only the complete values.")]
    caller: DirectCaller


OutputBlock = Annotated[OutputTextBlock | OutputThinkingBlock | OutputToolUseBlock, Field(discriminator="type")]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class AnthropicOutputTokensDetails(Answer):
    thinking_tokens: int


class AnthropicUsage(Answer):
    input_tokens: Annotated[int, About("Prompt tokens that were not taken from the prefix cache.")]
    cache_read_input_tokens: Annotated[int, About("Prompt tokens that were taken from the prefix cache.")]
    cache_creation_input_tokens: Literal[0]
    cache_creation: None
    output_tokens: int
    output_tokens_details: AnthropicOutputTokensDetails
    server_tool_use: None
    inference_geo: None
    service_tier: Literal["standard"]


class AnthropicMessage(Answer):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[OutputBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: AnthropicUsage
    pymtp: NotRequired[DraftingStats | None]
