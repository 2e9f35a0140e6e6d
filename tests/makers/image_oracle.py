"""The pictures and prompts that golden_images.npz has the outputs for, and the projector that they are encoded with.

The texts of prompts become tokens of the shipped model. A picture's tokens are all the number of the picture: -1, -2, …
"""

from __future__ import annotations

from collections.abc import Callable
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

_BEFORE = "<|im_start|>user\n"
_ANSWER = "Write a function<|im_end|>\n<|im_start|>assistant\n"
_LOOP = "for line in lines:\n    if"
_CLASS = 'class Counter:\n    """Co'
_METHOD = "def __init__(self, keys="
_LINES = " self.counts = {}\n       "

# pieces of text, and pictures by their names
PROMPTS: dict[str, list[str]] = {
    "one": [_BEFORE, "one", _ANSWER],
    "small": ["small", _LOOP],
    "wide": [_BEFORE, "wide", _CLASS],
    "tall": [_BEFORE, "tall", _METHOD],
    "resized": [_BEFORE, "resized", _LINES],
    # the text after a picture goes on after its longer side; the third repeats the first
    "several": [_BEFORE, "tall", _CLASS, "wide", "\n", "tall", _ANSWER],
}


def picture(name: str) -> NDArray[np.uint8]:
    """Return the pixels of a picture, of shape (height, width, 3): a pattern that differs in each colour."""
    width, height = SIZES[name]
    y, x, colour = np.ogrid[:height, :width, :3]
    return ((7 * x + 13 * y + (x * y >> 3) * (colour + 1) + 60 * colour) % 256).astype(np.uint8)


def tokens(prompt: str, tokenize: Callable[[str], list[int]]) -> list[int]:
    """Return the tokens of a prompt; its pictures are numbered -1, -2, … in the order of SIZES."""
    row: list[int] = []
    for part in PROMPTS[prompt]:
        row += [number(part)] * (GRIDS[part][0] * GRIDS[part][1]) if part in SIZES else tokenize(part)
    return row


def number(name: str) -> int:
    """Return the token of a picture."""
    return -1 - list(SIZES).index(name)


def pictures(prompt: str) -> list[str]:
    """Return the names of a prompt's pictures, in order, with repetitions."""
    return [part for part in PROMPTS[prompt] if part in SIZES]


def make_image_oracle(path: Path) -> Path:
    """Write the projector for the shipped model, in F32."""
    return make_mmproj("demo", path, weight_type="f32", seed=1)
