"""Prompts of chats: their tokens, and the branch points from which later prompts will differ.

Templates rewrite the past: those of Qwen3.5 and 3.6 drop the thinking before the last user message. So the prompt of
the next turn does not begin with the whole previous prompt and its answer. To find the branch points, the template
renders several possible next turns, and their prompts are compared with the current one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from pymtp.chat.messages import template_messages
from pymtp.chat.template import Chat, ChatTemplate
from pymtp.chat.template_inputs import Message
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

END_BYTES = 64  # length of ChatPrompt.end in bytes
N_RECENT = 8  # recent prompts whose tokens are cached: the next turn is tokenized only from where it differs

# Samples of text that may follow a branch point: a letter, a space, a line break. The tokenizer may join such text with
# the text before the branch point to another token.
FOLLOWING = ("a", " ", "\n")


class ChatPrompt(NamedTuple):
    """The prompt of a chat.

    branch_points: numbers of tokens, rising, after which later prompts will differ from this one.
    end: the last characters of the prompt's text, which show whether the answer begins within the thinking.
    """

    tokens: list[int]
    branch_points: tuple[int, ...]
    end: str = ""


class ChatPrompts:
    """The renderer and tokenizer of one model's chats, with a cache of recent prompts. Threads may share it."""

    def __init__(self, model: Model, template: ChatTemplate) -> None:
        self._model, self._template = model, template
        self._recent: deque[_TokenizedText] = deque(maxlen=N_RECENT)

    def prompt(self, chat: Chat) -> ChatPrompt:
        """Render and tokenize a chat. Raises the errors of template_messages and ChatTemplate.render."""
        messages = template_messages(chat.messages)

        def render(messages: Sequence[Message]) -> bytes:
            text = self._template.render(messages, tools=chat.tools, chat_template_kwargs=chat.chat_template_kwargs)
            return self._model.normalized(text).encode()

        text = self._tokenize(render(messages))
        shared_lengths = set()
        for later in _possible_next_turns(messages):
            with suppress(InvalidRequestError):  # a turn that the template refuses gives no branch point
                shared_lengths.add(_shared_bytes(text.data, render(later)))
        branch_points = {self._stable_tokens(text, length) for length in shared_lengths}
        return ChatPrompt(
            text.tokens, tuple(sorted(branch_points - {0})), text.data[-END_BYTES:].decode(errors="ignore")
        )

    def _tokenize(self, data: bytes) -> _TokenizedText:
        """Tokenize a prompt's text; reuse tokens of the recent prompt that shares the longest beginning with it."""
        recent = max(
            list(self._recent), key=lambda text: _shared_bytes(text.data, data), default=_TokenizedText(b"", [], [])
        )
        n, start = recent.last_cut(_shared_bytes(recent.data, data))
        tokens = self._model.tokenize(data[start:].decode())
        cuts, pieces, end = [cut for cut in recent.cuts if cut[0] <= n], [], start
        for i, token in enumerate(tokens, n + 1):
            pieces.append(self._model.token_bytes(token, special=True))
            end += len(pieces[-1])
            if not self._model.token_bytes(token):  # a control token
                cuts.append((i, end))
        if b"".join(pieces) != data[start:]:  # the tokenizer adds bytes, perhaps after each cut: then no cut is safe
            cuts = []
        text = _TokenizedText(data, recent.tokens[:n] + tokens, cuts)
        self._recent.append(text)
        return text

    def _stable_tokens(self, text: _TokenizedText, length: int) -> int:
        """Count the tokens that stay the same whatever follows the first `length` bytes of a text."""
        n, start = text.last_cut(length)
        head = text.data[start:length].decode(errors="ignore")  # without the bytes of an incomplete last character
        variants = (self._model.tokenize(head + more) for more in FOLLOWING)
        return n + min(_shared_tokens(tokens, text.tokens[n : n + len(tokens)]) for tokens in variants)


class _TokenizedText(NamedTuple):
    """A text and its tokens.

    cuts: the ends of control tokens, each as a number of tokens and a number of bytes. The texts before and after a cut
        are tokenized independently.
    """

    data: bytes
    tokens: list[int]
    cuts: list[tuple[int, int]]

    def last_cut(self, length: int) -> tuple[int, int]:
        """Return the last cut within the first `length` bytes; (0, 0) where there is none."""
        i = bisect_right(self.cuts, length, key=lambda cut: cut[1])
        return self.cuts[i - 1] if i else (0, 0)


def _possible_next_turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages of prompts that may follow the prompt of `messages`."""
    answer = {"role": "assistant", "content": "a"}
    yield [*messages, answer, {"role": "user", "content": "a"}]
    if messages[-1]["role"] != "user":  # the model goes on calling tools
        yield [*messages, answer, {"role": "tool", "content": "a"}]
    user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if user is not None:  # the last user message is edited
        yield [*messages[:user], {**messages[user], "content": _different_content(messages[user])}]
    n = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), len(messages))
    if n < len(messages) and n != user:  # another chat with the same system prompt
        yield [*messages[:n], {"role": "user", "content": _different_content(messages[n])}]


def _different_content(message: Message) -> str:
    """Return a content that differs from the message's content in the first letter."""
    content = message["content"]
    return "b" if isinstance(content, str) and content.lstrip().startswith("a") else "a"


def _shared_bytes(a: bytes, b: bytes) -> int:
    """Count the bytes that `a` and `b` share at their beginning."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return int((np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)).argmax())


def _shared_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the tokens that `a` and `b` share at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
