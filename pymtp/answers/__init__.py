"""How a chat's answer is written, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pymtp.errors import InvalidRequestError


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True)
class NamedTool:
    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True)
class Thought:
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Said:
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class CallBegun:
    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    index: int
    text: str


Event = Thought | Said | CallBegun | CallArguments


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    thinking: str | None
    content: str | None
    calls: tuple[Call, ...]


class AnswerReader:
    def __init__(self) -> None:
        self._text = ""

    def push(self, text: str) -> list[Event]:
        start = len(self._text)
        self._text += text
        return [Said(text, start, len(self._text))] if text else []

    def finish(self) -> list[Event]:
        return []

    @property
    def answer(self) -> Answer:
        return Answer(None, self._text, ())


class AnswerFormat:
    def __init__(
        self,
        template: str | None,
        prompt_end: str,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice = "auto",
        parallel: bool = True,
        schema: Mapping[str, Any] | None = None,
        splits_thinking: bool = True,
    ) -> None:
        self.gbnf: str | None = None

    def reader(self) -> AnswerReader:
        return AnswerReader()


def read_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            each["function"]["name"], each["function"].get("description") or "", each["function"].get("parameters", {})
        )
        for each in tools
    )


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for message in messages:
        content = message.get("content")
        if "content" not in message:
            raise InvalidRequestError("a message needs content")
        if isinstance(content, list):
            if any(part.get("type") != "text" for part in content):
                raise InvalidRequestError("content must be text")
            content = "".join(part["text"] for part in content)
        found.append({**message, "content": content or ""})
    return found
