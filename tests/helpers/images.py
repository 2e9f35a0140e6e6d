"""Pictures for tests, a projector that needs no model, and a scripted context that sees images."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.scripted import SeededContext
from pymtp.engine.image_encoder import EncodedImage
from pymtp.errors import InvalidRequestError
from pymtp.images import Image

NO_ROWS: Mapping[int, NDArray[np.float32]] = {}


def picture(seed: int = 0, width: int = 40, height: int = 32) -> NDArray[np.uint8]:
    """Return noise of this size."""
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def image(seed: int = 0, width: int = 40, height: int = 32) -> Image:
    return Image.read(picture(seed, width, height))


class ScriptedProjector:
    """A projector with a token for each square of 8 x 8 pixels, whose rows hold the mean of the image."""

    path, digest = Path("mmproj.gguf"), "scripted"
    n_embd = 4

    def __init__(self) -> None:
        self.closed = False
        self.encoded: list[float] = []
        self.lock = threading.Lock()  # a test may hold it, to let `encode` wait

    def grid(self, width: int, height: int) -> tuple[int, int]:
        if max(width, height) > 100 * min(width, height):
            raise InvalidRequestError(f"an image of {width} x {height} pixels is too narrow")
        return max(1, width // 8), max(1, height // 8)

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self.lock:
            nx, ny = self.grid(pixels.shape[1], pixels.shape[0])
            self.encoded.append(float(pixels.mean()))
            return np.full((nx * ny, self.n_embd), pixels.mean(), np.float32)

    def cancel(self, cancelled: bool = True) -> None:
        self.cancelled = cancelled

    def close(self) -> None:
        self.closed = True


class SeeingContext(SeededContext):
    """A context that sees images: each must be known before its tokens are there, and whole where text follows.

    rows: the rows that are right, by the tokens of the images.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.grids: dict[int, tuple[int, int]] = {}
        self.rows: dict[int, NDArray[np.float32]] = {}
        self.given: list[set[int]] = []  # the images of each prefill

    def add_image(self, token: int, nx: int, ny: int) -> None:
        assert token < 0
        assert self.grids.setdefault(token, (nx, ny)) == (nx, ny)

    def prefill_batch(
        self, prompts: Mapping[int, Sequence[int]], images: Mapping[int, NDArray[np.float32]] = NO_ROWS
    ) -> None:
        seen = {token for tokens in prompts.values() for token in tokens if token < 0}
        assert seen == images.keys()
        assert seen <= self.grids.keys()
        assert all(images[token] is self.rows[token] for token in seen)
        self.given.append(seen)
        super().prefill_batch(prompts)

    def load(self, seq: int, tokens: Sequence[int], state: NDArray[np.uint8]) -> None:
        assert {token for token in tokens if token < 0} <= self.grids.keys()
        super().load(seq, tokens, state)

    def encoded(self, token: int, nx: int, ny: int) -> EncodedImage:
        """Return an image with the rows that are right for its token."""
        rows = self.rows.setdefault(token, np.full((nx * ny, 4), token, np.float32))
        return EncodedImage(nx, ny, rows)
