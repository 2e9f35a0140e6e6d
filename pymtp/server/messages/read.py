"""Reading of bodies of /v1/messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pymtp.chat.part_text import content_text, part_text
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import chat_request, check_texts, refuse_unsupported, template_variables
from pymtp.server.image_parts import content_with_images, with_places
from pymtp.server.message_builder import MessageBuilder, decode_thinking
from pymtp.server.messages.tools import chat_tool_choice, chat_tools
from pymtp.server.openai.types import SamplingFields, TemplateFields

_CHECKED_FIELDS = (*SamplingFields.model_fields, *TemplateFields.model_fields, "max_tokens", "stream")
_CHECKED_FIELDS += ("stop_sequences", "tools", "tool_choice", "output_config", "thinking")
Block = Mapping[str, Any]


def read_message_request(
    body: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})
) -> GenerateRequest:
    """Read a validated body of /v1/messages. defaults: see `read_generate_request`.

    Raises InvalidRequestError for fields that are out of range.
    """
    fields = check_texts({name: body.get(name) for name in _CHECKED_FIELDS})
    refuse_unsupported(body)
    output, thinking, choice = (fields[name] or {} for name in ("output_config", "thinking", "tool_choice"))
    messages = _messages(body)
    variables: dict[str, Any] = {"enable_thinking": thinking.get("type", "disabled") != "disabled"}
    if effort := output.get("effort"):
        variables["reasoning_effort"] = effort
    budget = thinking.get("budget_tokens")
    return chat_request(
        {**fields, "stop": fields["stop_sequences"]} | ({} if budget is None else {"thinking_budget": budget}),
        messages,
        defaults,
        tools=chat_tools(fields),
        tool_choice=chat_tool_choice(fields),
        variables=variables | template_variables(fields),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        schema=(output.get("format") or {}).get("schema"),
        # an answer that ends with the result of another server's tool is not continued: a new answer follows
        continue_final_message=body["messages"][-1]["role"] == messages[-1]["role"] == "assistant",
    )


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    builder = MessageBuilder()
    if system := _system_text(body.get("system") or ""):
        builder.add_system(system)
    for i, message in enumerate(body["messages"]):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        if message["role"] in ("system", "developer"):
            builder.add_system(content_text(blocks))
        elif message["role"] == "user":
            _add_user(builder, with_places(blocks, f"messages[{i}].content"))
        else:
            _add_assistant(builder, blocks)
    return builder.messages


def _system_text(system: str | Sequence[Block]) -> str:
    if isinstance(system, str):
        return system
    # Claude Code puts a billing header in front, which differs in each request and means nothing to a model. The header
    # is left out, because otherwise no prompt could reuse the K and V of an earlier prompt from the prefix cache.
    return content_text([block for block in system if not block["text"].startswith("x-anthropic-billing-header:")])


def _add_user(builder: MessageBuilder, blocks: Sequence[Block]) -> None:
    """Add the user's texts, images and tool results in order. Successive texts and images become one message."""
    parts: list[Block] = []
    for block in blocks:
        if block["type"] == "tool_result":
            if parts:
                builder.add_user(content_with_images(parts))
                parts = []
            builder.add_tool_result(block["tool_use_id"], content_with_images(block.get("content")))
        else:
            parts.append(block)
    if parts or not blocks:
        builder.add_user(content_with_images(parts))


def _add_assistant(builder: MessageBuilder, blocks: Sequence[Block]) -> None:
    previous_type = None
    for block in blocks:
        match block:
            case {"type": "text", "text": text}:
                builder.add_text(text, continues=previous_type == "text")
            case {"type": "thinking"}:
                builder.add_reasoning(block.get("thinking") or decode_thinking(block.get("signature") or ""))
            case {"type": "redacted_thinking"}:
                pass
            # The calls of other servers' tools are calls, too, and their results stand in the same message.
            case {"type": "tool_use" | "server_tool_use" | "mcp_tool_use", "id": call_id, "name": str(name)}:
                builder.add_tool_call(call_id, name, block.get("input"))
            case {"type": str(kind), "tool_use_id": call_id} if kind.endswith("_tool_result"):
                builder.add_tool_result(call_id, content_text(block.get("content")))
            case {"type": "compaction", "content": content}:
                builder.add_text(content_text(content))
            case _:
                builder.add_text(part_text(block), continues=previous_type is not None)
        previous_type = block["type"]
    if all(block["type"] == "redacted_thinking" for block in blocks):
        builder.add_text("")
