"""Random requests whose prompts have images, for same_text.py --vary images.

Their prompts begin with those of a few chats, in which turns with and without images take turns. They are cut,
continued and mixed as in random_requests.py, but an image stays whole.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from random_requests import RequestGenerator

from pymtp import LLM
from pymtp.chat import Chat
from pymtp.images import Image
from pymtp.model.model import Model

# width and height in pixels; each has 8 tokens or more, and the last is resized
SIZES = ((96, 96), (160, 64), (64, 288), (256, 96), (192, 160), (100, 70))
CHATS, TURNS = 6, 4
AFTER_IMAGE = 5  # a token of text: a prompt does not end with an image


class ImagePool:
    """Images and chats about them. All LLMs of a game give the images the same tokens."""

    def __init__(self, numbers: random.Random, texts: Sequence[str]) -> None:
        self._numbers, self._texts = numbers, texts
        pixels = [np.random.default_rng(numbers.getrandbits(32)).integers(0, 256, (h, w, 3)) for w, h in SIZES]
        self._images = [Image.read(one.astype(np.uint8)) for one in pixels]
        self.chats = [Chat(self._messages()) for _ in range(CHATS)]

    def number(self, llm: LLM) -> dict[int, Image]:
        """Let an LLM number the images in their order. Return them by their tokens."""
        everything = Chat([{"role": "user", "content": [_part(image) for image in self._images]}])
        images = dict(llm.chat_prompts.prompt(everything).images)
        assert images == {-1 - i: image for i, image in enumerate(self._images)}, "an LLM numbers images otherwise"
        return images

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for turn in range(self._numbers.randint(1, TURNS)):
            if turn:
                messages.append({"role": "assistant", "content": self._text()})
            parts = [{"type": "text", "text": self._text()} for _ in range(self._numbers.choice((1, 1, 2)))]
            for _ in range(self._numbers.choice((0, 1, 1, 2))):
                parts.insert(self._numbers.randint(0, len(parts)), _part(self._numbers.choice(self._images)))
            messages.append({"role": "user", "content": parts})
        return messages

    def _text(self) -> str:
        text, n = self._numbers.choice(self._texts), self._numbers.choice((3, 20, 80))
        start = self._numbers.randrange(max(1, len(text) - n))
        return text[start : start + n]


def _part(image: Image) -> dict[str, Any]:
    return {"type": "image", "image": image}


class ImageRequestGenerator(RequestGenerator):
    """Makes random requests with images. See RequestGenerator."""

    def __init__(
        self, model: Model, numbers: random.Random, texts: Sequence[Sequence[int]], n_ctx: int, n_ubatch: int
    ) -> None:
        super().__init__(model, numbers, texts, n_ctx, n_ubatch)
        self._images: Mapping[int, Image] = {}
        self._lengths: dict[int, int] = {}  # of the images' runs of tokens
        self._chats: list[list[int]] = []

    def read(self, llm: LLM, pool: ImagePool) -> None:
        """Take the tokens that an LLM gives the chats and images of a pool."""
        self._images = pool.number(llm)
        everything = Chat([{"role": "user", "content": [_part(image) for image in self._images.values()]}])
        for token, run in groupby(llm.chat_prompts.prompt(everything).tokens):
            if token < 0:
                self._lengths[token] = len(list(run))
        self._chats = [llm.chat_prompts.prompt(chat).tokens for chat in pool.chats]

    def images_of(self, prompt: Sequence[int]) -> Mapping[int, Image]:
        """Return the images of a prompt by their tokens."""
        return {token: self._images[token] for token in sorted(set(prompt)) if token < 0}

    def whole(self, prompt: list[int]) -> list[int]:
        """Leave out images that were cut, and make text follow the last one."""
        kept: list[int] = []
        for token, run in groupby(prompt):
            n = len(list(run))
            if token >= 0:
                kept += [token] * n
            elif n >= self._lengths[token]:
                kept += [token] * self._lengths[token]
        return kept if kept and kept[-1] >= 0 else [*kept, AFTER_IMAGE]

    def _text(self, n: int) -> list[int]:
        if self._numbers.random() < 0.6:
            return list(self._numbers.choice(self._chats))
        return super()._text(n)
