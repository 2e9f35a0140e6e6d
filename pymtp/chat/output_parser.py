"""Reads an answer as it comes: thinking, content and calls of tools. Linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pymtp.chat import written
from pymtp.chat.events import Answer, Call, CallArguments, CallBegun, Event, Said, Thought
from pymtp.chat.json_end import JsonText
from pymtp.chat.tags import Found, Watch
from pymtp.chat.tool_call_parser import CallText, hermes_call, unfinished_hermes_call
from pymtp.chat.tool_parameters import Parameters
from pymtp.chat.tools import Tool

_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_VALUE_CLOSED = re.compile(r"\n?</parameter>")
# a function that was closed, in a text that ends before what would follow
_CLOSED = re.compile(r"\n?(</parameter>\s*)?</function>\s*(<[a-z_/]*)?")
_SPACE = " \t\r\n"


class AnswerReader:
    """Takes a text in any pieces: the events of the same text, joined, are the same, and so is the answer.

    Thinking is what comes before `</think>`, without the newlines around it. Content follows, without the newlines
    before it and the whitespace around calls. A call that begins within the thinking is a call. What looks like one but
    is none, and all tags in a text without tools, are content.

    The arguments of a call come as JSON, strings among them piece by piece and all other values whole; those of
    Hermes' form come when the call, or the text, has ended. A call that the text breaks off is not among
    `answer.calls`, and its arguments are not closed: see `Answer.unfinished`.
    """

    def __init__(
        self,
        tools: Sequence[Tool] = (),
        *,
        thinking: bool = False,
        splits_thinking: bool = True,
        json_content: bool = False,
    ) -> None:
        """tools: those that may be called. thinking: whether the text begins within thinking. splits_thinking: whether
        thinking is told apart; otherwise it is content, with its tags. json_content: whether content is JSON, in whose
        strings no call begins."""
        self._tools = {tool.name: Parameters(tool) for tool in tools}
        self._thinking, self._splits = thinking, splits_thinking
        self._is_json = self._json_content = json_content  # the second: as far as it is open whether it is
        self._calls_come = bool(tools)
        self._pending = ""  # what has come from `_from` on
        self._from = 0
        self._thought_edges = Edges("\n", "\n")
        self._said_edges = Edges("", _SPACE if tools else "")
        self._thought: list[str] = []
        self._said: list[str] = []
        self._calls: list[Call] = []
        self._unfinished: Call | None = None
        self._call: CallText | None = None
        self._json: JsonText | None = None
        self._json_tag: tuple[str, int] = "", 0
        self._called_at = -1  # where the text behind a call begins
        self._events: list[Event] = []
        self._watch_for_tags(begins=True)

    @property
    def answer(self) -> Answer:
        """What has come so far; the whole after `finish`."""
        thinking, content = "".join(self._thought) or None, "".join(self._said) or None
        return Answer(thinking, content, tuple(self._calls), self._unfinished)

    def push(self, text: str) -> list[Event]:
        """What is certain by now."""
        self._pending += text
        while self._next():
            pass
        return self._given()

    def finish(self) -> list[Event]:
        """What was held back, at the end of the text."""
        if self._next == self._look_for_tags:
            self._finish_text()
        elif self._json is not None:
            self._finish_json(self._json.unended)
        elif self._call is not None:
            self._finish_call(self._call)
        return self._given()

    def _given(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # what stands outside of calls

    def _watch_for_tags(self, *, begins: bool = False, called: bool = False) -> None:
        self._call = self._json = None
        self._called_at = self._from if called else -1
        marks = written.tags(begins=begins, thinking=self._thinking, calls=self._calls_come, called=called)
        self._watch = Watch(marks, self._from, "\n")
        self._next: Callable[[], bool] = self._look_for_tags

    def _look_for_tags(self) -> bool:
        if self._json_content and not self._thinking:
            self._decide(self._pending.lstrip(_SPACE)[:1])
        found = self._watch.look(self._pending, self._from, self._counts)
        self._text(found.start if found else self._watch.held)
        if not found:
            return False
        if found.mark is written.HERMES:
            self._json = JsonText()
            self._json_tag = self._between(found.start, found.end - 1), found.start
            self._skip(found.end - 1)
            self._next = self._in_json
        elif found.mark is written.ENDS_CALL:
            self._skip(found.end)
            self._watch_for_tags()
        elif found.mark in (written.THINKS, written.THINKS_NO_MORE):
            self._thinking = found.mark is written.THINKS
            self._json_content = self._is_json
            if self._splits:
                self._skip(found.end)
                self._said_edges.leading = "\n"
            else:
                self._text(found.end)
            self._watch_for_tags()
        else:
            self._begin_call(_named(_FUNCTION, self._between(found.start, found.end)))
        return True

    def _decide(self, first: str) -> None:
        """Whether content that may be JSON is, by its first character."""
        if first:
            self._json_content = False
            if first != "<":
                self._calls_come = False
                self._watch_for_tags()

    def _counts(self, found: Found) -> bool:
        """Whether a tag is one. Where no tag says so, or within thinking, only a tool that there is can be called."""
        if found.mark in written.XML and not self._thinking:
            return True
        name = _FUNCTION.search(self._between(found.start, found.end))
        return name is None or name[1] in self._tools

    def _text(self, end: int) -> None:
        """Gives out the text up to there."""
        text, start = self._between(self._from, end), self._from
        self._skip(end)
        self._give(text, start)

    def _give(self, text: str, start: int) -> None:
        if self._thinking and self._splits:
            for part, at in self._thought_edges.push(text, start):
                self._thought.append(part)
                self._events.append(Thought(part, at, at + len(part)))
        else:
            self._say(self._said_edges.push(text, start))

    def _say(self, slices: list[tuple[str, int]]) -> None:
        for part, at in slices:
            self._said.append(part)
            self._events.append(Said(part, at, at + len(part)))

    def _finish_text(self) -> None:
        held = self._pending
        function = _FUNCTION.match(held.lstrip("\n"))
        behind_call = self._from == self._called_at and held.strip() and written.CALLED.startswith(held.strip())
        if held.startswith(written.CALL) or (function and function[1] in self._tools) or behind_call:
            return  # a call that was cut short before it was one, or its last tag
        self._text(self._from + len(held))
        if not self._calls:
            self._say(self._said_edges.flush())

    # calls with tags

    def _begin_call(self, name: str) -> None:
        """Of a function whose tag stands next."""
        self._interrupt()
        unknown = Tool(name)
        self._call = CallText(len(self._calls), name, self._tools.get(name) or Parameters(unknown))
        self._events.append(CallBegun(self._call.index, name))
        self._skip(self._from + self._pending.index(">", self._pending.index("<function=")) + 1)
        self._watch_function()

    def _interrupt(self) -> None:
        self._thought_edges.interrupt()
        self._said_edges.interrupt()

    def _watch_function(self) -> None:
        self._watch = Watch(written.FUNCTION_GOES_ON, self._from)
        self._next = self._in_function

    def _in_function(self) -> bool:
        found = self._watch.look(self._pending, self._from, lambda _: True)
        if not found:
            return False
        assert self._call is not None
        if found.mark is written.PARAMETER:
            self._arguments(self._call.begin(_named(_PARAMETER, self._between(self._from, found.end))))
            self._skip(found.end)
            self._next = self._at_value
        else:
            self._end_call(self._call)
            self._skip(found.end)
            self._watch_for_tags(called=True)
        return True

    def _at_value(self) -> bool:
        if not self._pending:
            return False
        on_lines = self._pending[0] == "\n"
        self._skip(self._from + on_lines)
        marks = written.VALUE_ON_LINES if on_lines else written.VALUE_IN_LINE
        self._watch = Watch(marks, self._from, "\n" if on_lines else "")
        self._next = self._in_value
        return True

    def _in_value(self) -> bool:
        found = self._watch.look(self._pending, self._from, self._ends_value)
        assert self._call is not None
        end = found.start if found else self._watch.held
        self._arguments(self._call.text(self._between(self._from, end)))
        self._skip(end)
        if not found:
            return False
        self._arguments(self._call.end())
        closed = _VALUE_CLOSED.match(self._pending)
        self._skip(self._from + (closed.end() if closed else 0))
        self._watch_function()
        return True

    def _ends_value(self, found: Found) -> bool:
        """Whether what follows can: a parameter comes once, and without </parameter> before it, it is one of the
        tool's."""
        assert self._call is not None
        text = self._between(found.start, found.end)
        name = _PARAMETER.search(text)
        if name is None:
            return True
        return name[1] not in self._call.given and ("</parameter>" in text or name[1] in self._call.parameters)

    def _arguments(self, text: str) -> None:
        assert self._call is not None
        if text:
            self._events.append(CallArguments(self._call.index, text))

    def _end_call(self, call: CallText) -> None:
        self._arguments(call.close())
        self._calls.append(call.call)

    def _finish_call(self, call: CallText) -> None:
        if self._next == self._in_value:
            for start in self._watch.begun:
                closed = _CLOSED.fullmatch(self._pending, start - self._from)
                if closed and written.CALLED.startswith(closed[2] or ""):
                    self._arguments(call.text(self._between(self._from, start)))
                    self._arguments(call.end())
                    self._end_call(call)
                    return
        self._unfinished = call.call

    # calls as JSON

    def _in_json(self) -> bool:
        assert self._json is not None
        behind = self._json.push(self._pending)
        end = self._from + len(self._pending)
        self._skip(end)
        if behind is None:
            return False
        self._pending, self._from = behind, end - len(behind)
        call = hermes_call(self._json.text)
        if call is None or not self._can_call(call):
            tag, start = self._json_tag
            self._give(tag + self._json.text, start)
            self._watch_for_tags()
            return True
        self._tell(call)
        self._calls.append(call)
        self._watch_for_tags(called=True)
        return True

    def _finish_json(self, text: str) -> None:
        call = unfinished_hermes_call(text)
        if call is None:
            return
        if not self._can_call(call):
            tag, start = self._json_tag
            self._give(tag + text, start)
            return
        self._tell(call)
        self._unfinished = call

    def _can_call(self, call: Call) -> bool:
        """Within thinking, only a tool that there is."""
        return not self._thinking or call.name in self._tools

    def _tell(self, call: Call) -> None:
        self._interrupt()
        index = len(self._calls)
        self._events.append(CallBegun(index, call.name))
        if call.arguments:
            self._events.append(CallArguments(index, call.arguments))

    # the text

    def _between(self, start: int, end: int) -> str:
        return self._pending[start - self._from : end - self._from]

    def _skip(self, end: int) -> None:
        self._pending = self._pending[end - self._from :]
        self._from = end


