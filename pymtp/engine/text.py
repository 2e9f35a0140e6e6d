"""The text of a request: what its tokens say, where a stop string ends it, and where its thinking ends."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from unicodedata import normalize

from pymtp.chat.thinking import Thinking, ThinkingText
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams


class RequestText:
    """The text of the tokens that came out, and whether one of them ended it, or its thinking."""

    def __init__(self, model: Model, params: SamplingParams, thinking: Thinking) -> None:
        self._model = model
        self._ignores_end = params.ignore_eos
        self._apart = thinking.apart
        self._stops = params.stop
        self.thinking = ThinkingText(thinking)
        self._stream = self._new_stream()
        self._fresh = ""  # not taken yet
        self.ended = False

    def ends(self, token: int) -> bool:
        """Takes the next token; whether a round ends with it: it is the last, or the thinking is to be closed."""
        if not self._ignores_end and self._model.ends_generation(token):
            self.ended = True
            return True
        data, within = self._model.token_bytes(token), self.thinking.within
        n = self.thinking.push(data)
        if self._apart and within != self.thinking.within:
            self._push(data[:n])
            self.flush()
            if not self._stream.stopped:
                self._stream = self._new_stream()
                self._push(data[n:])
        else:
            self._push(data)
        return self.ended or self.thinking.closing

    def _new_stream(self) -> TextStream:
        return TextStream(() if self._apart and self.thinking.within else self._stops)

    def _push(self, data: bytes) -> None:
        self._fresh += self._stream.push(data)
        self.ended = self._stream.stopped

    def flush(self) -> None:
        """Gives out what was held back for a stop string or a character."""
        self._fresh += self._stream.flush()

    def take(self) -> str:
        """What is new since the last call."""
        text, self._fresh = self._fresh, ""
        return text


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


def spellings(stop: str) -> tuple[str, ...]:
    """List what a stop string matches: itself and its NFC, in which models write what a client may have in NFD."""
    return tuple({stop, normalize("NFC", stop)})


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
