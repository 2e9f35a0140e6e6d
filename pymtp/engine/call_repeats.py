"""The end of a text before a tool call that the text already has."""

from __future__ import annotations

from pymtp.chat.qwen_tags import TOOL_CALL_END, TOOL_CALL_START

# For the beginning of a call in each form, its end. A value within the call contains no such end.
_ENDS = {f"{TOOL_CALL_START}\n<": f"</function>\n{TOOL_CALL_END}", f"{TOOL_CALL_START}\n{{": f"}}\n{TOOL_CALL_END}"}
_BEGIN_LENGTH, _END_LENGTH = len(TOOL_CALL_START) + 2, max(map(len, _ENDS.values()))


class CallRepeats:
    """A filter of text that arrives piece by piece. The filtered text ends before a call that it already has.

    Calls are those that the grammar of an output writes: see pymtp/chat/output_grammar.py.

    found: whether a call was repeated.
    """

    def __init__(self) -> None:
        self.found = False
        self._calls: list[str] = []  # complete calls, with their tags
        self._begun = ""  # released text from the beginning of an incomplete call on, or what may be its beginning
        self._held = ""  # text that may begin a repeated call

    def push(self, text: str) -> str:
        """Add text, and return the text that is certainly no part of a repeated call."""
        if self.found:
            return ""
        text, self._held = self._held + text, ""
        at = noted = 0
        while (start := text.find("<", at)) >= 0:
            at = start + 1
            if not text.startswith(TOOL_CALL_START[: len(text) - start], start):
                continue
            self._note(text[noted:start])
            noted = start
            self.found = any(text.startswith(call, start) for call in self._calls)
            rest = "" if self.found else text[start:]
            if self.found or any(call.startswith(rest) for call in self._calls):
                self._held = rest
                return text[:start]
        self._note(text[noted:])
        return text

    def flush(self) -> str:
        """Return the text that was held back, at the end of all text."""
        held, self._held = self._held, ""
        return held

    def _note(self, text: str) -> None:
        """Note the calls that released text completes."""
        searched = max(0, len(self._begun) - _END_LENGTH)  # no end begins before
        self._begun += text
        while (start := self._begun.find(TOOL_CALL_START)) >= 0:
            if start:
                self._begun, searched = self._begun[start:], 0
            end = _ENDS.get(self._begun[:_BEGIN_LENGTH])
            if end is None:
                if len(self._begun) < _BEGIN_LENGTH:
                    return
                self._begun, searched = self._begun[len(TOOL_CALL_START) :], 0
                continue
            stop = self._begun.find(end, searched)
            if stop < 0:
                return
            self._calls.append(self._begun[: stop + len(end)])
            self._begun, searched = self._begun[stop + len(end) :], 0
        self._begun = self._begun[-len(TOOL_CALL_START) :]
