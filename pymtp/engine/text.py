"""The text of a request: detokenization, stop strings, and the thinking block."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import normalize

from pymtp.chat.qwen_tags import THINK_END, THINK_START
from pymtp.engine.call_repeats import CallRepeats
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams

_START = THINK_START.encode()
_SPACE = b" \t\r\n"
_END = re.compile(THINK_END.encode())
_MAY_END = re.compile(rb"<[/a-z]{0,6}\Z")
# Where there are tools, a call within the thinking ends the thinking, because OutputParser parses it as a call.
_END_OR_CALL = re.compile(rb"</think>|<tool_call>[ \t\r\n]*(?:<function=|\{)")
_MAY_END_OR_CALL = re.compile(rb"(?:<tool_call>[ \t\r\n]*)?<[/a-z_=]{0,9}\Z|<tool_call>[ \t\r\n]*\Z")


@dataclass(frozen=True)
class ThinkingPlan:
    """The plan for the thinking of an output, made before the first token.

    begun: whether the prompt ends within the thinking.
    no_stop_in_thinking: whether stop strings match only after the thinking, and after the newlines that follow it.
    call_ends: whether a tool call ends the thinking, too.
    budget: the largest number of tokens that the thinking may have; None for any number.
    closing: the tokens that close the thinking at its budget: params.thinking_end, `</think>` and newlines.
    grammar_waits: whether the grammar begins after the thinking, even if the model ends the thinking itself.
    newlines: tokens that are forced before the grammar begins if the model ended the thinking itself.
    grammar: the grammar for the output after `closing`; None for no grammar.
    grammar_prefix: number of tokens at the end of `closing` that the grammar already covers.
    """

    begun: bool = False
    no_stop_in_thinking: bool = False
    call_ends: bool = False
    budget: int | None = None
    closing: tuple[int, ...] = ()
    newlines: tuple[int, ...] = ()
    grammar_waits: bool = False
    grammar: str | None = None
    grammar_prefix: int = 0


class RequestText:
    """The text of the output tokens. It ends at an end token or at a stop string."""

    def __init__(self, model: Model, params: SamplingParams, thinking: ThinkingPlan) -> None:
        self._model = model
        self._ignore_eos = params.ignore_eos
        self._stop_tokens = frozenset(params.stop_token_ids)
        self._no_stop_in_thinking = thinking.no_stop_in_thinking
        self._stop_strings = params.stop
        self.thinking = ThinkingTracker(thinking)
        self._detokenizer = self._new_detokenizer()
        self._before_answer = False  # whether only newlines have followed the thinking
        self._repeats = CallRepeats() if params.distinct_calls else None
        self._new_text = ""  # text that `take` has not returned yet
        self.ended = False

    def add_token(self, token: int) -> bool:
        """Add the next token. Return True if the round must end: the text ends, or its thinking must be closed."""
        if not self._ignore_eos and self._model.ends_generation(token):
            self.ended = True
            return True
        if token in self._stop_tokens and not (self._no_stop_in_thinking and self.thinking.within):
            self.ended = True
            return True
        data, thinking = self._model.token_bytes(token), self.thinking
        if thinking.over and not thinking.closing:
            self._push(data)
            return self.ended
        within = thinking.within
        n = thinking.push(data)
        if self._no_stop_in_thinking and within != thinking.within:
            self._push(data[:n])
            self.flush()
            if not self._detokenizer.stopped:
                self._detokenizer = self._new_detokenizer()
                self._before_answer = not thinking.within
                self._push(data[n:])
        else:
            self._push(data)
        return self.ended or thinking.closing

    def _new_detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(() if self._no_stop_in_thinking and self.thinking.within else self._stop_strings)

    def _push(self, data: bytes) -> None:
        if self._before_answer:  # the newlines are no part of the answer, and a stop string may be one
            answer = data.lstrip(b"\n")
            self._new_text += "\n" * (len(data) - len(answer))
            self._before_answer, data = not answer, answer
        text = self._detokenizer.push(data)
        self._new_text += text if self._repeats is None else self._repeats.push(text)
        self.ended = self._detokenizer.stopped or (self._repeats is not None and self._repeats.found)

    def flush(self) -> None:
        """Append the text that was held back for a stop string or an incomplete character."""
        text = self._detokenizer.flush()
        self._new_text += text if self._repeats is None else self._repeats.push(text) + self._repeats.flush()

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


class ThinkingTracker:
    """A tracker that follows an output token by token, and says when its thinking must be closed.

    tokens: number of thinking tokens: those that begin before `</think>`, except the tags and forced tokens.
    within: whether the output is within its thinking.
    over: whether no thinking begins any more. Then `push` changes nothing, except while `closing`.
    closing: whether the next tokens are those in `forced`, instead of sampled tokens. A grammar may begin after the
        forced tokens.
    forced: the tokens to force next.
    closed_at: number of tokens in the output up to the last forced one; None before that token, and if none were
        forced.
    """

    def __init__(self, plan: ThinkingPlan) -> None:
        self._plan = plan
        self._end, self._may_end = (_END_OR_CALL, _MAY_END_OR_CALL) if plan.call_ends else (_END, _MAY_END)
        self.tokens = 0
        self.within = plan.begun
        self.closing = False
        self.forced: deque[int] = deque()
        self.closed_at: int | None = None
        self._n_tokens = 0
        self.over = False
        self._start_text = b""  # the beginning of a text that may yet begin with <think>
        self._undecided = b""  # the last bytes, where they may become a tag
        self._token_starts: list[int] = []  # offsets in `_undecided` at which tokens of the thinking begin
        self._check_budget()

    def push(self, data: bytes) -> int:
        """Take the bytes of the next token; return how many come before the place where thinking begins or ends.

        If the thinking neither begins nor ends within the token, the number of all its bytes is returned.
        """
        self._n_tokens += 1
        if self.closing:
            if self.forced:
                self.forced.popleft()
            else:
                self.closing, self.closed_at = False, self._n_tokens - 1
        if self.over:
            return len(data)
        if self.within:
            return self._push_thinking(data, counts=not self.closing)
        self._start_text += data
        begins = self._start_text.lstrip(_SPACE)
        if not begins.startswith(_START):
            self.over = not _START.startswith(begins)
            return len(data)
        self.within = True
        rest = begins[len(_START) :]
        self._push_thinking(rest, counts=False)
        self._check_budget()
        return len(data) - len(rest)

    def _push_thinking(self, data: bytes, *, counts: bool) -> int:
        if counts:
            self.tokens += 1
            self._token_starts.append(len(self._undecided))
        self._undecided += data
        found = self._end.search(self._undecided)
        if found is None:
            begun = self._may_end.search(self._undecided)
            cut = len(self._undecided) if begun is None else begun.start()
            self._undecided = self._undecided[cut:]
            self._token_starts = [start - cut for start in self._token_starts if start >= cut]
            if counts:
                self._check_budget()
            return len(data)
        self.over, self.within = True, False
        self.tokens -= sum(start >= found.start() for start in self._token_starts)
        if self._plan.grammar_waits and not self.closing:
            self._close(self._plan.newlines)
        return max(0, len(data) - (len(self._undecided) - found.end()))

    def _check_budget(self) -> None:
        budget = self._plan.budget
        if self.within and budget is not None and self.tokens >= budget and not self.closing:
            self._close(self._plan.closing)

    def _close(self, tokens: Sequence[int]) -> None:
        self.closing, self.forced = True, deque(tokens)
