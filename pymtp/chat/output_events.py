"""Parsed output: the events of a stream, and the whole output with its reasoning, content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the reasoning.

    text: the piece.
    start, end: the positions, in characters, where the piece begins and ends in the text of the output.
    """

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class ContentDelta:
    """A piece of the content. text, start, end: see ReasoningDelta."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class ToolCallStart:
    """The beginning of a tool call.

    index: number of the call in the output, from 0.
    name: name of the called function.
    """

    index: int
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the arguments of a tool call.

    index: number of the call in the output, from 0.
    text: the piece. Joined, all pieces of a complete call are a JSON object.
    """

    index: int
    text: str


OutputEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta


@dataclass(frozen=True)
class ToolCall:
    """A tool call. arguments: a JSON object, as text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedOutput:
    """The output of a model, parsed up to the last text that was pushed.

    reasoning, content: the text; None if the output has none.
    tool_calls: the calls that are complete.
    unfinished_call: a call that was cut off by the end of the output. Its arguments are the beginning of a JSON object,
        without the closing brace, so that no client takes them for complete and runs half of a command.
    """

    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    unfinished_call: ToolCall | None = None
