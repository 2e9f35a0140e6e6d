"""The images of a prefix file: named in its metadata, with tokens that count within the file.

A process numbers the images that it has seen, so their tokens mean nothing to another one. In a file, the tokens of the
first image are -1, those of the second -2. The metadata name the images in this order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

DIGEST_BYTES = 32


class FileImage(NamedTuple):
    """An image of a prompt.

    digest: the SHA-256 of its source.
    nx, ny: the columns and the rows of its grid of tokens.
    """

    digest: bytes
    nx: int
    ny: int


def file_tokens(tokens: Sequence[int], images: Mapping[int, FileImage]) -> tuple[list[int], str]:
    """Return the tokens that a file has for those of a prompt, and the text that names its images.

    images: the images of the prompt, by their tokens.
    """
    numbers = {token: -1 - i for i, token in enumerate(dict.fromkeys(token for token in tokens if token < 0))}
    named = [[images[token].digest.hex(), images[token].nx, images[token].ny] for token in numbers]
    return [numbers.get(token, token) for token in tokens], json.dumps(named)


def prompt_tokens(tokens: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return the tokens of a prompt for those of a file. numbers: the tokens of the file's images, in their order."""
    return [token if token >= 0 else numbers[-1 - token] for token in tokens]


def read_images(text: str, tokens: Sequence[int]) -> list[FileImage]:
    """Read the images that a file names. Raises ValueError if they do not fit the tokens of the file."""
    images = []
    for entry in json.loads(text):
        match entry:
            case [str(digest), int(nx), int(ny)]:
                images.append(FileImage(bytes.fromhex(digest), nx, ny))
            case _:
                raise ValueError
    if any(len(image.digest) != DIGEST_BYTES or image.nx < 1 or image.ny < 1 for image in images):
        raise ValueError
    runs = [(-1 - token, len(list(run))) for token, run in groupby(tokens) if token < 0]
    if {i for i, _ in runs} != set(range(len(images))) or (images and tokens[-1] < 0):
        raise ValueError
    if any(n != images[i].nx * images[i].ny for i, n in runs):
        raise ValueError
    return images
