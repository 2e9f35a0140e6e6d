"""Parsed output: the deltas of a stream, and the whole with reasoning, content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of the reasoning.

    text: the slice from `start` to `end`, in characters, of all text that was pushed so far.
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
    """The beginning of a tool call, which is number `index` of the output, from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call's arguments. All pieces of a complete call, joined, are a JSON object."""

    index: int
    text: str


OutputEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta


@dataclass(frozen=True)
class ToolCall:
    """A tool call. arguments: the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedOutput:
    """The output of a model, parsed as far as it has come.

    reasoning, content: None where there is none.
    tool_calls: the complete calls.
    unfinished_call: a call that the end of the text cut off. Its arguments are the beginning of a JSON object and are
        never closed: a client must not run half of a command.
    """

    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    unfinished_call: ToolCall | None = None
