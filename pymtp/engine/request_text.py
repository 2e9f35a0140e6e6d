"""The text of a request: what its tokens say, where a stop string ends it, and where its thinking ends."""

from __future__ import annotations

from pymtp.model import Model
from pymtp.sampling import SamplingParams
from pymtp.text import TextStream
from pymtp.thinking import Thinking, ThinkingText


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