def _named(tag: re.Pattern[str], text: str) -> str:
    found = tag.search(text)
    assert found is not None
    return found[1]


Slice = tuple[str, int]  # a text, and where it begins


class Edges:
    """leading, trailing: characters that do not count before and behind the text."""

    def __init__(self, leading: str, trailing: str) -> None:
        self.leading, self.trailing = leading, trailing
        self._begun = self._given = False
        self._held: list[Slice] = []

    def push(self, text: str, start: int) -> list[Slice]:
        """What is certain by now to stand within the edges."""
        if not self._begun:
            rest = text.lstrip(self.leading)
            text, start = rest, start + len(text) - len(rest)
        if not text:
            return []
        self._begun = True
        body = text.rstrip(self.trailing) if self.trailing else text
        found: list[Slice] = []
        if body:
            self._given = True
            found, self._held = [*self._held, (body, start)], []
        if len(body) < len(text):
            self._held.append((text[len(body) :], start + len(body)))
        return found

    def interrupt(self) -> None:
        """Something else comes here. What stands at this edge counts where text came before and more comes."""
        self.leading = self.leading or "\n"
        if not self._given:
            self._begun, self._held = False, []

    def flush(self) -> list[Slice]:
        """What was held back."""
        found, self._held = self._held, []
        return found
