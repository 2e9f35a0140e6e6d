"""Items of `input` that this server does not write itself: calls of other tools, their results, and references.

They are part of the past, so none is refused: each becomes a tool call, a tool result, or a placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from pymtp.chat.part_text import content_text
from pymtp.server.image_parts import content_with_images
from pymtp.server.message_builder import Content, MessageBuilder

Item = Mapping[str, Any]

# For each type of a call: the name of the called tool, and the fields of the item that are its arguments.
_CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "local_shell_call": ("local_shell", ("action",)),
    "shell_call": ("shell", ("action",)),
    "apply_patch_call": ("apply_patch", ("operation",)),
    "computer_call": ("computer", ("action", "actions")),
    "tool_search_call": ("tool_search", ("arguments",)),
    "web_search_call": ("web_search", ("action",)),
    "file_search_call": ("file_search", ("queries",)),
    "code_interpreter_call": ("code_interpreter", ("code",)),
    "image_generation_call": ("image_generation", ("revised_prompt",)),
    "program": ("program", ("code",)),
}
# The calls that OpenAI's servers answer, and the field of the item that has the result.
_RESULT_FIELDS = {
    "web_search_call": "results",
    "file_search_call": "results",
    "code_interpreter_call": "outputs",
    "image_generation_call": "result",
    "mcp_call": "output",
}
ResultType = Literal[
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "computer_call_output",
    "program_output",
    "tool_search_output",
    "mcp_approval_response",
]
# Items that say nothing to the model.
DroppedType = Literal["mcp_list_tools", "ghost_snapshot", "compaction_trigger", "additional_tools"]
CompactionType = Literal["compaction", "compaction_summary", "context_compaction"]
ForeignItemType = Literal[
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "computer_call",
    "tool_search_call",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "program",
    "custom_tool_call",
    "mcp_call",
    "mcp_approval_request",
    "item_reference",
    ResultType,
    DroppedType,
    CompactionType,
]
FOREIGN_ITEMS: tuple[str, ...] = get_args(ForeignItemType)
DROPPED_ITEMS: tuple[str, ...] = get_args(DroppedType)
_RESULTS, _COMPACTIONS = get_args(ResultType), get_args(CompactionType)


def add_foreign_item(builder: MessageBuilder, item: Item, full_name: Callable[[str, str | None], str]) -> None:
    """Add the messages for an item of one of FOREIGN_ITEMS. full_name: joins the name of a tool and its namespace."""
    kind, call_id = item["type"], _call_id(item)
    if kind in _RESULTS:
        builder.add_tool_result(call_id, _result(item))
    elif kind in _COMPACTIONS:
        builder.add_user("[earlier messages, in a form that only another server can read]")
    elif kind == "item_reference":
        if not str(item.get("id")).startswith("rs_"):  # thinking that is lost leaves no gap
            builder.add_text("[a message that is not stored]")
    elif kind not in DROPPED_ITEMS:
        builder.add_tool_call(call_id, *_call(item, full_name))
        if kind in _RESULT_FIELDS:
            builder.add_tool_result(call_id, _own_result(item))


def _call_id(item: Item) -> str:
    return next((str(item[name]) for name in ("call_id", "approval_request_id", "id") if item.get(name)), item["type"])


def _call(item: Item, full_name: Callable[[str, str | None], str]) -> tuple[str, object]:
    """Return the name of the called tool, and its arguments."""
    match item:
        case {"type": "custom_tool_call"}:
            namespace = item.get("namespace")
            name = full_name(str(item.get("name")), namespace if isinstance(namespace, str) else None)
            return name, {"input": item.get("input")}
        case {"type": "mcp_call" | "mcp_approval_request"}:
            return str(item.get("name")), item.get("arguments")
    name, fields = _CALLS[item["type"]]
    given = {field: item[field] for field in fields if item.get(field) is not None}
    only = next(iter(given.values()), None)
    return name, only if isinstance(only, Mapping) else given


def _own_result(item: Item) -> str:
    """Return the result that an item has beside its call."""
    if item["type"] == "image_generation_call":
        return "[image]"
    result = item.get(_RESULT_FIELDS[item["type"]])
    if result is None and item.get("error") is not None:
        result = item["error"]
    return "[a result that is not in the chat]" if result is None else content_text(result)


def _result(item: Item) -> Content:
    match item:
        case {"type": "mcp_approval_response"}:
            verdict = "approved" if item.get("approve") else "denied"
            return f"{verdict}: {item['reason']}" if isinstance(item.get("reason"), str) else verdict
        case {"type": "tool_search_output"}:
            tools = item.get("tools")
            listed = tools if isinstance(tools, list) else []
            names = [str(tool.get("name")) for tool in listed if isinstance(tool, Mapping)]
            return f"[tools: {', '.join(names)}]"
        case {"type": "program_output"}:
            return content_text(item.get("result", item.get("output")))
    return content_with_images(item.get("output") if item.get("output") is not None else item.get("status"))
