"""Bodies of /v1/messages as those of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.server.message_builder import Turns, unsealed
from pymtp.server.openai.types import Choosing

_SAME = ("max_tokens", "stream", *Choosing.model_fields)
_VARIABLES = ("enable_thinking", "preserve_thinking")
Block = Mapping[str, Any]


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a valid body asks for, in OpenAI's form."""
    found = {name: body[name] for name in _SAME if body.get(name) is not None}
    found["messages"] = _messages(body)
    found["continue_final_message"] = body["messages"][-1]["role"] == "assistant"
    if stops := body.get("stop_sequences"):
        found["stop"] = stops
    if tools := body.get("tools"):
        found["tools"] = [_tool(tool) for tool in tools]
    if choice := body.get("tool_choice"):
        found["tool_choice"] = _tool_choice(choice)
        found["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    output = body.get("output_config") or {}
    if form := output.get("format"):
        found["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}
    thinking = body.get("thinking") or {}
    thinks = thinking.get("type", "disabled") != "disabled"
    if thinking.get("budget_tokens") is not None:
        found["thinking_budget"] = thinking["budget_tokens"]
    variables: dict[str, Any] = {"enable_thinking": thinks}
    if effort := output.get("effort"):
        variables["reasoning_effort"] = effort
    variables |= {name: body[name] for name in _VARIABLES if body.get(name) is not None}
    found["chat_template_kwargs"] = variables | (body.get("chat_template_kwargs") or {})
    return found


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns = Turns()
    if system := _system(body.get("system") or ""):
        turns.system(system)
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "system":
            turns.system(_text(blocks))
        elif message["role"] == "user":
            _user(turns, blocks)
        else:
            _assistant(turns, blocks)
    return turns.messages


def _system(system: str | Sequence[Block]) -> str:
    if isinstance(system, str):
        return system
    # Claude Code's first block differs each time and says nothing to a model: no prompt would begin as one before
    return _text([block for block in system if not block["text"].startswith("x-anthropic-billing-header:")])


def _user(turns: Turns, blocks: Sequence[Block]) -> None:
    """What the user says, and what tools answered, in its order: the texts between results are one message."""
    said: list[Block] = []
    for block in blocks:
        if block["type"] == "tool_result":
            if said:
                turns.user(_text(said))
                said = []
            turns.result(block["tool_use_id"], _text(block.get("content") or ""))
        else:
            said.append(block)
    if said or not blocks:
        turns.user(_text(said))


def _assistant(turns: Turns, blocks: Sequence[Block]) -> None:
    before = None
    for block in blocks:
        match block:
            case {"type": "text", "text": text}:
                turns.said(text, goes_on=before == "text")
            case {"type": "thinking", "thinking": thought}:
                turns.thought(thought or unsealed(block.get("signature") or ""))
            case {"type": "tool_use", "id": call, "name": name, "input": arguments}:
                turns.called(call, name, arguments)
        before = block["type"]
    if not blocks:
        turns.said("")


def _text(content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(_document(block) if block["type"] == "document" else block["text"] for block in content)


def _document(block: Block) -> str:
    about = (block.get("title"), block.get("context"), block["source"]["data"])
    return "\n\n".join(text for text in about if text)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}


def _tool_choice(choice: Mapping[str, Any]) -> Any:
    match choice:
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": name}:
            return {"type": "function", "function": {"name": name}}
    return choice["type"]
