"""Request and response models of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired

from pymtp.openai.response_body import About, Answer, DraftingStats
from pymtp.server.openai.types import (
    BY_JSON_TYPE,
    FLOAT_AS_INT,
    AnyJson,
    Effort,
    FailFastList,
    Flag,
    JsonObject,
    Name,
    RequestModel,
    SamplingFields,
    StopStrings,
    TemplateFields,
    Text,
    TokenLimit,
    ToolName,
    refuse_media,
)
from pymtp.validation import shown


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str


class TextSource(RequestModel):
    type: Literal["text"]
    data: str


class ContentSource(RequestModel):
    type: Literal["content"]
    content: Annotated[Text | Annotated[FailFastList[TextBlock], Tag("parts")], BY_JSON_TYPE]


class DocumentBlock(RequestModel):
    """A document, which must be plain text."""

    type: Literal["document"]
    source: Annotated[TextSource | ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str | None = None
    signature: str | None = Field(
        None, description="The encoded thinking of this server, which is used if `thinking` is empty."
    )


class RedactedThinkingBlock(RequestModel):
    type: Literal["redacted_thinking"]
    data: str = Field(description="Ignored.")


class SearchResultBlock(RequestModel):
    """A text that a client found, with its title and source."""

    type: Literal["search_result"]
    title: str
    source: str
    content: FailFastList[TextBlock]


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: Name
    name: str
    input: AnyJson = Field(None, description="The arguments. A value that is no object becomes one text.")


class Base64Image(RequestModel):
    type: Literal["base64"]
    data: str
    media_type: str | None = Field(None, description="No effect: the bytes tell the format.")


class UrlImage(RequestModel):
    type: Literal["url"]
    url: str = Field(description="A data URL; or a URL that the options of the server allow.")


class ImageBlock(RequestModel):
    type: Literal["image"]
    source: Annotated[Base64Image | UrlImage, Field(discriminator="type")]


def _refuse_files(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    readable = {"document": ("text", "content"), "image": ("base64", "url")}.get(str(kind))
    source = block.get("source") if readable else None
    if readable and isinstance(source, dict) and source.get("type") not in readable:
        kind = f"{kind} of {source.get('type')}"
    elif kind != "container_upload":
        return refuse_media(block)
    raise PydanticCustomError(
        "unreadable", "{kind} is not supported: a message has text and images", {"kind": shown(kind)}
    )


class ToolResultBlock(RequestModel):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: AnyJson = Field(None, description="Text or blocks. Blocks without text and image become placeholders.")
    is_error: bool | None = None


class ForeignBlock(RequestModel):
    """A block of an earlier answer that this server does not write, such as the call of a tool at another server."""

    type: str


UserBlock = Annotated[
    Annotated[
        TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock, Field(discriminator="type")
    ],
    BeforeValidator(_refuse_files),
]
_ASSISTANT_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")


def _assistant_block_type(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return kind if kind in _ASSISTANT_BLOCKS or not isinstance(kind, str) else "foreign"


AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ForeignBlock, Tag("foreign")],
    Discriminator(_assistant_block_type),
]


class AnthropicUserMessage(RequestModel):
    role: Literal["user"]
    content: Annotated[Text | Annotated[FailFastList[UserBlock], Tag("parts")], BY_JSON_TYPE] | None


class AnthropicAssistantMessage(RequestModel):
    role: Literal["assistant"]
    content: Annotated[Text | Annotated[FailFastList[AssistantBlock], Tag("parts")], BY_JSON_TYPE] | None


class AnthropicSystemMessage(RequestModel):
    role: Literal["system", "developer"]
    content: Annotated[Text | Annotated[FailFastList[TextBlock], Tag("parts")], BY_JSON_TYPE] | None


InputMessage = Annotated[
    AnthropicUserMessage | AnthropicAssistantMessage | AnthropicSystemMessage, Field(discriminator="role")
]


class AnthropicTool(RequestModel):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: JsonObject = Field(description="A JSON schema of an object.")
    strict: Flag | None = None


class TypedTool(RequestModel):
    """A tool that Anthropic defines. Tools that the client runs are offered; this server skips all others."""

    type: str
    name: str | None = None


def _tool_form(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "typed" if isinstance(kind, str) and kind != "custom" and not _has_schema(tool) else "custom"


def _has_schema(tool: Any) -> bool:
    return isinstance(tool, AnthropicTool) or (isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict))


def _drop_type(tool: Any) -> Any:
    # whatever its type, a tool that has a schema of its input can be called
    return {**tool, "type": "custom"} if isinstance(tool, dict) and isinstance(tool.get("type"), str) else tool


OfferedTool = Annotated[
    Annotated[AnthropicTool, BeforeValidator(_drop_type), Tag("custom")] | Annotated[TypedTool, Tag("typed")],
    Discriminator(_tool_form),
]


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
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(RequestModel):
    effort: Effort | None = None
    format: AnthropicSchemaFormat | None = None


class CountTokensRequest(TemplateFields):
    """A chat whose prompt tokens are to be counted."""

    model: Name | None = None
    messages: FailFastList[InputMessage] = Field(min_length=1)
    system: Annotated[Text | Annotated[FailFastList[TextBlock], Tag("parts")], BY_JSON_TYPE] | None = None
    tools: FailFastList[OfferedTool] | None = None
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
    mcp_servers: Annotated[list[JsonValue], Field(max_length=0)] | None = Field(None, description="Not supported.")


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
