"""Damaged and odd projectors: each is refused, or encodes images of several sizes. See fuzz.py."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import common  # noqa: F401 — sets the path of the makers
import numpy as np
from makers.gguf_damage import damaged
from makers.gguf_parts import GGUF, parse
from makers.make_mmproj import make_mmproj
from makers.make_model import make_model
from makers.vision_shapes import PROJECTORS, VisionShape

from pymtp import Model
from pymtp.model.projector import Projector

ODD, SHORT = 0.05, 0.05  # shares of projectors with an odd shape, and of those without the end of their weights
SMALL = replace(PROJECTORS["tiny"], n_layer=1, n_embd=32, n_head=2, n_ff=32, side=4)
BASES = ((SMALL, "f32"), (SMALL, "f16"), (SMALL, "q8_0"), (replace(SMALL, n_layer=2), "bf16"))
SIZES = ((64, 64), (32, 32), (150, 40))  # in pixels; the first has the learned positions
MAX_TOKENS = 64


def odd_shape(rng: Random) -> VisionShape:
    """Return a random shape: rows of a few weights, other numbers of patches in a token, another model's width."""
    return VisionShape(
        n_layer=rng.choice((0, 1, 1, 2)),
        n_embd=rng.choice((1, 2, 4, 8, 16, 24, 32, 33, 64)),
        n_head=rng.choice((1, 1, 2, 3, 4)),
        n_ff=rng.choice((1, 2, 32, 33)),
        n_out=rng.choice((SMALL.n_out, SMALL.n_out, SMALL.n_out, 1, 64, 2 * SMALL.n_out)),
        side=rng.choice((1, 2, 3, 4, 48)),
        patch=rng.choice((16, 16, 1, 2, 7, 14, 32, 64)),
        merge=rng.choice((2, 2, 2, 1, 3, 4)),
        mean=rng.choice(((0.5, 0.5, 0.5), (), (0.5,), (1e38, -1e38, 0.0), (float("nan"),) * 3)),
        std=rng.choice(((0.5, 0.5, 0.5), (0.0, 0.0, 0.0), (1e-45,) * 3, (0.5, 0.5))),
    )


class Fuzzed:
    """Projectors in each type of weights, damaged, and now and then one of an odd shape. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 1, 20, 2 << 30

    def __init__(self, folder: Path) -> None:
        (self._model,) = make_model("tiny", folder / "model.gguf")
        paths = [make_mmproj(shape, folder / f"{i}.gguf", weight_type=kind) for i, (shape, kind) in enumerate(BASES)]
        self.bases, self._sound = [parse(path.read_bytes()) for path in paths], paths[0]

    def sound(self, place: Path) -> None:
        assert self.encode(self._sound)["encoded"] == len(SIZES)

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Any]:
        path = place / "mmproj.gguf"
        data, recipe = self._damaged(rng, self.bases[index % len(self.bases)], path)
        path.write_bytes(data)
        return recipe, lambda note: self._attempt(path, is_short=recipe[0] == "short")

    def encode(self, path: Path) -> dict[str, int]:
        """Load a projector and encode images of all sizes."""
        with (
            Model(self._model) as model,
            closing(Projector(model, path, n_threads=1, min_tokens=1, max_tokens=MAX_TOKENS)) as projector,
        ):
            assert projector.nbytes > 0 < len(projector.digest)
            for width, height in SIZES:
                nx, ny = projector.grid(width, height)
                assert 0 < nx * ny <= MAX_TOKENS, (nx, ny)
                rows = projector.encode(np.full((height, width, 3), 100, np.uint8))
                assert rows.shape == (nx * ny, model.n_embd), (rows.shape, nx, ny)
        return {"encoded": len(SIZES)}

    def _attempt(self, path: Path, *, is_short: bool) -> dict[str, int]:
        counts = self.encode(path)
        assert not is_short, "a projector without all of its weights was loaded"
        return counts

    def _damaged(self, rng: Random, base: GGUF, path: Path) -> tuple[bytes, list[str]]:
        if rng.random() < SHORT:
            data = base.encoded()
            n = rng.choice((rng.randrange(base.header_size, len(data)), len(data) - 64, base.header_size))
            return data[:n], ["short", f"{n} bytes of {len(data)}"]
        if rng.random() > ODD:
            return damaged(base, rng)
        shape, kind = odd_shape(rng), rng.choice(("f32", "f16", "bf16", "q8_0"))
        make_mmproj(shape, path, weight_type=kind)
        file, done = parse(path.read_bytes()), [f"{kind}, {shape}"]
        if rng.random() < 0.5:
            return file.encoded(), done
        data, more = damaged(file, rng)
        return data, done + more
