"""A scanner that finds the end of a JSON object in text that arrives piece by piece."""

from __future__ import annotations

import re

from pymtp.chat.qwen_tags import TOOL_CALL_END

_OUTSIDE_STRING = re.compile(rf'["{{}}\[\]]|{TOOL_CALL_END}')
_INSIDE_STRING = re.compile(r'["\\]')


class JsonObjectScanner:
    """A scanner of one JSON object, whose text is pushed piece by piece and begins with the opening brace."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._rest = ""  # pushed text that is not scanned yet
        self._depth = 0
        self._in_string = False

    @property
    def text(self) -> str:
        """Return the text of the object that was scanned so far."""
        return "".join(self._pieces)

    def push(self, text: str) -> str | None:
        """Scan more text; return the text after the object, or None while the object has not ended.

        Outside of strings, `</tool_call>` also ends the object.
        """
        text = self._rest + text
        at = scanned = 0
        while match := (_INSIDE_STRING if self._in_string else _OUTSIDE_STRING).search(text, at):
            if match[0] == "\\" and match.end() == len(text):  # the escaped character has not come yet
                scanned = match.start()
                break
            at = scanned = match.end() + (match[0] == "\\")
            if match[0] == '"':
                self._in_string = not self._in_string
            elif match[0] in "[{":
                self._depth += 1
            elif match[0] in "]}":
                self._depth -= 1
            if match[0] == TOOL_CALL_END or (self._depth == 0 and not self._in_string):
                self._pieces.append(text[:at])
                return text[at:]
        else:
            tag = text.rfind("<", max(at, len(text) - len(TOOL_CALL_END) + 1))
            scanned = len(text) if self._in_string or tag < 0 else tag
        self._pieces.append(text[:scanned])
        self._rest = text[scanned:]
        return None

    @property
    def unfinished_text(self) -> str:
        """Return all text that was pushed, for an object that has not ended."""
        return self.text + self._rest
