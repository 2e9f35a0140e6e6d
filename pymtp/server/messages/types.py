"""Bodies of /v1/messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from pymtp.server.openai.types import (
    BY_FORM,
    WHOLE,
    WHOLE_TEXT,
    Body,
    Choosing,
    Drafting,
    Effort,
    ListOf,
    Out,
    Stops,
    Templating,
    Text,
)
from pymtp.validation import shown

Name = Annotated[str, StringConstraints(min_length=1), WHOLE_TEXT]
ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class TextBlock(Body):
    type: Literal["text"]
    text: str


class TextSource(Body):
    type: Literal["text"]
    data: str


class DocumentBlock(Body):
    """A document of plain text."""

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = None


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Of empty thinking from here: the thinking itself.")


class RedactedThinkingBlock(Body):
    type: Literal["redacted_thinking"]
    data: str = Field(description="Of another server: passed over.")


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, JsonValue]


def _readable(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    source = block.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") != "text":
        kind = f"document of {source.get('type')}"
    elif kind not in ("image", "search_result", "container_upload"):
        return block
    raise PydanticCustomError("unreadable", "this model reads text, and no {kind}", {"kind": shown(kind)})


Read = Annotated[Annotated[TextBlock | DocumentBlock, Field(discriminator="type")], BeforeValidator(_readable)]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Annotated[Text | Annotated[ListOf[Read], Tag("parts")], BY_FORM] | None = None
    is_error: bool | None = None


UserBlock = Annotated[
    Annotated[TextBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")], BeforeValidator(_readable)
]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]


class UserMessage(Body):
    role: Literal["user"]
    content: Annotated[Text | Annotated[ListOf[UserBlock], Tag("parts")], BY_FORM]


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: Annotated[Text | Annotated[ListOf[AssistantBlock], Tag("parts")], BY_FORM]


class SystemMessage(Body):
    role: Literal["system"]
    content: Annotated[Text | Annotated[ListOf[TextBlock], Tag("parts")], BY_FORM]


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


def _own(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in (None, "custom"):
        return tool
    raise PydanticCustomError(
        "tool", "{kind}: there are no tools but those with an input_schema", {"kind": shown(kind)}
    )


class Tool(Body):
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, JsonValue] = Field(description="A JSON schema of an object.")
    strict: bool | None = None


class AutoChoice(Body):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Body):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Body):
    type: Literal["tool"]
    name: Name
    disable_parallel_tool_use: bool | None = None


class NoChoice(Body):
    type: Literal["none"]


Display = Literal["summarized", "omitted"]


class ThinkingOn(Body):
    type: Literal["enabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = Field(
        None, description="Most tokens of thinking, 0 for none."
    )
    display: Display | None = Field(None, description="omitted: the thinking is in the signature only.")


class ThinkingOff(Body):
    type: Literal["disabled"]


class SchemaFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(Body):
    effort: Effort | None = None
    format: SchemaFormat | None = None


class CountRequest(Templating):
    """A chat whose tokens are to be counted."""

    model: Name
    messages: ListOf[Message] = Field(min_length=1)
    system: Annotated[Text | Annotated[ListOf[TextBlock], Tag("parts")], BY_FORM] | None = None
    tools: ListOf[Annotated[Tool, BeforeValidator(_own)]] | None = None
    tool_choice: Annotated[AutoChoice | AnyChoice | NamedChoice | NoChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingOn | ThinkingOff, Field(discriminator="type")] | None = Field(
        None, description="disabled where it is left out."
    )
    output_config: OutputConfig | None = None


class MessageRequest(CountRequest, Choosing):
    """A chat that the model is to go on with. Where the last message is the assistant's, the answer goes on with it."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31), WHOLE]
    stream: bool | None = None
    stop_sequences: Stops | None = None
    mcp_servers: None = Field(None, description="Not supported.")


class Count(Out):
    input_tokens: int


class AnswerText(Out):
    type: Literal["text"]
    text: str
    citations: None


class AnswerThinking(Out):
    type: Literal["thinking"]
    thinking: str
    signature: str


class DirectCaller(Out):
    type: Literal["direct"]


class AnswerToolUse(Out):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue] = Field(description="Of a call that was cut short, what came of it.")
    caller: DirectCaller


AnswerBlock = Annotated[AnswerText | AnswerThinking | AnswerToolUse, Field(discriminator="type")]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputTokensDetails(Out):
    thinking_tokens: int


class Usage(Out):
    input_tokens: int = Field(description="Of the prompt, without those that were cached.")
    cache_read_input_tokens: int = Field(description="Of the prompt, held already and not read again.")
    cache_creation_input_tokens: Literal[0]
    cache_creation: None
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    server_tool_use: None
    inference_geo: None
    service_tier: Literal["standard"]


class AnswerMessage(Out):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: Usage
    pymtp: Drafting | None = None


class MessageError(Out):
    type: str
    message: str


class MessageErrorBody(Out):
    type: Literal["error"]
    error: MessageError
    request_id: str | None
