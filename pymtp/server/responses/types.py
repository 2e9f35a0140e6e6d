"""What a request to /v1/responses may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from pymtp.server.openai.types import (
    BY_FORM,
    READABLE,
    WHOLE,
    WHOLE_TEXT,
    Body,
    Choosing,
    Effort,
    JsonObjectFormat,
    ListOf,
    No,
    Templating,
    Text,
    TextFormat,
    few,
)
from pymtp.validation import shown

Name = Annotated[str, StringConstraints(min_length=1), WHOLE_TEXT]
ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64), WHOLE_TEXT],
        Annotated[str, StringConstraints(max_length=512), WHOLE_TEXT],
    ],
    Field(max_length=16),
    few(16),
]
ITEMS = ("message", "function_call", "function_call_output", "reasoning")
# run by OpenAI itself: agents offer them whatever server they ask
Hosted = Literal[
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "tool_search"
]


class TextContent(Body):
    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalContent(Body):
    type: Literal["refusal"]
    refusal: str


class SummaryText(Body):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Body):
    type: Literal["reasoning_text", "text"]
    text: str


Content = Annotated[
    Annotated[TextContent | RefusalContent, Field(discriminator="type")],
    READABLE,
]


class MessageItem(Body):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[Text | Annotated[ListOf[Content], Tag("parts")], BY_FORM]


class CallItem(Body):
    type: Literal["function_call"]
    id: str | None = None
    call_id: Name
    name: Name
    namespace: Name | None = None
    arguments: str = Field(description="JSON of an object.")


class CallOutputItem(Body):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: Name
    output: Annotated[Text | Annotated[ListOf[Content], Tag("parts")], BY_FORM]


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: str | None = None
    summary: ListOf[SummaryText]
    content: ListOf[ReasoningText] | None = None
    encrypted_content: str | None = Field(None, description="Read where there is no content.")


def _item_type(item: Any) -> Any:
    return item.get("type") or "message" if isinstance(item, dict) else getattr(item, "type", None)


def _known_item(item: Any) -> Any:
    kind = _item_type(item)
    if kind == "item_reference":
        raise PydanticCustomError("item", "items are not kept one by one: send the item, or previous_response_id")
    if isinstance(item, dict) and kind not in ITEMS:
        raise PydanticCustomError("item", "no item of type {kind} can be read here", {"kind": shown(kind)})
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


class FunctionTool(Body):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None


class Namespace(Body):
    """Functions whose names need to differ within it only."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: ListOf[FunctionTool]


class HostedTool(Body):
    """A tool that OpenAI runs. There is none here: passed over."""

    type: Hosted


def _own(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in (None, "function", "namespace", *get_args(Hosted)):
        return tool
    raise PydanticCustomError(
        "tool", "tools of type {kind} cannot be called here: only functions can", {"kind": shown(kind)}
    )


Tool = Annotated[Annotated[FunctionTool | Namespace | HostedTool, Field(discriminator="type")], BeforeValidator(_own)]


class NamedChoice(Body):
    type: Literal["function"]
    name: Name
    namespace: Name | None = None


class AllowedChoice(Body):
    """The tools that may be called, of all that the prompt tells of."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required", "none"] = "auto"
    tools: ListOf[NamedChoice] = Field(min_length=1)


class Reasoning(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="All thinking comes in any case.")


class SchemaFormat(Body):
    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, JsonValue] = Field(alias="schema")
    strict: bool | None = Field(None, description="A schema is always held to.")


class TextOptions(Body):
    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseRequest(Choosing, Templating):
    """What the model is to answer."""

    model: Name
    input: Annotated[Text | Annotated[ListOf[Item], Tag("parts")], BY_FORM]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, description="Of a response that was stored.")
    store: bool | None = Field(None, description="true where it is left out.")
    stream: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31), WHOLE] | None = None
    tools: ListOf[Tool] | None = None
    tool_choice: (
        Literal["auto", "none", "required"] | Annotated[NamedChoice | AllowedChoice, Field(discriminator="type")] | None
    ) = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1), WHOLE] | None = Field(None, description="Of hosted ones.")
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: ListOf[str] | None = Field(None, description="reasoning.encrypted_content is known.")
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = Field(None, description="Nothing is ever left out.")
    top_logprobs: Annotated[int, Field(ge=0, le=0), WHOLE] | None = Field(
        None, description="Not supported: use /v1/chat/completions."
    )
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    background: No | None = Field(None, description="Not supported.")
    conversation: None = Field(None, description="Not supported: use previous_response_id.")
    prompt: None = Field(None, description="Not supported.")
