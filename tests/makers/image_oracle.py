"""The pictures and prompts that golden_images.npz has the outputs for, and the projector that they are encoded with.

The prompts are of the shipped model's tokens. A picture's tokens are all the number of the picture: -1, -2, …
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from makers.make_mmproj import make_mmproj

PIXELS = 32  # of a side of a token's square: two patches of 16
MIN_TOKENS = 1  # of the projector: by default llama.cpp enlarges pictures of fewer than 8 tokens

# width and height in pixels, by the picture's name
SIZES = {
    "one": (32, 32),  # a single group of patches
    "small": (96, 64),
    "wide": (320, 64),
    "tall": (64, 288),
    "resized": (100, 70),  # becomes 92 x 64, and black to the left and right, since 96 x 64 is the nearest whole size
}
GRIDS = {name: (max(1, round(w / PIXELS)), max(1, round(h / PIXELS))) for name, (w, h) in SIZES.items()}

# fmt: off
_BEFORE = [1, 1420, 201]  # "<|im_start|>user\n"
_ANSWER = [57, 622, 269, 795, 2, 201, 1, 1854, 477, 889, 201]  # "Write a function<|im_end|>\n…assistant\n"
_LOOP = [1569, 593, 311, 1153, 272, 261, 308]  # "for line in lines:\n    if"
_CLASS = [535, 1934, 700, 271, 272, 261, 362, 1359]  # 'class Counter:\n    """Co'
_METHOD = [338, 475, 589, 532, 275, 14, 653, 85, 31]  # "def __init__(self, keys="
_LINES = [288, 1042, 700, 85, 279, 1755, 264]  # " self.counts = {}\n       "

# pieces of text, and pictures by their names
PROMPTS: dict[str, list[list[int] | str]] = {
    "one": [_BEFORE, "one", _ANSWER],
    "small": ["small", _LOOP],
    "wide": [_BEFORE, "wide", _CLASS],
    "tall": [_BEFORE, "tall", _METHOD],
    "resized": [_BEFORE, "resized", _LINES],
    # the text after a picture goes on after its longer side; the third repeats the first
    "several": [_BEFORE, "tall", _CLASS, "wide", [201], "tall", _ANSWER],
}
# fmt: on


def picture(name: str) -> NDArray[np.uint8]:
    """Return the pixels of a picture, of shape (height, width, 3): a pattern that differs in each colour."""
    width, height = SIZES[name]
    y, x, colour = np.ogrid[:height, :width, :3]
    return ((7 * x + 13 * y + (x * y >> 3) * (colour + 1) + 60 * colour) % 256).astype(np.uint8)


def tokens(prompt: str) -> list[int]:
    """Return the tokens of a prompt; its pictures are numbered -1, -2, … in the order of SIZES."""
    row: list[int] = []
    for part in PROMPTS[prompt]:
        row += [number(part)] * (GRIDS[part][0] * GRIDS[part][1]) if isinstance(part, str) else part
    return row


def number(name: str) -> int:
    """Return the token of a picture."""
    return -1 - list(SIZES).index(name)


def pictures(prompt: str) -> list[str]:
    """Return the names of a prompt's pictures, in order, with repetitions."""
    return [part for part in PROMPTS[prompt] if isinstance(part, str)]


def make_image_oracle(path: Path) -> Path:
    """Write the projector for the shipped model, in F32."""
    return make_mmproj("demo", path, weight_type="f32", seed=1)
