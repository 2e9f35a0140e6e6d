"""Conversion of bodies of /v1/messages to bodies of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.server.message_builder import MessageBuilder, decode_thinking
from pymtp.server.openai.types import SamplingFields

_SAME_FIELDS = ("max_tokens", "stream", *SamplingFields.model_fields)
_TEMPLATE_VARIABLES = ("enable_thinking", "preserve_thinking")
Block = Mapping[str, Any]


def to_chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a validated body of /v1/messages to a body of /v1/chat/completions."""
    chat = {name: body[name] for name in _SAME_FIELDS if body.get(name) is not None}
    chat["messages"] = _messages(body)
    chat["continue_final_message"] = body["messages"][-1]["role"] == "assistant"
    if stops := body.get("stop_sequences"):
        chat["stop"] = stops
    if tools := body.get("tools"):
        chat["tools"] = [_chat_tool(tool) for tool in tools]
    if choice := body.get("tool_choice"):
        chat["tool_choice"] = _chat_tool_choice(choice)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    output = body.get("output_config") or {}
    if output_format := output.get("format"):
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": output_format["schema"]},
        }
    thinking = body.get("thinking") or {}
    thinks = thinking.get("type", "disabled") != "disabled"
    if thinking.get("budget_tokens") is not None:
        chat["thinking_budget"] = thinking["budget_tokens"]
    variables: dict[str, Any] = {"enable_thinking": thinks}
    if effort := output.get("effort"):
        variables["reasoning_effort"] = effort
    variables |= {name: body[name] for name in _TEMPLATE_VARIABLES if body.get(name) is not None}
    chat["chat_template_kwargs"] = variables | (body.get("chat_template_kwargs") or {})
    return chat


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    builder = MessageBuilder()
    if system := _system_text(body.get("system") or ""):
        builder.add_system(system)
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "system":
            builder.add_system(_text(blocks))
        elif message["role"] == "user":
            _add_user(builder, blocks)
        else:
            _add_assistant(builder, blocks)
    return builder.messages


def _system_text(system: str | Sequence[Block]) -> str:
    if isinstance(system, str):
        return system
    # Claude Code puts a billing header in front, which differs in each request and means nothing to a model. The header
    # is left out, because otherwise no prompt could reuse the K and V of an earlier prompt from the prefix cache.
    return _text([block for block in system if not block["text"].startswith("x-anthropic-billing-header:")])


def _add_user(builder: MessageBuilder, blocks: Sequence[Block]) -> None:
    """Add the user's texts and tool results in order. Successive texts are joined to one message."""
    texts: list[Block] = []
    for block in blocks:
        if block["type"] == "tool_result":
            if texts:
                builder.add_user(_text(texts))
                texts = []
            builder.add_tool_result(block["tool_use_id"], _text(block.get("content") or ""))
        else:
            texts.append(block)
    if texts or not blocks:
        builder.add_user(_text(texts))


def _add_assistant(builder: MessageBuilder, blocks: Sequence[Block]) -> None:
    previous_type = None
    for block in blocks:
        match block:
            case {"type": "text", "text": text}:
                builder.add_text(text, continues=previous_type == "text")
            case {"type": "thinking", "thinking": thought}:
                builder.add_reasoning(thought or decode_thinking(block.get("signature") or ""))
            case {"type": "tool_use", "id": call_id, "name": name, "input": arguments}:
                builder.add_tool_call(call_id, name, arguments)
        previous_type = block["type"]
    if not blocks:
        builder.add_text("")


def _text(content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(_document_text(block) if block["type"] == "document" else block["text"] for block in content)


def _document_text(block: Block) -> str:
    about = (block.get("title"), block.get("context"), block["source"]["data"])
    return "\n\n".join(text for text in about if text)


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}


def _chat_tool_choice(choice: Mapping[str, Any]) -> Any:
    match choice:
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": name}:
            return {"type": "function", "function": {"name": name}}
    return choice["type"]
