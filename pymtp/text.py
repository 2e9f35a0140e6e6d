"""Texts without broken characters: those that come in pieces, up to a stop string, and those that clients send."""

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import normalize


class TextStream:
    """Joins the bytes of tokens to text. What is given out is never taken back."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(spelling for each in stop for spelling in spellings(each))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # may be the start of a stop string
        self.stopped = False

    def push(self, data: bytes) -> str:
        """Takes a token's bytes, gives out the text that is certain by now. Sets `stopped` at a stop string, which
        is not given out, nor is anything after it."""
        return self._release(self._decoder.decode(data))

    def flush(self) -> str:
        """The rest, at the end: held back characters, and U+FFFD for one that never completed."""
        return self._release(self._decoder.decode(b"", final=True)) + self._drain()

    def _drain(self) -> str:
        held, self._held = self._held, ""
        return held

    def _release(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return new
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def whole_text(text: str) -> str:
    """Replace halves of characters of UTF-16 by U+FFFD. Clients that cut a text by its UTF-16 units leave them, and
    JSON may hold them. Two halves that fit become their character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def whole_texts(value: Any) -> Any:
    """Apply `whole_text` to all texts in a value as JSON has it. A value without halves comes back as it is, in a tenth
    of the time. Raises RecursionError for one that is nested too deep."""
    if not isinstance(value, str):
        try:
            json.dumps(value, ensure_ascii=False).encode()
            return value
        except (TypeError, ValueError):  # half a character, or what JSON has not
            pass
    return _whole_texts(value)


def _whole_texts(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return {_whole_texts(name): _whole_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [each if isinstance(each, (int, float)) else _whole_texts(each) for each in value]
    return value


def spellings(stop: str) -> tuple[str, ...]:
    """List what a stop string matches: itself and its NFC, in which models write what a client may have in NFD."""
    return tuple({stop, normalize("NFC", stop)})


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
