"""Odd and damaged images (tests/makers/image_files.py): each is decoded and encoded, or refused. See fuzz.py.

An attempt uses its images twice in one process. Both times must end in the same way, and memory may not grow in the
second.
"""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from common import resident
from fuzz import Note
from makers.image_files import odd_array, odd_file
from makers.make_mmproj import make_mmproj
from makers.make_model import make_model
from PIL import Image as Pillow

from pymtp import InvalidRequestError, Model
from pymtp.images import Image
from pymtp.model.projector import Projector

# Of an image: a larger one is made smaller. A narrow one would have more tokens than a smaller limit: it has one token
# in its short direction, and may be 200 times as long.
MAX_TOKENS = 200
GROWTH = 8 << 20  # bytes of memory that the second time may take beyond the first: parts of the heap that are free
Source = Callable[[], Any]


def make_source(rng: Random, place: Path) -> tuple[Source, list[str]]:
    """Return a function that returns a source of an odd image, as users give it, and what is odd about it."""
    if rng.random() < 0.1:
        array, done = odd_array(rng)
        return lambda: array, done
    data, done = odd_file(rng)
    way = rng.choice(("bytes", "bytes", "bytes", "path", "url", "url", "pillow", "buffer"))
    if way == "path":
        path = place / f"{len(list(place.iterdir()))}.png"
        path.write_bytes(data)
        return lambda: path, [*done, way]
    if way == "url":
        text = base64.b64encode(data).decode()
        if rng.random() < 0.2:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(("", "=", "%", "é", " ", "\n", "data:", "A")) + text[at + 1 :]
        head = rng.choice(("data:image/png;base64,", "data:;base64,", "data:image/jpeg;base64,", "data:,", "data:"))
        return lambda: head + text, [*done, way, head]
    if way == "pillow":
        return lambda: _opened(data), [*done, way]
    return lambda: memoryview(data) if way == "buffer" else data, [*done, way]


def _opened(data: bytes) -> Any:
    """Open an image as a user of Pillow does; its bytes, if Pillow does not take them."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a user's own affair
        return Pillow.open(io.BytesIO(data))
    return data


def use(source: Any, projector: Projector) -> str:
    """Read, decode and encode an image. Return what came out of it: a digest, or the message of its refusal."""
    try:
        image = Image.read(source)
        pixels = image.pixels()
    except InvalidRequestError as error:
        return _reason(error)
    assert pixels.dtype == np.uint8, pixels.dtype
    assert pixels.shape == (image.height, image.width, 3), (pixels.shape, image)
    try:
        nx, ny = projector.grid(image.width, image.height)
        assert nx > 0 < ny, (nx, ny)
        assert nx * ny <= MAX_TOKENS, (nx, ny)
        rows = projector.encode(pixels)
    except InvalidRequestError as error:
        return _reason(error)
    assert rows.shape[0] == nx * ny, (rows.shape, nx, ny)
    assert np.isfinite(rows).all()
    return hashlib.sha256(rows.tobytes()).hexdigest()


def _reason(error: InvalidRequestError) -> str:
    assert str(error), "an image is refused without a reason"
    return f"refused: {error}"


class Fuzzed:
    """Odd images, with a projector of a tiny model. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 50, 120, 2 << 30

    def __init__(self, folder: Path) -> None:
        (self._model,) = make_model("tiny", folder / "model.gguf")
        self._mmproj = make_mmproj("tiny", folder / "mmproj.gguf")

    def sound(self, place: Path) -> None:
        out = io.BytesIO()
        Pillow.new("RGB", (64, 64)).save(out, "PNG")
        with Model(self._model) as model, closing(self._projector(model)) as projector:
            assert not use(out.getvalue(), projector).startswith("refused")

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Any]:
        made = [make_source(rng, place) for _ in range(self.UNITS)]
        recipe = [f"{i}: {', '.join(done)}" for i, (_, done) in enumerate(made)]
        return recipe, lambda note: self._attempt([source for source, _ in made], recipe, note)

    def _projector(self, model: Model) -> Projector:
        return Projector(model, self._mmproj, n_threads=1, max_tokens=MAX_TOKENS)

    def _attempt(self, sources: list[Source], recipe: list[str], note: Note) -> dict[str, int]:
        def all_of_them() -> list[str]:
            ends = []
            for what, source in zip(recipe, sources, strict=True):
                note(what)
                ends.append(use(source(), projector))
            return ends

        with Model(self._model) as model, closing(self._projector(model)) as projector:
            first = all_of_them()
            before = resident()
            assert all_of_them() == first, "an image had another end the second time"
            growth = resident() - before
            note(f"memory grew by {growth} bytes")
            assert growth <= GROWTH, growth
        counts = Counter("images refused" if end.startswith("refused") else "images encoded" for end in first)
        return dict(counts)
