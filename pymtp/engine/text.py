"""The text of a request: detokenization, stop strings, and the end of the thinking block."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from unicodedata import normalize

from pymtp.chat.thinking import ThinkingPlan, ThinkingTracker
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams


class RequestText:
    """The text of the output tokens. It ends at an end token or at a stop string."""

    def __init__(self, model: Model, params: SamplingParams, thinking: ThinkingPlan) -> None:
        self._model = model
        self._ignore_eos = params.ignore_eos
        self._no_stop_in_thinking = thinking.no_stop_in_thinking
        self._stop_strings = params.stop
        self.thinking = ThinkingTracker(thinking)
        self._detokenizer = self._new_detokenizer()
        self._new_text = ""  # text that `take` has not returned yet
        self.ended = False

    def add_token(self, token: int) -> bool:
        """Add the next token. Return True if the round must end: the text ends, or its thinking must be closed."""
        if not self._ignore_eos and self._model.ends_generation(token):
            self.ended = True
            return True
        data, within = self._model.token_bytes(token), self.thinking.within
        n = self.thinking.push(data)
        if self._no_stop_in_thinking and within != self.thinking.within:
            self._push(data[:n])
            self.flush()
            if not self._detokenizer.stopped:
                self._detokenizer = self._new_detokenizer()
                self._push(data[n:])
        else:
            self._push(data)
        return self.ended or self.thinking.closing

    def _new_detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(() if self._no_stop_in_thinking and self.thinking.within else self._stop_strings)

    def _push(self, data: bytes) -> None:
        self._new_text += self._detokenizer.push(data)
        self.ended = self._detokenizer.stopped

    def flush(self) -> None:
        """Append the text that was held back for a stop string or an incomplete character."""
        self._new_text += self._detokenizer.flush()

    def take(self) -> str:
        """Return the text that was added since the last call."""
        text, self._new_text = self._new_text, ""
        return text


class IncrementalDetokenizer:
    """Turns the bytes of tokens into text, up to a stop string. Text that was returned stays valid."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(spelling for string in stop for spelling in stop_spellings(string))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # text that may be the beginning of a stop string
        self.stopped = False

    def push(self, data: bytes) -> str:
        """Add a token's bytes, and return the text that is certain now.

        Sets `stopped` at a stop string; the stop string and the text after it are never returned.
        """
        return self._filter_stop_strings(self._decoder.decode(data))

    def flush(self) -> str:
        """Return the text that was held back, at the end of all bytes. An incomplete character becomes U+FFFD."""
        return self._filter_stop_strings(self._decoder.decode(b"", final=True)) + self._drain()

    def _drain(self) -> str:
        pending, self._pending = self._pending, ""
        return pending

    def _filter_stop_strings(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return new
        text = self._pending + new
        starts = [start for start in (text.find(stop) for stop in self._stop) if start >= 0]
        if starts:
            self.stopped, self._pending = True, ""
            return text[: min(starts)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def stop_spellings(stop: str) -> tuple[str, ...]:
    """Return the spellings of a stop string to look for: as given, and in NFC, which models write.

    Clients may send NFD.
    """
    return tuple({stop, normalize("NFC", stop)})


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
