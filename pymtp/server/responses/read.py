"""Conversion of bodies of /v1/responses to bodies of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.server.message_builder import MessageBuilder, decode_thinking
from pymtp.server.openai.types import SamplingFields, TemplateFields

_SAME_FIELDS = ("stream", "parallel_tool_calls", *SamplingFields.model_fields, *TemplateFields.model_fields)
Messages = Sequence[Mapping[str, Any]]


def to_chat_body(body: Mapping[str, Any], messages: Messages) -> dict[str, Any]:
    """Convert a validated body of /v1/responses to a body of /v1/chat/completions.

    messages: the messages of the previous response, then the messages of the input (see `input_messages`).

    Raises InvalidRequestError if tool_choice requires a call, but the server can call none of the tools.
    """
    chat = {name: body[name] for name in _SAME_FIELDS if body.get(name) is not None}
    instructions = body.get("instructions")
    chat["messages"] = [*([{"role": "system", "content": instructions}] if instructions else ()), *messages]
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if tools := function_tools(body):
        chat["tools"] = [
            {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}} for tool in tools
        ]
    elif body.get("tools") and body.get("tool_choice") not in (None, "auto", "none"):
        raise InvalidRequestError(
            f"tool_choice requires a call, but only functions can be called, and the request has only tools of type "
            f"{', '.join(sorted({tool['type'] for tool in body['tools']}))}",
            "tool_choice",
        )
    if (choice := body.get("tool_choice")) is not None:
        chat["tool_choice"] = choice if isinstance(choice, str) else _chat_tool_choice(choice)
    if effort := (body.get("reasoning") or {}).get("effort"):
        chat["reasoning_effort"] = effort
    if text_format := (body.get("text") or {}).get("format"):
        chat["response_format"] = _response_format(text_format)
    return chat


def function_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the function tools that the model can call. The functions of namespaces have their full names."""
    tools: list[dict[str, Any]] = []
    for tool in body.get("tools") or ():
        if tool["type"] == "function":
            tools.append(tool_fields(tool))
        elif tool["type"] == "namespace":
            tools += [tool_fields(each) | {"name": full_name(each["name"], tool["name"])} for each in tool["tools"]]
    return tools


def tool_fields(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a function tool; a field that the tool does not have is None."""
    return {name: tool.get(name) for name in ("type", "name", "description", "parameters", "strict")}


def full_name(name: str, namespace: str | None) -> str:
    """Return the name by which the model calls a tool: namespace, two underscores, and the name in the namespace."""
    return name if not namespace else f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def namespaces(body: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return a mapping of the full names of tools in namespaces to pairs (namespace, name in the namespace)."""
    return {
        full_name(each["name"], tool["name"]): (tool["name"], each["name"])
        for tool in body.get("tools") or ()
        if tool["type"] == "namespace"
        for each in tool["tools"]
    }


def allowed_tools(body: Mapping[str, Any]) -> set[str] | None:
    """Return the full names of the tools that tool_choice allows; None if it allows all tools.

    Raises InvalidRequestError if tool_choice names a tool that the body does not have.
    """
    match body.get("tool_choice"):
        case {"type": "allowed_tools", "tools": allowed}:
            names = {full_name(tool["name"], tool.get("namespace")) for tool in allowed}
            if unknown := names - {tool["name"] for tool in function_tools(body)}:
                raise InvalidRequestError(f"tool_choice: there is no tool {', '.join(sorted(unknown))}", "tool_choice")
            return names
    return None


def input_messages(content: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the `input` of a body, which is a text or a list of items, to chat messages."""
    builder = MessageBuilder()
    for item in [{"role": "user", "content": content}] if isinstance(content, str) else content:
        match item:
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
                builder.add_tool_call(call_id, full_name(name, item.get("namespace")), arguments)
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                builder.add_tool_result(call_id, _text(output))
            case {"type": "reasoning"}:
                builder.add_reasoning(_reasoning_text(item))
            case {"role": "assistant", "content": content}:
                builder.add_text(_text(content, between=""))
            case {"role": "user", "content": content}:
                builder.add_user(_text(content))
            case {"content": content}:
                builder.add_system(_text(content))
    return builder.messages


def _reasoning_text(item: Mapping[str, Any]) -> str:
    for parts in (item.get("content"), item["summary"]):
        if parts:
            return "\n".join(part["text"] for part in parts)
    return decode_thinking(item.get("encrypted_content") or "")


def _text(content: str | Sequence[Mapping[str, Any]], between: str = "\n\n") -> str:
    if isinstance(content, str):
        return content
    return between.join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content)


def _chat_tool_choice(choice: Mapping[str, Any]) -> Any:
    if choice["type"] == "allowed_tools":
        return choice.get("mode", "auto")
    return {"type": "function", "function": {"name": full_name(choice["name"], choice.get("namespace"))}}


def _response_format(text_format: Mapping[str, Any]) -> dict[str, Any]:
    if text_format["type"] != "json_schema":
        return dict(text_format)
    return {"type": "json_schema", "json_schema": {"name": text_format["name"], "schema": text_format["schema"]}}
