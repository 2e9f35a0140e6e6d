"""The incremental parser of outputs: reasoning, content and tool calls, in time linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

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
    BLOCK_VALUE_TAGS,
    FUNCTION_BODY_TAGS,
    HERMES_CALL_TAG,
    INLINE_VALUE_TAGS,
    PARAMETER_TAG,
    THINK_END_TAG,
    THINK_START_TAG,
    TOOL_CALL_END,
    TOOL_CALL_END_TAG,
    TOOL_CALL_START,
    XML_CALL_TAGS,
    tags_outside_calls,
)
from pymtp.chat.tags import TagMatch, TagScanner
from pymtp.chat.tool_call_parser import ToolCallBuilder, parse_hermes_call, parse_unfinished_hermes_call
from pymtp.chat.tool_parameters import ToolParameters
from pymtp.chat.tools import Tool

_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_VALUE_END = re.compile(r"\n?</parameter>")
# `</function>` at the end of the output. The next tag, which would show that it ends the function, is missing or cut.
_UNCONFIRMED_FUNCTION_END = re.compile(r"\n?(</parameter>\s*)?</function>\s*(<[a-z_/]*)?")
_SPACE = " \t\r\n"


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
        self._thinking, self._separate_reasoning = thinking, separate_reasoning
        self._is_json = json_content
        self._json_undecided = json_content  # until the content's first character shows whether JSON or a call begins
        self._calls_allowed = bool(tools)
        self._pending = ""  # the text that is not parsed yet; it begins at position `_from`
        self._from = 0
        self._reasoning_trimmer = EdgeTrimmer("\n", "\n")
        self._content_trimmer = EdgeTrimmer("", _SPACE if tools else "")
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._unfinished_call: ToolCall | None = None
        self._call: ToolCallBuilder | None = None  # the XML call that is being parsed
        self._json: JsonObjectScanner | None = None  # the Hermes call that is being parsed
        self._json_tag: tuple[str, int] = "", 0  # the tag that begins the Hermes call, and the tag's position
        self._after_call_at = -1  # where the text after a call begins; -1 where no call comes before the text
        self._events: list[OutputEvent] = []
        self._scan_outside_calls(at_start=True)

    @property
    def output(self) -> ParsedOutput:
        """Return the output as far as it is parsed; after `finish`, the whole output."""
        reasoning, content = "".join(self._reasoning) or None, "".join(self._content) or None
        return ParsedOutput(reasoning, content, tuple(self._calls), self._unfinished_call)

    def push(self, text: str) -> list[OutputEvent]:
        """Parse more text; return the new events, those that no later text can change."""
        self._pending += text
        while self._next():
            pass
        return self._take_events()

    def finish(self) -> list[OutputEvent]:
        """End the output; return the events that were held back."""
        if self._next == self._outside_calls:
            self._finish_text()
        elif self._json is not None:
            self._finish_hermes_call(self._json.unfinished_text)
        elif self._call is not None:
            self._finish_xml_call(self._call)
        return self._take_events()

    def _take_events(self) -> list[OutputEvent]:
        events, self._events = self._events, []
        return events

    # Text outside of calls

    def _scan_outside_calls(self, *, at_start: bool = False, after_call: bool = False) -> None:
        self._call = self._json = None
        self._after_call_at = self._from if after_call else -1
        tags = tags_outside_calls(
            at_start=at_start, thinking=self._thinking, calls=self._calls_allowed, after_call=after_call
        )
        self._scanner = TagScanner(tags, self._from, "\n")
        self._next: Callable[[], bool] = self._outside_calls

    def _outside_calls(self) -> bool:
        if self._json_undecided and not self._thinking:
            self._decide_json(self._pending.lstrip(_SPACE)[:1])
        match = self._scanner.scan(self._pending, self._from, self._accepts)
        self._take_text(match.start if match else self._scanner.certain_end)
        if not match:
            return False
        if match.tag is HERMES_CALL_TAG:
            self._json = JsonObjectScanner()
            self._json_tag = self._between(match.start, match.end - 1), match.start
            self._skip_to(match.end - 1)
            self._next = self._in_hermes_call
        elif match.tag is TOOL_CALL_END_TAG:
            self._skip_to(match.end)
            self._scan_outside_calls()
        elif match.tag in (THINK_START_TAG, THINK_END_TAG):
            self._thinking = match.tag is THINK_START_TAG
            self._json_undecided = self._is_json
            if self._separate_reasoning:
                self._skip_to(match.end)
                self._content_trimmer.leading = "\n"
            else:
                self._take_text(match.end)
            self._scan_outside_calls()
        else:
            self._begin_xml_call(_name_in_tag(_FUNCTION, self._between(match.start, match.end)))
        return True

    def _decide_json(self, first: str) -> None:
        """Decide by the first character of the content whether it is JSON. JSON content has no calls."""
        if first:
            self._json_undecided = False
            if first != "<":
                self._calls_allowed = False
                self._scan_outside_calls()

    def _accepts(self, match: TagMatch) -> bool:
        """Return whether a tag counts.

        Within the thinking, and where `<tool_call>` is missing, the tag of a call counts only if its tool is known.
        """
        if match.tag in XML_CALL_TAGS and not self._thinking:
            return True
        name = _FUNCTION.search(self._between(match.start, match.end))
        return name is None or name[1] in self._tools

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

    def _finish_text(self) -> None:
        rest = self._pending
        function = _FUNCTION.match(rest.lstrip("\n"))
        is_call_end = self._from == self._after_call_at and rest.strip() and TOOL_CALL_END.startswith(rest.strip())
        if rest.startswith(TOOL_CALL_START) or (function and function[1] in self._tools) or is_call_end:
            return  # a call that was cut off within its first tags, or in its `</tool_call>`: neither is content
        self._take_text(self._from + len(rest))
        if not self._calls:
            self._add_content(self._content_trimmer.flush())

    # XML calls

    def _begin_xml_call(self, name: str) -> None:
        """Begin an XML call, and skip the tag `<function=…>` that comes next."""
        self._interrupt_text()
        unknown = Tool(name)
        self._call = ToolCallBuilder(len(self._calls), name, self._tools.get(name) or ToolParameters(unknown))
        self._events.append(ToolCallStart(self._call.index, name))
        self._skip_to(self._from + self._pending.index(">", self._pending.index("<function=")) + 1)
        self._scan_function()

    def _interrupt_text(self) -> None:
        self._reasoning_trimmer.interrupt()
        self._content_trimmer.interrupt()

    def _scan_function(self) -> None:
        self._scanner = TagScanner(FUNCTION_BODY_TAGS, self._from)
        self._next = self._in_function

    def _in_function(self) -> bool:
        match = self._scanner.scan(self._pending, self._from, lambda _: True)
        if not match:
            return False
        assert self._call is not None
        if match.tag is PARAMETER_TAG:
            name = _name_in_tag(_PARAMETER, self._between(self._from, match.end))
            self._add_arguments(self._call.begin_parameter(name))
            self._skip_to(match.end)
            self._next = self._at_value
        else:
            self._end_xml_call(self._call)
            self._skip_to(match.end)
            self._scan_outside_calls(after_call=True)
        return True

    def _at_value(self) -> bool:
        if not self._pending:
            return False
        is_block = self._pending[0] == "\n"
        self._skip_to(self._from + is_block)
        tags = BLOCK_VALUE_TAGS if is_block else INLINE_VALUE_TAGS
        self._scanner = TagScanner(tags, self._from, "\n" if is_block else "")
        self._next = self._in_value
        return True

    def _in_value(self) -> bool:
        match = self._scanner.scan(self._pending, self._from, self._ends_value)
        assert self._call is not None
        end = match.start if match else self._scanner.certain_end
        self._add_arguments(self._call.add_text(self._between(self._from, end)))
        self._skip_to(end)
        if not match:
            return False
        self._add_arguments(self._call.end_parameter())
        closed = _VALUE_END.match(self._pending)
        self._skip_to(self._from + (closed.end() if closed else 0))
        self._scan_function()
        return True

    def _ends_value(self, match: TagMatch) -> bool:
        """Return whether a tag ends the value of a parameter.

        The tag of a parameter that the call already has does not end the value: each parameter comes only once. Without
        `</parameter>` before it, the tag of a parameter that the tool does not have does not end the value, either.
        """
        assert self._call is not None
        text = self._between(match.start, match.end)
        name = _PARAMETER.search(text)
        if name is None:
            return True
        is_new = name[1] not in self._call.seen_parameters
        return is_new and ("</parameter>" in text or name[1] in self._call.parameters)

    def _add_arguments(self, text: str) -> None:
        assert self._call is not None
        if text:
            self._events.append(ToolCallDelta(self._call.index, text))

    def _end_xml_call(self, call: ToolCallBuilder) -> None:
        self._add_arguments(call.end_call())
        self._calls.append(call.call)

    def _finish_xml_call(self, call: ToolCallBuilder) -> None:
        if self._next == self._in_value:
            for start in self._scanner.partial_starts:
                closed = _UNCONFIRMED_FUNCTION_END.fullmatch(self._pending, start - self._from)
                if closed and TOOL_CALL_END.startswith(closed[2] or ""):
                    self._add_arguments(call.add_text(self._between(self._from, start)))
                    self._add_arguments(call.end_parameter())
                    self._end_xml_call(call)
                    return
        self._unfinished_call = call.call

    # Calls in Hermes' form

    def _in_hermes_call(self) -> bool:
        assert self._json is not None
        behind = self._json.push(self._pending)
        end = self._from + len(self._pending)
        self._skip_to(end)
        if behind is None:
            return False
        self._pending, self._from = behind, end - len(behind)
        call = parse_hermes_call(self._json.text)
        if call is None or not self._can_call(call):
            tag, start = self._json_tag
            self._add_text(tag + self._json.text, start)
            self._scan_outside_calls()
            return True
        self._add_call_events(call)
        self._calls.append(call)
        self._scan_outside_calls(after_call=True)
        return True

    def _finish_hermes_call(self, text: str) -> None:
        call = parse_unfinished_hermes_call(text)
        if call is None:
            return
        if not self._can_call(call):
            tag, start = self._json_tag
            self._add_text(tag + text, start)
            return
        self._add_call_events(call)
        self._unfinished_call = call

    def _can_call(self, call: ToolCall) -> bool:
        """Return whether a call counts: within the thinking, only a known tool can be called."""
        return not self._thinking or call.name in self._tools

    def _add_call_events(self, call: ToolCall) -> None:
        self._interrupt_text()
        index = len(self._calls)
        self._events.append(ToolCallStart(index, call.name))
        if call.arguments:
            self._events.append(ToolCallDelta(index, call.arguments))

    # The pending text

    def _between(self, start: int, end: int) -> str:
        return self._pending[start - self._from : end - self._from]

    def _skip_to(self, end: int) -> None:
        self._pending = self._pending[end - self._from :]
        self._from = end


def _name_in_tag(tag: re.Pattern[str], text: str) -> str:
    match = tag.search(text)
    assert match is not None
    return match[1]


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
        self.leading = self.leading or "\n"
        if not self._has_output:
            self._begun, self._held_back = False, []

    def flush(self) -> list[Slice]:
        """Return the slices that were held back."""
        slices, self._held_back = self._held_back, []
        return slices
