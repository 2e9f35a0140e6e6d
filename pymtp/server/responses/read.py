"""Reading of bodies of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pymtp.chat.part_text import content_text
from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import chat_request, check_texts, refuse_unsupported, template_variables
from pymtp.openai.skipped_tools import SkippedTool, check_not_skipped
from pymtp.server.image_parts import content_with_images, ignored_details, with_places
from pymtp.server.message_builder import MessageBuilder, decode_thinking
from pymtp.server.openai.types import SamplingFields, TemplateFields
from pymtp.server.responses.history import DROPPED_ITEMS, FOREIGN_ITEMS, add_foreign_item
from pymtp.server.responses.types import ResponseTool

_CHECKED_FIELDS = (*SamplingFields.model_fields, *TemplateFields.model_fields, "max_output_tokens", "stream")
_CHECKED_FIELDS += ("tools", "tool_choice", "parallel_tool_calls", "reasoning", "thinking", "text", "stop")
Messages = Sequence[Mapping[str, Any]]


def read_response_request(
    body: Mapping[str, Any], messages: Messages, defaults: Mapping[str, Any] = MappingProxyType({})
) -> GenerateRequest:
    """Read a validated body of /v1/responses.

    messages: the messages of the previous response, then the messages of the input (see `input_messages`).
    defaults: see `read_generate_request`.

    Raises InvalidRequestError for fields that are out of range, for a tool_choice that names a tool that the body does
    not have, and if tool_choice demands a call that only skipped tools could answer.
    """
    fields = check_texts({name: body.get(name) for name in _CHECKED_FIELDS})
    refuse_unsupported(body)
    tools, choice = function_tools(fields), _chat_tool_choice(fields)
    instructions = body.get("instructions")
    request = chat_request(
        fields | {"max_tokens": fields["max_output_tokens"]},
        [*([{"role": "system", "content": instructions}] if instructions else ()), *messages],
        defaults,
        tools=[
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
            for tool in tools
        ],
        tool_choice=choice,
        variables=template_variables(fields),
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
            tools += [
                {**tool_fields(each), "name": full_name(each["name"], tool["name"])}
                for each in namespace_functions(tool)
            ]
    return tools


def namespace_functions(namespace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tools of a namespace that are functions."""
    return [tool for tool in namespace["tools"] if tool["type"] == "function"]


def skipped_tools(body: Mapping[str, Any]) -> list[SkippedTool]:
    """Return the tools that are no functions, also those within namespaces: the model cannot call them."""
    skipped: list[SkippedTool] = []
    for i, tool in enumerate(body.get("tools") or ()):
        if tool["type"] == "namespace":
            skipped += [
                SkippedTool(f"tools.{i}.tools.{j}", each["type"], _tool_name(each, tool["name"]))
                for j, each in enumerate(tool["tools"])
                if each["type"] != "function"
            ]
        elif tool["type"] != "function":
            skipped.append(SkippedTool(f"tools.{i}", tool["type"], _tool_name(tool)))
    return skipped


def ignored_names(body: Mapping[str, Any]) -> list[str]:
    """Return names of the tools and items of a body that do not reach the model."""
    items = () if isinstance(body["input"], str) else enumerate(body["input"])
    return [
        *(tool.label for tool in skipped_tools(body)),
        *(() if isinstance(body["input"], str) else ignored_details("input", body["input"])),
        *(f"input.{i}.{item['type']}" for i, item in items if item.get("type") in DROPPED_ITEMS),
    ]


def _tool_name(tool: Mapping[str, Any], namespace: str | None = None) -> str | None:
    name = tool.get("name", tool.get("server_label"))
    return full_name(name, namespace) if isinstance(name, str) else None


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
        for each in namespace_functions(tool)
    }


def allowed_tools(body: Mapping[str, Any]) -> set[str] | None:
    """Return the full names of the tools that tool_choice allows; None if it allows all tools.

    Skipped tools that tool_choice allows are left out.

    Raises InvalidRequestError if tool_choice names a tool that the body does not have.
    """
    match body.get("tool_choice"):
        case {"type": "allowed_tools", "tools": allowed}:
            known = {tool["name"] for tool in function_tools(body)}
            names = {full_name(tool["name"], tool.get("namespace")) for tool in allowed if tool["type"] == "function"}
            if unknown := names - known - {tool.name for tool in skipped_tools(body)}:
                raise InvalidRequestError(f"tool_choice: there is no tool {', '.join(sorted(unknown))}", "tool_choice")
            return names & known
    return None


def input_messages(content: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the `input` of a body, which is a text or a list of items, to chat messages."""
    builder = MessageBuilder()
    for i, item in enumerate([{"role": "user", "content": content}] if isinstance(content, str) else content):
        match item:
            case {"type": "function_call", "call_id": call_id, "name": name}:
                builder.add_tool_call(call_id, full_name(name, item.get("namespace")), item.get("arguments"))
            case {"type": "function_call_output", "call_id": call_id}:
                builder.add_tool_result(call_id, content_with_images(item.get("output")))
            case {"type": "reasoning"}:
                builder.add_reasoning(_reasoning_text(item))
            case {"type": str(kind)} if kind in FOREIGN_ITEMS:
                add_foreign_item(builder, item, full_name)
            case {"role": "assistant"}:
                builder.add_text(content_text(item.get("content"), ""))
            case {"role": "user", "content": list(parts)}:
                builder.add_user(content_with_images(with_places(parts, f"input[{i}].content")))
            case {"role": "user", "content": content}:
                builder.add_user(content_text(content))
            case {"content": content}:
                builder.add_system(content_text(content))
    if content and not builder.messages:  # no item says anything to the model
        builder.add_user("")
    return builder.messages


def _reasoning_text(item: Mapping[str, Any]) -> str:
    for parts in (item.get("content"), item.get("summary")):
        if parts:
            return content_text(parts, "\n")
    return decode_thinking(item.get("encrypted_content") or "")


def _chat_tool_choice(body: Mapping[str, Any]) -> Any:
    """Return the tool_choice in OpenAI's form for chats.

    Raises InvalidRequestError if it demands a call that only skipped tools could answer, or a tool of an unknown type.
    """
    skipped = skipped_tools(body)
    choice: Any = body.get("tool_choice")
    names = {tool["name"] for tool in function_tools(body)}
    match choice:
        case "required":
            check_not_skipped(skipped, None, has_others=bool(names))
        case {"type": "allowed_tools"}:
            if choice.get("mode") == "required":
                check_not_skipped(skipped, None, has_others=bool(allowed_tools(body)))
            return choice.get("mode", "auto")
        case {"type": "function", "name": name}:
            name = full_name(name, choice.get("namespace"))
            check_not_skipped(skipped, name, has_others=name in names)
            return {"type": "function", "function": {"name": name}}
        case {"type": kind}:
            check_not_skipped(skipped, _tool_name(choice) or kind, has_others=False)
            raise InvalidRequestError(
                f"tool_choice: the request has no tool of type {kind!r:.80}, and only functions can be called",
                "tool_choice",
            )
    return choice


def _schema(text_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if text_format["type"] == "json_object":
        return text_format.get("schema") or {"type": "object"}
    return text_format.get("schema") if text_format["type"] == "json_schema" else None
