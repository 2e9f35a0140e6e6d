"""Pictures for tests, a projector that needs no model, and a scripted context that sees images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.scripted import SeededContext
from pymtp.errors import InvalidRequestError
from pymtp.images import Image

NO_ROWS: Mapping[int, NDArray[np.float32]] = {}


def picture(seed: int = 0, width: int = 40, height: int = 32) -> NDArray[np.uint8]:
    """Return noise of this size."""
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)


def image(seed: int = 0, width: int = 40, height: int = 32) -> Image:
    return Image.read(picture(seed, width, height))


class ScriptedProjector:
    """A projector with a token for each square of 8 x 8 pixels, whose rows hold the mean of the image.

    layers: the number of turns that an image takes, at the least. begun, encoded: the means of images.
    """

    path, digest = Path("mmproj.gguf"), "scripted"
    n_embd = 4

    def __init__(self, layers: int = 1, after_layer: Callable[[], object] = lambda: None) -> None:
        self.layers, self.after_layer = layers, after_layer
        self.closed = False
        self.begun: list[float] = []
        self.encoded: list[float] = []
        self._image: NDArray[np.uint8] | None = None
        self.left = 0

    def grid(self, width: int, height: int) -> tuple[int, int]:
        if max(width, height) > 100 * min(width, height):
            raise InvalidRequestError(f"an image of {width} x {height} pixels is too narrow")
        return max(1, width // 8), max(1, height // 8)

    def begin(self, pixels: NDArray[np.uint8]) -> None:
        assert self._image is None
        self._image, self.left = pixels, self.layers
        self.begun.append(float(pixels.mean()))

    def advance(self, seconds: float) -> NDArray[np.float32] | None:
        assert self._image is not None
        self.left -= 1
        self.after_layer()
        if self.left:
            return None
        image, self._image = self._image, None
        self.encoded.append(float(image.mean()))
        return rows_of(image)

    def end(self) -> None:
        self._image = None

    def close(self) -> None:
        self.closed = True


def rows_of(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the rows that a ScriptedProjector makes of an image."""
    height, width, _ = pixels.shape
    return np.full((max(1, width // 8) * max(1, height // 8), ScriptedProjector.n_embd), pixels.mean(), np.float32)


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
        assert all(np.array_equal(images[token], self.rows[token]) for token in seen)
        self.given.append(seen)
        super().prefill_batch(prompts)

    def load(self, seq: int, tokens: Sequence[int], state: NDArray[np.uint8]) -> None:
        assert {token for token in tokens if token < 0} <= self.grids.keys()
        super().load(seq, tokens, state)
