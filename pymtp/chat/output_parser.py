"""The incremental parser of outputs: reasoning, content and tool calls, in time linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar

from pymtp.chat.json_scanner import JsonObjectScanner
from pymtp.chat.output_events import (
    ContentDelta,
    OutputEvent,
    ParsedOutput,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)
from pymtp.chat.qwen_tags import (
    AFTER_CALL_TAGS,
    BLOCK_VALUE_TAGS,
    CRLF_VALUE_TAGS,
    FUNCTION_END,
    HERMES_CALL_TAG,
    INLINE_VALUE_TAGS,
    THINK_END_TAG,
    THINK_START_TAG,
    TOOL_CALL_END,
    XML_CALL_TAGS,
    tags_outside_calls,
)
from pymtp.chat.tags import SPACES, TagMatch, TagScanner
from pymtp.chat.tool_call_parser import (
    ToolCallBuilder,
    parse_hermes_call,
    parse_unfinished_hermes_call,
    read_name,
)
from pymtp.chat.tool_parameters import ToolParameters
from pymtp.chat.tools import Tool

_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_NEXT_TAG = re.compile(rf"[{SPACES}]*(?:{_PARAMETER.pattern}|{FUNCTION_END}|{TOOL_CALL_END})")
_VALUE_END = re.compile(rf"\r?\n?</parameter>(?:[{SPACES}]*</parameter>)*")
# `</function>` at the end of the output. The next tag, which would show that it ends the function, is missing or cut.
_UNCONFIRMED_FUNCTION_END = re.compile(r"\r?\n?(?:</parameter>\s*)*(?:</function>\s*)+(?P<next><[a-z_/]*)?")
# The output ends with a cut `<tool_call>`, or in it. "<" or "<tool" alone may be text.
_CALL_BEGINS = "<tool_"

# The ends of a value, by the line end before the value; "" for a value on the line of its tag.
_VALUE_TAGS = {"\r\n": CRLF_VALUE_TAGS, "\n": BLOCK_VALUE_TAGS, "": INLINE_VALUE_TAGS}

Result = TypeVar("Result")
_Steps = Generator[None, None, Result]


class OutputParser:
    """A parser for an output that is pushed in pieces. The pieces do not change the output, or the joined events.

    Reasoning is the text before `</think>`, without the newlines around it. Content is the text after it, without the
    newlines before the content and the whitespace around calls. A call that begins within the thinking counts as a
    call. Text that only looks like a call becomes content. Without tools, the tags of calls are content, too.

    The events of a call have its arguments as JSON: strings piece by piece, all other values whole. The arguments of a
    call in Hermes' form come in one event, when the call or the output has ended. A call that was cut off by the end of
    the output is not among `output.tool_calls`, and its arguments are not closed: see `ParsedOutput.unfinished_call`.
    """

    def __init__(
        self,
        tools: Sequence[Tool] = (),
        *,
        thinking: bool = False,
        separate_reasoning: bool = True,
        json_content: bool = False,
    ) -> None:
        """Prepare to parse an output.

        tools: the tools that may be called.
        thinking: whether the output begins within the thinking, because the prompt has opened it.
        separate_reasoning: whether reasoning is separated from content; otherwise it is content, together with its
            tags.
        json_content: whether the content is JSON. A tag in its strings begins no call.
        """
        self._tools = {tool.name: ToolParameters(tool) for tool in tools}
        self._thinking, self._separate_reasoning, self._is_json = thinking, separate_reasoning, json_content
        self._pending = ""  # the text that is not parsed yet; it begins at position `_from`
        self._from = 0
        self._ended = False  # whether no text follows after the pending text
        self._reasoning_trimmer = EdgeTrimmer("\r\n", "\r\n")
        self._content_trimmer = EdgeTrimmer("", SPACES if tools else "")
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._unfinished_call: ToolCall | None = None
        self._events: list[OutputEvent] = []
        self._steps = self._parse()

    @property
    def output(self) -> ParsedOutput:
        """Return the output as far as it is parsed; after `finish`, the whole output."""
        reasoning, content = "".join(self._reasoning) or None, "".join(self._content) or None
        return ParsedOutput(reasoning, content, tuple(self._calls), self._unfinished_call)

    def push(self, text: str) -> list[OutputEvent]:
        """Parse more text; return the new events, those that no later text can change."""
        self._pending += text
        return self._resume()

    def finish(self) -> list[OutputEvent]:
        """End the output; return the events that were held back."""
        self._ended = True
        return self._resume()

    def _resume(self) -> list[OutputEvent]:
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    # Each generator below parses the part of the output that it is named after. It yields where it needs more text, and
    # is resumed with more text, or at the end of the output.

    def _parse(self) -> _Steps[None]:
        calls_allowed, json_undecided = bool(self._tools), self._is_json
        at_start, after_call = True, False
        while True:
            if json_undecided and not self._thinking:
                # The content's first character shows whether it is JSON or a call. JSON has no calls.
                while not (begin := self._pending.lstrip(SPACES)[:1]) and not self._ended:
                    yield
                json_undecided, calls_allowed = False, calls_allowed and begin == "<"
            tags = tags_outside_calls(
                at_start=at_start, thinking=self._thinking, calls=calls_allowed, after_call=after_call
            )
            start = self._from
            match = yield from self._scan(TagScanner(tags, start), self._accepts, self._take_text)
            if not match:
                self._finish_text(after_call=after_call and self._from == start)
                return
            at_start = after_call = False
            if match.tag in (THINK_START_TAG, THINK_END_TAG):
                self._thinking, json_undecided = match.tag == THINK_START_TAG, self._is_json
                if self._separate_reasoning:
                    self._skip_to(match.end)
                    self._content_trimmer.leading = "\r\n"
                else:
                    self._take_text(match.end)
            elif match.tag in AFTER_CALL_TAGS:
                self._skip_to(match.end)
                after_call = True  # the tags may be repeated
            elif match.tag == HERMES_CALL_TAG:
                after_call = yield from self._hermes_call(match)
            else:
                after_call = yield from self._xml_call()
            if self._ended:  # within the call
                return

    def _scan(
        self, scanner: TagScanner, accepts: Callable[[TagMatch], bool], take: Callable[[int], None]
    ) -> _Steps[TagMatch | None]:
        """Scan for the next tag. Return None if the output ends without one.

        take: a function that takes the pending text up to a position: the text that belongs to no tag.
        """
        while True:
            match = scanner.scan(self._pending, self._from, accepts)
            end = self._from + len(self._pending)
            take(match.start if match else next(scanner.partial_starts(self._pending, self._from), end))
            if match or self._ended:
                return match
            yield

    # Text outside of calls

    def _accepts(self, match: TagMatch) -> bool:
        """Return whether a tag counts.

        Within the thinking, and where `<tool_call>` is missing, the tag of a call counts only if its tool is known.
        """
        if match.tag in XML_CALL_TAGS and not self._thinking:
            return True
        name = _FUNCTION.search(self._between(match.start, match.end))
        return name is None or read_name(name[1], self._tools) in self._tools

    def _take_text(self, end: int) -> None:
        """Add the text up to the position `end` to the reasoning or the content."""
        text, start = self._between(self._from, end), self._from
        self._skip_to(end)
        self._add_text(text, start)

    def _add_text(self, text: str, start: int) -> None:
        if self._thinking and self._separate_reasoning:
            for part, at in self._reasoning_trimmer.push(text, start):
                self._reasoning.append(part)
                self._events.append(ReasoningDelta(part, at, at + len(part)))
        else:
            self._add_content(self._content_trimmer.push(text, start))

    def _add_content(self, slices: list[tuple[str, int]]) -> None:
        for part, at in slices:
            self._content.append(part)
            self._events.append(ContentDelta(part, at, at + len(part)))

    def _finish_text(self, *, after_call: bool) -> None:
        """Take the text that was held back, unless it is a part of a call: that is no content.

        after_call: whether the text comes directly after a call.
        """
        rest = self._pending
        function = _FUNCTION.match(rest.lstrip("\n"))
        is_call = rest.startswith(_CALL_BEGINS) or (function and read_name(function[1], self._tools) in self._tools)
        end = rest.strip()
        is_call_end = after_call and end and any(tag.startswith(end) for tag in (FUNCTION_END, TOOL_CALL_END))
        if is_call or is_call_end:
            return
        self._take_text(self._from + len(rest))
        if not self._calls:
            self._add_content(self._content_trimmer.flush())

    # Calls. Each generator returns whether the call is complete.

    def _begin_call(self, name: str) -> int:
        """Begin a call, and return its index."""
        self._reasoning_trimmer.interrupt()
        self._content_trimmer.interrupt()
        index = len(self._calls)
        self._events.append(ToolCallStart(index, name))
        return index

    def _xml_call(self) -> _Steps[bool]:
        function = _FUNCTION.search(self._pending)
        assert function is not None
        self._skip(function.end())
        name = read_name(function[1], self._tools)
        call = ToolCallBuilder(self._begin_call(name), name, self._tools.get(name) or ToolParameters(Tool(name)))
        # The next tag is complete: it is a part of the tag that began the call, or that ended the value before.
        while tag := _NEXT_TAG.match(self._pending):
            self._skip(tag.end())
            if tag[1] is None:
                self._end_call(call)
                return True
            self._add_arguments(call, call.begin_parameter(read_name(tag[1], call.parameters)))
            if not (yield from self._value(call)):
                break
        return False

    def _value(self, call: ToolCallBuilder) -> _Steps[bool]:
        """Parse the value of a parameter, and its end. Return False if the output ends first."""
        while self._pending in ("", "\r") and not self._ended:
            yield
        line_end = next((end for end in _VALUE_TAGS if self._pending.startswith(end)), "")
        self._skip(len(line_end))
        scanner = TagScanner(_VALUE_TAGS[line_end], self._from)
        take = partial(self._take_value, call, line_end)
        if (yield from self._scan(scanner, partial(self._ends_value, call), take)):
            self._add_arguments(call, call.end_parameter())
            closed = _VALUE_END.match(self._pending)
            self._skip(closed.end() if closed else 0)
            return True
        for start in scanner.partial_starts(self._pending, self._from):
            closed = _UNCONFIRMED_FUNCTION_END.fullmatch(self._pending, start - self._from)
            if closed and TOOL_CALL_END.startswith(closed["next"] or ""):
                take(start)
                self._add_arguments(call, call.end_parameter())
                self._end_call(call)
                return False
        self._unfinished_call = call.call
        return False

    def _ends_value(self, call: ToolCallBuilder, match: TagMatch) -> bool:
        """Return whether a tag ends the value of a parameter.

        The tag of a parameter that the call already has does not end the value: each parameter comes only once. Without
        `</parameter>` before it, the tag of a parameter that the tool does not have does not end the value, either.
        """
        text = self._between(match.start, match.end)
        name = _PARAMETER.search(text)
        if name is None:
            return True
        own = read_name(name[1], call.parameters)
        return own not in call.seen_parameters and ("</parameter>" in text or own in call.parameters)

    def _take_value(self, call: ToolCallBuilder, line_end: str, end: int) -> None:
        """Add the text up to the position `end` to a value.

        line_end: the line end before the value; "" for a value on the line of its tag. CRLF becomes one character.
        """
        text = self._between(self._from, end)
        # The scanner holds back a \r at the end of the text, so no piece ends between \r and \n.
        self._add_arguments(call, call.add_text(text.replace("\r\n", "\n") if line_end == "\r\n" else text))
        self._skip_to(end)

    def _add_arguments(self, call: ToolCallBuilder, text: str) -> None:
        if text:
            self._events.append(ToolCallDelta(call.index, text))

    def _end_call(self, call: ToolCallBuilder) -> None:
        self._add_arguments(call, call.end_call())
        self._calls.append(call.call)

    def _hermes_call(self, begin: TagMatch) -> _Steps[bool]:
        brace = begin.end - 1
        tag = self._between(begin.start, brace)
        self._skip_to(brace)
        scanner = JsonObjectScanner()
        while (behind := scanner.push(self._pending)) is None and not self._ended:
            self._skip(len(self._pending))
            yield
        self._skip(len(self._pending) - len(behind or ""))
        text = scanner.unfinished_text if behind is None else scanner.text
        call = parse_unfinished_hermes_call(text) if behind is None else parse_hermes_call(text)
        # Within the thinking, only a known tool can be called.
        if call and (not self._thinking or call.name in self._tools):
            index = self._begin_call(call.name)
            if call.arguments:
                self._events.append(ToolCallDelta(index, call.arguments))
            if behind is not None:
                self._calls.append(call)
                return True
            self._unfinished_call = call
        elif call or behind is not None:
            self._add_text(tag + text, begin.start)
        return False

    # The pending text

    def _between(self, start: int, end: int) -> str:
        return self._pending[start - self._from : end - self._from]

    def _skip(self, n: int) -> None:
        self._pending, self._from = self._pending[n:], self._from + n

    def _skip_to(self, end: int) -> None:
        self._skip(end - self._from)


Slice = tuple[str, int]  # a piece of text, and its position in the output


class EdgeTrimmer:
    """A filter that removes leading and trailing characters from text that arrives piece by piece."""

    def __init__(self, leading: str, trailing: str) -> None:
        """Prepare to filter a text.

        leading, trailing: the characters to remove at the beginning, and at the end of the text.
        """
        self.leading, self.trailing = leading, trailing
        self._begun = self._has_output = False
        self._held_back: list[Slice] = []

    def push(self, text: str, start: int) -> list[Slice]:
        """Filter more text; return the slices that are certainly not trailing characters."""
        if not self._begun:
            rest = text.lstrip(self.leading)
            text, start = rest, start + len(text) - len(rest)
        if not text:
            return []
        self._begun = True
        body = text.rstrip(self.trailing) if self.trailing else text
        slices: list[Slice] = []
        if body:
            self._has_output = True
            slices, self._held_back = [*self._held_back, (body, start)], []
        if len(body) < len(text):
            self._held_back.append((text[len(body) :], start + len(body)))
        return slices

    def interrupt(self) -> None:
        """Note that a call comes next.

        The characters that were held back are kept only if other text comes both before and after the call.
        """
        self.leading = self.leading or "\r\n"
        if not self._has_output:
            self._begun, self._held_back = False, []

    def flush(self) -> list[Slice]:
        """Return the slices that were held back."""
        slices, self._held_back = self._held_back, []
        return slices
