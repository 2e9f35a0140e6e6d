"""Bodies of /v1/responses as those of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.server.message_builder import Turns, unsealed
from pymtp.server.openai.types import Choosing, Templating

_SAME = ("stream", "parallel_tool_calls", *Choosing.model_fields, *Templating.model_fields)
Messages = Sequence[Mapping[str, Any]]


def chat_body(body: Mapping[str, Any], messages: Messages) -> dict[str, Any]:
    """What a valid body asks for, in OpenAI's older form. messages: see `read_input`, and those before.

    Raises InvalidRequestError where a call is asked for, and no tool can be called.
    """
    found = {name: body[name] for name in _SAME if body.get(name) is not None}
    instructions = body.get("instructions")
    found["messages"] = [*([{"role": "system", "content": instructions}] if instructions else ()), *messages]
    if body.get("max_output_tokens") is not None:
        found["max_tokens"] = body["max_output_tokens"]
    if tools := functions(body):
        found["tools"] = [
            {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}} for tool in tools
        ]
    elif body.get("tools") and body.get("tool_choice") not in (None, "auto", "none"):
        raise InvalidRequestError(
            f"tool_choice asks for a call, and only functions can be called here: the tools are "
            f"{', '.join(sorted({tool['type'] for tool in body['tools']}))}",
            "tool_choice",
        )
    if (choice := body.get("tool_choice")) is not None:
        found["tool_choice"] = choice if isinstance(choice, str) else _tool_choice(choice)
    if effort := (body.get("reasoning") or {}).get("effort"):
        found["reasoning_effort"] = effort
    if form := (body.get("text") or {}).get("format"):
        found["response_format"] = _response_format(form)
    return found


def functions(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that a model here can call, by the names that it calls them."""
    found = []
    for tool in body.get("tools") or ():
        if tool["type"] == "function":
            found.append(tool_of(tool))
        elif tool["type"] == "namespace":
            found += [tool_of(each) | {"name": full_name(each["name"], tool["name"])} for each in tool["tools"]]
    return found


def tool_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a function."""
    return {name: tool.get(name) for name in ("type", "name", "description", "parameters", "strict")}


def full_name(name: str, namespace: str | None) -> str:
    """By which a model calls a tool."""
    return name if not namespace else f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def namespaces(body: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Of tools that have one: the full name → the namespace, and the name within it."""
    return {
        full_name(each["name"], tool["name"]): (tool["name"], each["name"])
        for tool in body.get("tools") or ()
        if tool["type"] == "namespace"
        for each in tool["tools"]
    }


def allowed_tools(body: Mapping[str, Any]) -> set[str] | None:
    """Full names of the only tools that may be called; None for all.

    Raises InvalidRequestError for names of no tools.
    """
    match body.get("tool_choice"):
        case {"type": "allowed_tools", "tools": allowed}:
            names = {full_name(tool["name"], tool.get("namespace")) for tool in allowed}
            if unknown := names - {tool["name"] for tool in functions(body)}:
                raise InvalidRequestError(f"tool_choice: there is no tool {', '.join(sorted(unknown))}", "tool_choice")
            return names
    return None


def read_input(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The input as messages of a chat."""
    turns = Turns()
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item:
            case {"type": "function_call", "call_id": call, "name": name, "arguments": arguments}:
                turns.called(call, full_name(name, item.get("namespace")), arguments)
            case {"type": "function_call_output", "call_id": call, "output": output}:
                turns.result(call, _text(output))
            case {"type": "reasoning"}:
                turns.thought(_thought(item))
            case {"role": "assistant", "content": content}:
                turns.said(_text(content, between=""))
            case {"role": "user", "content": content}:
                turns.user(_text(content))
            case {"content": content}:
                turns.system(_text(content))
    return turns.messages


def _thought(item: Mapping[str, Any]) -> str:
    for parts in (item.get("content"), item["summary"]):
        if parts:
            return "\n".join(part["text"] for part in parts)
    return unsealed(item.get("encrypted_content") or "")


def _text(content: str | Sequence[Mapping[str, Any]], between: str = "\n\n") -> str:
    if isinstance(content, str):
        return content
    return between.join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content)


def _tool_choice(choice: Mapping[str, Any]) -> Any:
    if choice["type"] == "allowed_tools":
        return choice.get("mode", "auto")
    return {"type": "function", "function": {"name": full_name(choice["name"], choice.get("namespace"))}}


def _response_format(form: Mapping[str, Any]) -> dict[str, Any]:
    if form["type"] != "json_schema":
        return dict(form)
    return {"type": "json_schema", "json_schema": {"name": form["name"], "schema": form["schema"]}}
