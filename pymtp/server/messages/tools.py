"""Tools of /v1/messages: those with a schema, and those that only Anthropic's API defines.

Anthropic's models know the schemas of the tools that clients run, such as `bash_20250124`, so requests leave the
schemas out. Here the model gets the schemas, and calls these tools like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymtp.openai.skipped_tools import SkippedTool, check_not_skipped

_TEXT, _WHOLE, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_LINES: dict[str, Any] = {
    "type": "array",
    "items": _WHOLE,
    "description": "First and last line to view, counted from 1; -1: the end.",
}
_EDITS = {"path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT, "insert_line": _WHOLE}
_EDITS |= {"insert_text": _TEXT, "view_range": _LINES}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


# For the type of each tool that the client runs, without its date: its name, its description and its schema.
_CLIENT_TOOLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bash": (
        "bash",
        "Run a command in a bash shell that keeps its state. restart: start a new shell.",
        {
            "type": "object",
            "properties": {"command": _TEXT, "restart": _FLAG},
            "required": ["command"],
        },
    ),
    "text_editor": (
        "str_replace_based_edit_tool",
        "View, create and edit files. view: show a file or folder. create: write file_text. str_replace: replace "
        "old_str, which must occur once, by new_str. insert: insert insert_text after the line insert_line.",
        {
            "type": "object",
            "properties": {"command": _commands("view", "create", "str_replace", "insert"), **_EDITS},
            "required": ["command", "path"],
        },
    ),
    "memory": (
        "memory",
        "View, create, edit, delete and rename files in /memories, which later chats can read. create: write "
        "file_text. str_replace: replace old_str by new_str. insert: insert insert_text after the line insert_line. "
        "rename: from old_path to new_path.",
        {
            "type": "object",
            "properties": {
                "command": _commands("view", "create", "str_replace", "insert", "delete", "rename"),
                **_EDITS,
                "old_path": _TEXT,
                "new_path": _TEXT,
            },
            "required": ["command"],
        },
    ),
}


def chat_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools that the model can call, in OpenAI's form."""
    return [read for tool in body.get("tools") or () if (read := _chat_tool(tool)) is not None]


def skipped_tools(body: Mapping[str, Any]) -> list[SkippedTool]:
    """Return the tools that this server cannot offer, because Anthropic's servers run them, or they return images."""
    return [
        SkippedTool(f"tools.{i}", tool["type"], tool.get("name"))
        for i, tool in enumerate(body.get("tools") or ())
        if _chat_tool(tool) is None
    ]


def chat_tool_choice(body: Mapping[str, Any]) -> Any:
    """Return the tool_choice in OpenAI's form.

    Raises InvalidRequestError if it demands a call, and all tools that it allows are skipped.
    """
    choice = body.get("tool_choice") or {}
    match choice:
        case {"type": "any"}:
            check_not_skipped(skipped_tools(body), None, has_others=bool(chat_tools(body)))
            return "required"
        case {"type": "tool", "name": name}:
            names = {tool["function"]["name"] for tool in chat_tools(body)}
            check_not_skipped(skipped_tools(body), name, has_others=name in names)
            return {"type": "function", "function": {"name": name}}
    return choice.get("type")


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    if "input_schema" in tool:
        function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
        return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}
    family, _, date = str(tool["type"]).rpartition("_")
    if family not in _CLIENT_TOOLS or not date.isdecimal():
        return None
    name, description, schema = _CLIENT_TOOLS[family]
    own = {"name": tool.get("name") or name, "description": description, "parameters": schema}
    return {"type": "function", "function": own}
