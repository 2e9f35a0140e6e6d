"""The prompts of chats: their tokens, and the places where prompts to come will part from them.

Templates rewrite the past: those of Qwen3.5 and 3.6 drop what was thought before the last user message. So the prompt
of the next turn does not begin with the whole of this one and its answer. The template says where the two part: it
renders turns that may come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from pymtp.chat.given import Message
from pymtp.chat.messages import template_messages
from pymtp.chat.template import Chat, ChatTemplate
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

END = 64  # bytes of a prompt's end that are told
LAST = 8  # prompts whose tokens are kept, for the next turn to be tokenized from where it differs

# What may follow a place, one of each kind: a token that ends there may grow by it.
FOLLOWING = ("a", " ", "\n")


class ChatPrompt(NamedTuple):
    """marks: numbers of tokens, rising, after which prompts to come will part from this one.
    end: the last characters of its text, which say how the answer begins."""

    tokens: list[int]
    marks: tuple[int, ...]
    end: str = ""


class ChatPrompts:
    """Prompts of one model's chats. Any thread."""

    def __init__(self, model: Model, template: ChatTemplate) -> None:
        self._model, self._template = model, template
        self._last: deque[_Text] = deque(maxlen=LAST)

    def prompt(self, chat: Chat) -> ChatPrompt:
        """Raises as template_messages and ChatTemplate.render."""
        given = template_messages(chat.messages)

        def render(messages: Sequence[Message]) -> bytes:
            text = self._template.render(messages, tools=chat.tools, chat_template_kwargs=chat.chat_template_kwargs)
            return self._model.normalized(text).encode()

        text = self._tokenized(render(given))
        places = set()
        for other in _turns_to_come(given):
            with suppress(InvalidRequestError):  # a turn that this template refuses
                places.add(_shared(text.data, render(other)))
        marks = {self._mark(text, place) for place in places}
        return ChatPrompt(text.tokens, tuple(sorted(marks - {0})), text.data[-END:].decode(errors="ignore"))

    def _tokenized(self, data: bytes) -> _Text:
        """Tokenizes what comes after the beginning that it shares with one of the last prompts."""
        known = max(list(self._last), key=lambda text: _shared(text.data, data), default=_Text(b"", [], []))
        n, start = known.cut(_shared(known.data, data))
        tokens = self._model.tokenize(data[start:].decode())
        cuts, pieces, end = [cut for cut in known.cuts if cut[0] <= n], [], start
        for i, token in enumerate(tokens, n + 1):
            pieces.append(self._model.token_bytes(token, special=True))
            end += len(pieces[-1])
            if not self._model.token_bytes(token):  # a control token
                cuts.append((i, end))
        if b"".join(pieces) != data[start:]:  # a tokenizer that adds something: it may do so after each cut, too
            cuts = []
        text = _Text(data, known.tokens[:n] + tokens, cuts)
        self._last.append(text)
        return text

    def _mark(self, text: _Text, place: int) -> int:
        """How many tokens of the text are the same whatever follows its first `place` bytes."""
        n, start = text.cut(place)
        head = text.data[start:place].decode(errors="ignore")  # whole characters
        each = (self._model.tokenize(head + more) for more in FOLLOWING)
        return n + min(_same(tokens, text.tokens[n : n + len(tokens)]) for tokens in each)


class _Text(NamedTuple):
    """cuts: where control tokens end, in tokens and bytes. Text is tokenized on either side of them for itself."""

    data: bytes
    tokens: list[int]
    cuts: list[tuple[int, int]]

    def cut(self, place: int) -> tuple[int, int]:
        """The last one within the first `place` bytes; the beginning where there is none."""
        i = bisect_right(self.cuts, place, key=lambda cut: cut[1])
        return self.cuts[i - 1] if i else (0, 0)


def _turns_to_come(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Messages of prompts that may come after this one."""
    answer = {"role": "assistant", "content": "a"}
    yield [*messages, answer, {"role": "user", "content": "a"}]
    if messages[-1]["role"] != "user":  # the model goes on calling tools
        yield [*messages, answer, {"role": "tool", "content": "a"}]
    user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if user is not None:  # it is asked for something else
        yield [*messages[:user], {**messages[user], "content": _other(messages[user])}]
    n = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), len(messages))
    if n < len(messages) and n != user:  # another chat with the same system prompt
        yield [*messages[:n], {"role": "user", "content": _other(messages[n])}]


def _other(message: Message) -> str:
    """Text that differs from the message's in its first letter."""
    content = message["content"]
    return "b" if isinstance(content, str) and content.lstrip().startswith("a") else "a"


def _shared(a: bytes, b: bytes) -> int:
    """How many bytes both begin with."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return int((np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)).argmax())


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
