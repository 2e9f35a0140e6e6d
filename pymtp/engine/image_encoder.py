"""The images of an LLM: their tokens, and their rows, which the projector computes and a cache keeps.

A prompt holds an image as a run of one negative token, one for each row of the image. Equal images have the same token
as long as it is remembered, and different ones never, so that prefixes of prompts with images are compared as tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymtp.chat.prompt import CacheKey, ChatPrompt
from pymtp.errors import InvalidRequestError
from pymtp.images import Image, ImageLimits
from pymtp.native.process import tell_of_forks

Rows = NDArray[np.float32]
CACHE_SHARE = 4  # the rows of images take at most this share of the host memory for cached prefixes
MAX_TOKENS = 2**16  # images whose tokens are remembered: a forgotten image gets a new one, and is prefilled again


class ImageProjector(Protocol):
    """The calls of a projector: see pymtp.model.projector. Tests put a script in its place."""

    @property
    def path(self) -> Path: ...
    @property
    def digest(self) -> str: ...
    def grid(self, width: int, height: int) -> tuple[int, int]: ...
    def encode(self, pixels: NDArray[np.uint8]) -> Rows: ...
    def cancel(self, cancelled: bool = True) -> None: ...
    def close(self) -> None: ...


class EncodedImage(NamedTuple):
    """An image as a context takes it: columns and rows of its grid, and a row of floats for each of its tokens."""

    nx: int
    ny: int
    rows: Rows


class ImageEncoder:
    """Gives images their tokens, and encodes them. Threads may share it; one image is encoded at a time.

    limits: what images a chat may have.
    n_encoded: the number of images that the projector has encoded.
    """

    def __init__(self, projector: ImageProjector, cache_bytes: int, limits: ImageLimits | None = None) -> None:
        """Create an encoder without images.

        cache_bytes: the limit of host memory for rows.
        """
        self.projector, self.limits = projector, limits or ImageLimits()
        self._cache_bytes = cache_bytes
        self.nbytes = self.n_encoded = 0
        self._tokens: OrderedDict[tuple[bytes, int, int], int] = OrderedDict()  # by digest and grid
        self._last_token = 0
        self._decoded: OrderedDict[bytes, None] = OrderedDict()  # digests of images that are not damaged
        self._owner: object = None  # the owner of the call that encodes an image
        self._cache: OrderedDict[tuple[CacheKey, bytes], Rows] = OrderedDict()  # the least recently used first
        self._after_fork_in_child()
        tell_of_forks(self)

    def _after_fork_in_child(self) -> None:
        """Replace the locks in a forked child, because another thread may have held them at the fork."""
        # reentrant, as a handler of a signal may call the LLM, which refuses it later
        self._lock, self._encoding = threading.RLock(), threading.RLock()

    def place(self, image: Image) -> tuple[int, int]:
        """Return the token of an image, and the number of its tokens.

        Raises InvalidRequestError for an image that the projector refuses, such as one that is too narrow.
        """
        nx, ny = self.projector.grid(image.width, image.height)
        return self.token_of(image.digest, nx, ny), nx * ny

    def check_pixels(self, image: Image) -> None:
        """Raise InvalidRequestError for an image that is damaged behind its header. Decodes an image once."""
        with self._lock:
            if image.digest in self._decoded:
                return
        image.pixels()
        with self._lock:
            self._decoded[image.digest] = None
            if len(self._decoded) > MAX_TOKENS:
                self._decoded.popitem(last=False)

    def token_of(self, digest: bytes, nx: int, ny: int) -> int:
        """Return the token of an image with a grid of nx columns and ny rows."""
        with self._lock:
            token = self._tokens.pop((digest, nx, ny), None)
            if token is None:
                self._last_token -= 1
                token = self._last_token
                if len(self._tokens) >= MAX_TOKENS:
                    self._tokens.popitem(last=False)
            self._tokens[digest, nx, ny] = token
            return token

    def check_prompt(self, prompt: ChatPrompt) -> None:
        """Raise InvalidRequestError unless the image tokens of a prompt are those of its images, each one whole."""
        runs = [(token, len(list(run))) for token, run in groupby(prompt.tokens) if token < 0]
        whole = dict(self.place(image) for image in prompt.images.values())
        if any(whole.get(token) != n for token, n in runs) or not whole.keys() >= prompt.images.keys():
            raise InvalidRequestError(
                "the images of the prompt were given their tokens by another LLM, or too long ago"
            )
        if prompt.tokens[-1] < 0:
            raise InvalidRequestError("the prompt ends with an image: text must follow")

    def encode(
        self,
        images: Mapping[int, Image],
        key: CacheKey | None,
        cancelled: Callable[[], bool] = lambda: False,
        owner: object = True,
    ) -> dict[int, EncodedImage]:
        """Return the encoded images of a prompt by their tokens. Images whose rows are cached are not encoded again.

        key: only rows under the same key are looked up; None: nothing is looked up, and nothing is kept.
        cancelled: is asked before each image. If it returns true, the rest is left out.
        owner: whoever may end the call with `cancel`.

        Raises InvalidRequestError for a damaged image.
        """
        encoded: dict[int, EncodedImage] = {}
        for token, image in images.items():
            rows = self._cached(key, image)
            if rows is None:
                pixels = image.pixels()
                with self._encoding:
                    rows = self._cached(key, image)  # another thread may have encoded it meanwhile
                    if rows is None and not cancelled():
                        rows = self._encode(pixels, owner)
                        self._keep(key, image, rows)
                if rows is None:
                    break
            encoded[token] = EncodedImage(*self.projector.grid(image.width, image.height), rows)
        return encoded

    def _encode(self, pixels: NDArray[np.uint8], owner: object) -> Rows:
        with self._lock:
            self._owner = owner
        try:
            rows = self.projector.encode(pixels)
        finally:
            with self._lock:
                self._owner = None
                self.projector.cancel(False)
        self.n_encoded += 1
        return rows

    def cancel(self, owner: object = None) -> None:
        """End the call of `encode` that has this owner, or any call for None, if it encodes an image at the moment.

        The call raises CancelledError.
        """
        with self._lock:
            if self._owner is not None and (owner is None or owner is self._owner):
                self.projector.cancel()

    def _cached(self, key: CacheKey | None, image: Image) -> Rows | None:
        with self._lock:
            if key is None or (key, image.digest) not in self._cache:
                return None
            self._cache.move_to_end((key, image.digest))
            return self._cache[key, image.digest]

    def _keep(self, key: CacheKey | None, image: Image, rows: Rows) -> None:
        """Keep rows, in place of the least recently used ones. Rows that are too large for the cache are not kept."""
        if key is None or rows.nbytes > self._cache_bytes:
            return
        with self._lock:
            self._cache[key, image.digest] = rows
            self.nbytes += rows.nbytes
            while self.nbytes > self._cache_bytes:
                self.nbytes -= self._cache.popitem(last=False)[1].nbytes


def rows_among(images: Mapping[int, EncodedImage], tokens: Sequence[int]) -> dict[int, Rows]:
    """Return the rows of the images that have tokens among these, by their tokens."""
    return {token: images[token].rows for token in set(tokens) if token < 0}
