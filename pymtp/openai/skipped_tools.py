"""Tools of a request that this server cannot offer to the model: they are skipped, and the answer names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymtp.errors import InvalidRequestError


class SkippedTool(NamedTuple):
    """A tool that the model cannot call.

    where: its place in the body, such as "tools.2".
    kind: the type that the client gave it.
    name: the name by which tool_choice may demand it; None if it has no name of its own.
    """

    where: str
    kind: str
    name: str | None = None

    @property
    def label(self) -> str:
        """Return the place and the type, for the header that names what a request's answer ignores."""
        return f"{self.where}.{self.kind}"


def check_not_skipped(skipped: Sequence[SkippedTool], name: str | None, *, has_others: bool) -> None:
    """Raise InvalidRequestError if tool_choice demands a call that only skipped tools could answer.

    name: the tool, or type of tool, that is demanded; None if any call will do.
    has_others: whether a tool that is not skipped can answer.
    """
    wanted = [tool for tool in skipped if name is None or name in (tool.name, tool.kind)]
    if has_others or not wanted:
        return
    kinds = ", ".join(sorted({f"{tool.kind:.64}" for tool in wanted}))
    subject = "requires a call, but the request has only tools" if name is None else f"names {name!r:.80}, a tool"
    raise InvalidRequestError(
        f"tool_choice {subject} of type {kinds}, which this server cannot offer: give functions with a schema",
        "tool_choice",
    )


def split_tools(tools: object) -> tuple[Sequence[Any], list[SkippedTool]]:
    """Return the functions among the tools of a chat in OpenAI's form, and the tools of other types.

    Malformed tools count as functions, so that `read_tools` refuses them.
    """
    if not isinstance(tools, (list, tuple)):
        return tools or [], []  # type: ignore[return-value]  # read_tools refuses what is no list
    others = {
        i: SkippedTool(f"tools.{i}", tool["type"], _name(tool))
        for i, tool in enumerate(tools)
        if isinstance(tool, Mapping) and isinstance(tool.get("type"), str) and tool["type"] != "function"
    }
    return [tool for i, tool in enumerate(tools) if i not in others], list(others.values())


def check_tool_choice(choice: Any, tools: Sequence[Any], skipped: Sequence[SkippedTool]) -> None:
    """Raise InvalidRequestError if a chat's tool_choice, in OpenAI's form, demands a skipped tool.

    tools: the functions of the chat.
    """
    match choice:
        case "required":
            check_not_skipped(skipped, None, has_others=bool(tools))
        case {"type": str(kind)} if kind != "function":
            check_not_skipped(skipped, _name(choice) or kind, has_others=False)


def _name(tool: Mapping[str, Any]) -> str | None:
    own = tool.get(tool["type"])
    name = own.get("name") if isinstance(own, Mapping) else tool.get("name")
    return name if isinstance(name, str) else None
