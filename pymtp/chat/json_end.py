"""Where a JSON object ends in a text that comes piece by piece."""

from __future__ import annotations

import re

_TAG = "</tool_call>"
_OUTSIDE = re.compile(rf'["{{}}\[\]]|{_TAG}')
_INSIDE = re.compile(r'["\\]')


class JsonText:
    """The text of an object, from its first bracket on."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._rest = ""  # not looked at
        self._depth = 0
        self._in_string = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def push(self, text: str) -> str | None:
        """What follows the object; None while it has not ended. It ends at a tag, too, where no string is open."""
        text = self._rest + text
        at = looked = 0
        while found := (_INSIDE if self._in_string else _OUTSIDE).search(text, at):
            if found[0] == "\\" and found.end() == len(text):  # what is escaped is still to come
                looked = found.start()
                break
            at = looked = found.end() + (found[0] == "\\")
            if found[0] == '"':
                self._in_string = not self._in_string
            elif found[0] in "[{":
                self._depth += 1
            elif found[0] in "]}":
                self._depth -= 1
            if found[0] == _TAG or (self._depth == 0 and not self._in_string):
                self._pieces.append(text[:at])
                return text[at:]
        else:
            tag = text.rfind("<", max(at, len(text) - len(_TAG) + 1))
            looked = len(text) if self._in_string or tag < 0 else tag
        self._pieces.append(text[:looked])
        self._rest = text[looked:]
        return None

    @property
    def unended(self) -> str:
        """All that has come, of an object that has not ended."""
        return self.text + self._rest
