"""The text of a prompt's tokens, for answers that show the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pymtp.model.model import Model

MEDIA_MARKER = "<__media__>"  # stands for an image in the texts of prompts, as in llama.cpp's API


def tokens_text(tokens: Sequence[int], model: Model) -> str:
    """Return the text of a prompt, control tokens included, with a MEDIA_MARKER in the place of each image."""
    return "".join(
        MEDIA_MARKER if image else model.detokenize([*group], special=True)
        for image, group in groupby(tokens, key=lambda token: min(token, 0))
    )
