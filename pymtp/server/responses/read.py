"""Reading of bodies of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import chat_request, check_texts, template_variables
from pymtp.server.message_builder import MessageBuilder, decode_thinking
from pymtp.server.openai.types import SamplingFields, TemplateFields
from pymtp.server.responses.types import ResponseTool

_CHECKED_FIELDS = (*SamplingFields.model_fields, *TemplateFields.model_fields, "max_output_tokens", "stream")
_CHECKED_FIELDS += ("tools", "tool_choice", "parallel_tool_calls", "reasoning", "text")
Messages = Sequence[Mapping[str, Any]]


def read_response_request(
    body: Mapping[str, Any], messages: Messages, defaults: Mapping[str, Any] = MappingProxyType({})
) -> GenerateRequest:
    """Read a validated body of /v1/responses.

    messages: the messages of the previous response, then the messages of the input (see `input_messages`).
    defaults: see `read_generate_request`.

    Raises InvalidRequestError for fields that are out of range, for a tool_choice that names a tool that the body does
    not have, and if tool_choice requires a call, but the server can call none of the tools.
    """
    fields = check_texts({name: body.get(name) for name in _CHECKED_FIELDS})
    tools, choice = function_tools(fields), fields["tool_choice"]
    if fields["tools"] and not tools and choice not in (None, "auto", "none"):
        raise InvalidRequestError(
            f"tool_choice requires a call, but only functions can be called, and the request has only tools of type "
            f"{', '.join(sorted({tool['type'] for tool in fields['tools']}))}",
            "tool_choice",
        )
    instructions = body.get("instructions")
    effort = (fields["reasoning"] or {}).get("effort")
    request = chat_request(
        fields | {"max_tokens": fields["max_output_tokens"]},
        [*([{"role": "system", "content": instructions}] if instructions else ()), *messages],
        defaults,
        tools=[
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in tools
        ],
        tool_choice=_chat_tool_choice(choice) if isinstance(choice, Mapping) else choice,
        variables=template_variables(fields | {"reasoning_effort": effort}),
        parallel_tool_calls=fields["parallel_tool_calls"] is not False,
        schema=_schema((fields["text"] or {}).get("format") or {"type": "text"}),
    )
    allowed = allowed_tools(fields)
    return request if allowed is None else replace(request, tools=[t for t in request.tools if t.name in allowed])


def function_tools(body: Mapping[str, Any]) -> list[ResponseTool]:
    """Return the function tools that the model can call. The functions of namespaces have their full names."""
    tools: list[ResponseTool] = []
    for tool in body.get("tools") or ():
        if tool["type"] == "function":
            tools.append(tool_fields(tool))
        elif tool["type"] == "namespace":
            tools += [{**tool_fields(each), "name": full_name(each["name"], tool["name"])} for each in tool["tools"]]
    return tools


def tool_fields(tool: Mapping[str, Any]) -> ResponseTool:
    """Return the known fields of a function tool; a field that the tool does not have is None."""
    description, parameters, strict = tool.get("description"), tool.get("parameters"), tool.get("strict")
    return {
        "type": "function",
        "name": tool["name"],
        "description": description,
        "parameters": parameters,
        "strict": strict,
    }


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


def _schema(text_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if text_format["type"] == "json_object":
        return text_format.get("schema") or {"type": "object"}
    return text_format.get("schema") if text_format["type"] == "json_schema" else None
