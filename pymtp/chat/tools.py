"""The tools that a request offers, in OpenAI's form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pymtp.errors import InvalidRequestError
from pymtp.grammar.json_schema import MAX_TEXT, schema_text
from pymtp.validation import shown

MAX_TOOLS = 1024
# a name that fits into the tag `<function=NAME>`, and into a JSON string without escapes
_TOOL_NAME = re.compile(r"""[^\s<>"\\\x00-\x1f\x7f]{1,256}""")


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    parameters: the JSON schema of the arguments object.
    strict: whether a schema that no grammar can express is refused; otherwise only the parts that a grammar can express
        are followed.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True)
class NamedTool:
    """The tool_choice that demands a call of one tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool
# as in OpenAI's bodies, where {"type": "function", "function": {"name": …}} demands a call of one tool
GivenToolChoice = ToolChoice | Mapping[str, Any] | None


def read_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Read tools in OpenAI's form: {"type": "function", "function": {"name": …, "parameters": …}}.

    Raises InvalidRequestError for tools in another form, for two tools of one name, and for names that do not fit into
    a tag.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise InvalidRequestError(f"tools must be a list, not {type(tools).__name__}", "tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"there are {len(tools)} tools, and at most {MAX_TOOLS} are allowed", "tools")
    read, remaining = [], MAX_TEXT
    for i, tool in enumerate(tools):
        read.append(_tool(tool, f"tools[{i}]"))
        remaining -= len(json.dumps(read[-1].parameters))
        if remaining < 0:
            raise InvalidRequestError(f"the schemas of the tools are longer than {MAX_TEXT} bytes together", "tools")
    check_names(read)
    return tuple(read)


def read_tool_choice(choice: object, tools: Sequence[Tool]) -> ToolChoice:
    """Read a tool_choice in OpenAI's form; a NamedTool counts, too. None is "auto".

    Raises InvalidRequestError for another form, for a function that is none of the tools, and for "required" without
    tools.
    """
    names = [tool.name for tool in tools]
    match choice:
        case None:
            return "auto"
        case "auto" | "none":
            return choice
        case "required" if names:
            return "required"
        case "required":
            raise InvalidRequestError("tool_choice is required, and there are no tools to call", "tool_choice")
        case NamedTool(str(name)) | {"type": "function", "function": {"name": str(name)}}:
            if name in names:
                return NamedTool(name)
            known = f"which is none of the tools: {', '.join(names)}" if names else "but the request has no tools"
            raise InvalidRequestError(f"tool_choice names {name!r:.80}, {known:.400}", "tool_choice")
    raise InvalidRequestError(
        f"tool_choice={shown(choice):.80} must be auto, none, required or a function by its name", "tool_choice"
    )


def check_names(tools: Sequence[Tool]) -> None:
    """Raise InvalidRequestError for two tools of one name, for names that do not fit into a tag, and for no Tool."""
    names = set()
    for tool in tools:
        if not isinstance(tool, Tool):
            raise InvalidRequestError(f"a tool must be a Tool, as read_tools returns it, not {shown(tool)}", "tools")
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidRequestError(
                f"{tool.name!r:.80} is not allowed as the name of a tool: use letters, digits, _ and -", "tools"
            )
        if tool.name in names:
            raise InvalidRequestError(f"two tools have the name {tool.name!r}", "tools")
        names.add(tool.name)


def _tool(tool: object, where: str) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        raise InvalidRequestError(
            f'{where} must be {{"type": "function", "function": {{…}}}}, not {shown(tool)}', where
        )
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f'{where}.function must be an object with a "name"', f"{where}.function")
    description, strict = function.get("description"), function.get("strict")
    if not isinstance(description, (str, type(None))) or not isinstance(strict, (bool, type(None))):
        raise InvalidRequestError(f'{where}.function: "description" must be a string, and "strict" a boolean', where)
    parameters = function.get("parameters")
    if not isinstance(parameters, (Mapping, type(None))):
        raise InvalidRequestError(f"{where}.function.parameters must be a JSON schema, not {shown(parameters)}", where)
    try:
        schema = json.loads(schema_text(parameters or {}))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}.function.parameters: {error}", f"{where}.function.parameters") from error
    return Tool(function["name"], description or "", schema, bool(strict))
