"""Reading of bodies of /v1/messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import chat_request, check_texts, template_variables
from pymtp.server.message_builder import MessageBuilder, decode_thinking
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
    output, thinking, choice = (fields[name] or {} for name in ("output_config", "thinking", "tool_choice"))
    variables: dict[str, Any] = {"enable_thinking": thinking.get("type", "disabled") != "disabled"}
    if effort := output.get("effort"):
        variables["reasoning_effort"] = effort
    budget = thinking.get("budget_tokens")
    return chat_request(
        {**fields, "stop": fields["stop_sequences"]} | ({} if budget is None else {"thinking_budget": budget}),
        _messages(body),
        defaults,
        tools=[_chat_tool(tool) for tool in fields["tools"] or ()],
        tool_choice=_chat_tool_choice(choice),
        variables=variables | template_variables(fields | {"thinking": None}),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
        schema=(output.get("format") or {}).get("schema"),
        continue_final_message=body["messages"][-1]["role"] == "assistant",
    )


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
    return choice.get("type")
