"""Prompts of chats: their tokens, and the branch points from which later prompts will differ.

Templates rewrite the past: those of Qwen3.5 and 3.6 drop the thinking before the last user message. So the prompt of
the next turn does not begin with the whole previous prompt and its answer. To find the branch points, the template
renders several possible next turns, and their prompts are compared with the current one.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, groupby, takewhile
from typing import NamedTuple, TypeAlias

import numpy as np

from pymtp.chat.images import ChatImages, ImageTokens
from pymtp.chat.messages import template_messages
from pymtp.chat.qwen_tags import THINK_END
from pymtp.chat.template import Chat, ChatTemplate
from pymtp.chat.template_inputs import Message
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.images import Image
from pymtp.model.model import Model

END_BYTES = 64  # length of ChatPrompt.end in bytes
# Recent prompts of a cache key whose tokens are cached: the next turn is tokenized only from where it differs
N_RECENT = 8
MAX_RECENT_BYTES = 64 * 2**20  # the cached texts of all keys take at most this
CacheKey: TypeAlias = tuple[str, str]  # texts are shared only under the same key: the digest of an API key, and a salt

# Samples of text that may follow a branch point: a letter, a space, a line break. The tokenizer may join such text with
# the text before the branch point to another token.
FOLLOWING = ("a", " ", "\n")
NO_IMAGES: Mapping[int, Image] = {}


class ChatPrompt(NamedTuple):
    """The prompt of a chat.

    tokens: the tokens of the text; and for each image, as often as it has tokens, its negative token.
    branch_points: numbers of tokens, rising, after which later prompts will differ from this one.
    end: the last characters of the prompt's text, which show whether the answer begins within the thinking.
    images: the images of the prompt, by their tokens.
    """

    tokens: list[int]
    branch_points: tuple[int, ...]
    end: str = ""
    images: Mapping[int, Image] = NO_IMAGES


class ChatPrompts:
    """The renderer and tokenizer of one model's chats, with a cache of recent prompts. Threads may share it."""

    def __init__(
        self, model: Model, template: ChatTemplate, n_ctx: int | None = None, images: ImageTokens | None = None
    ) -> None:
        """Create the renderer, without cached prompts.

        n_ctx: longer prompts are refused without being tokenized, or at least not cached; None for no limit.
        images: gives the tokens of images; None for a model that sees none.
        """
        self._model, self._template, self._n_ctx, self._images = model, template, n_ctx, images
        self._recent = _RecentTexts()

    def collect_images(self) -> ChatImages | None:
        """Return a collector for the images of a chat, for `template_messages`; None for a model that sees none."""
        return None if self._images is None else ChatImages(self._images)

    def prompt(self, chat: Chat, cache_key: CacheKey | None = ("", "")) -> ChatPrompt:
        """Render and tokenize a chat.

        cache_key: only texts under the same key are looked up, so that times tell nothing about other texts. None:
            nothing is looked up, and nothing is kept.

        Raises the errors of template_messages and ChatTemplate.render, and ContextFullError for a prompt that cannot
        fit into the context, however its text is tokenized.
        """
        images = self.collect_images()
        messages = template_messages(chat.messages, images)
        self._check_messages(messages)

        def render(messages: Sequence[Message]) -> bytes:
            text = self._template.render(messages, tools=chat.tools, chat_template_kwargs=chat.chat_template_kwargs)
            return self._model.normalized(text).encode()

        text = self._tokenize(render(messages), cache_key, images)
        end = text.data[-END_BYTES:].decode(errors="ignore")
        shown = NO_IMAGES if images is None else images.among(text.image_tokens)
        if self._is_too_long(text):  # it can only be counted: no other prompt continues it
            return ChatPrompt(text.tokens, (), end, shown)
        shared_lengths = set()
        for later in _possible_next_turns(messages):
            with suppress(InvalidRequestError):  # a turn that the template refuses gives no branch point
                shared_lengths.add(_shared_bytes(text.data, render(later)))
        branch_points = {self._stable_tokens(text, length) for length in shared_lengths}
        return ChatPrompt(text.tokens, tuple(sorted(branch_points - {0})), end, shown)

    def text_prompt(self, text: str, images: ChatImages) -> ChatPrompt:
        """Tokenize a text that is no chat, and has the markers of images. Nothing is looked up, and nothing is kept.

        Raises ContextFullError for a text that cannot fit into the context, however it is tokenized.
        """
        tokenized = self._tokenize(self._model.normalized(text).encode(), None, images)
        return ChatPrompt(tokenized.tokens, (), images=images.among(tokenized.image_tokens))

    def _check_messages(self, messages: Sequence[Message]) -> None:
        """Raise ContextFullError for messages that are too long to render: templates drop thinking and outer spaces."""
        contents = (message.get("content") for message in messages)
        texts = [content for content in contents if isinstance(content, str)]
        if self._n_ctx is not None and sum(map(len, texts)) > self._n_ctx:
            self._model.check_characters(sum(len(text.rpartition(THINK_END)[2].strip()) for text in texts), self._n_ctx)

    def _is_too_long(self, text: _TokenizedText) -> bool:
        return self._n_ctx is not None and len(text.tokens) > self._n_ctx

    def _tokenize(self, data: bytes, cache_key: CacheKey | None, images: ChatImages | None) -> _TokenizedText:
        """Tokenize a prompt's text; reuse tokens of the recent prompt that shares the longest beginning with it.

        images: the images of the chat, whose markers are replaced by the images' tokens.
        """
        placed_images = [] if images is None or not images.by_marker else images.find(data)
        if self._n_ctx is not None:
            self._model.check_bytes(len(data), self._n_ctx)
            if (n_tokens := sum(placed.n_tokens for _, _, placed in placed_images)) > self._n_ctx:
                raise ContextFullError(f"the images of the prompt have {n_tokens} tokens, n_ctx is {self._n_ctx}")
        recent = max(
            self._recent.texts(cache_key),
            key=lambda text: _shared_bytes(text.data, data),
            default=_TokenizedText(b"", [], [], set()),
        )
        n, start = recent.last_cut(_shared_bytes(recent.data, data))
        if images is not None and (images.by_marker or recent.image_tokens):
            expected = [placed.token for _, end, placed in placed_images if end <= start]
            if _image_tokens(recent.tokens[:n]) != expected:  # other images, or images that have new tokens by now
                n = start = 0
        text = _TokenizedText(data, recent.tokens[:n], recent.cuts_until(n), set())
        is_exact = True
        for first, end, placed in placed_images:
            text.image_tokens.add(placed.token)
            if first >= start:
                is_exact &= self._add_text(text, start, first)
                text.tokens.extend([placed.token] * placed.n_tokens)
                start = end
        if not (self._add_text(text, start, len(data)) and is_exact):
            text.cuts.clear()
        if cache_key is not None and not self._is_too_long(text):
            self._recent.add(cache_key, text)
        return text

    def _add_text(self, text: _TokenizedText, start: int, end: int) -> bool:
        """Tokenize the bytes from `start` to `end` of a text, and add the tokens to those before.

        Returns whether the cuts are safe: none is if the tokenizer adds bytes, perhaps after each cut.
        """
        n, part = len(text.tokens), text.data[start:end]
        tokens = self._model.tokenize(part.decode(), add_special=start == 0)
        pieces = {token: self._model.token_bytes(token, special=True) for token in set(tokens)}
        controls = {token for token in pieces if not self._model.token_bytes(token)}
        ends = accumulate(map(len, map(pieces.__getitem__, tokens)), initial=start)
        next(ends)
        text.tokens.extend(tokens)
        text.cuts.extend(
            (i, at) for i, (token, at) in enumerate(zip(tokens, ends, strict=True), n + 1) if token in controls
        )
        return b"".join(map(pieces.__getitem__, tokens)) == part

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
    image_tokens: the tokens of its images.
    """

    data: bytes
    tokens: list[int]
    cuts: list[tuple[int, int]]
    image_tokens: set[int]

    @property
    def nbytes(self) -> int:
        """Return about how much memory the text takes: a token takes a pointer and an integer object."""
        return len(self.data) + 40 * len(self.tokens)

    def cuts_until(self, n: int) -> list[tuple[int, int]]:
        """Return the cuts within the first n tokens."""
        return [cut for cut in self.cuts if cut[0] <= n]

    def last_cut(self, length: int) -> tuple[int, int]:
        """Return the last cut within the first `length` bytes; (0, 0) where there is none."""
        i = bisect_right(self.cuts, length, key=lambda cut: cut[1])
        return self.cuts[i - 1] if i else (0, 0)


class _RecentTexts:
    """The recent texts of each cache key. Threads may share it."""

    def __init__(self) -> None:
        self._by_key: dict[CacheKey, deque[_TokenizedText]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def texts(self, key: CacheKey | None) -> list[_TokenizedText]:
        """Return the texts of a key, the oldest first."""
        with self._lock:
            return [] if key is None else list(self._by_key.get(key, ()))

    def add(self, key: CacheKey, text: _TokenizedText) -> None:
        """Add a text. If there are too many of the key, or too many bytes, drop the oldest ones of the largest key."""
        with self._lock:
            self._by_key.setdefault(key, deque()).append(text)
            self._nbytes += text.nbytes
            if len(self._by_key[key]) > N_RECENT:
                self._drop_oldest(key)
            while self._nbytes > MAX_RECENT_BYTES:
                self._drop_oldest(max(self._by_key, key=lambda each: sum(one.nbytes for one in self._by_key[each])))

    def _drop_oldest(self, key: CacheKey) -> None:
        self._nbytes -= self._by_key[key].popleft().nbytes
        if not self._by_key[key]:
            del self._by_key[key]


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


def _image_tokens(tokens: Sequence[int]) -> list[int]:
    """Return the token of each image among these tokens, in their order."""
    return [token for token, _ in groupby(tokens) if token < 0]


def _shared_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the tokens that `a` and `b` share at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
