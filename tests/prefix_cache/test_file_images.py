"""Tests of the images that a prefix file names, and of their tokens in the file."""

from __future__ import annotations

import json

import pytest

from pymtp.prefix_cache.file_images import FileImage, file_tokens, prompt_tokens, read_images

FIRST, SECOND = FileImage(bytes(range(32)), 2, 3), FileImage(bytes(32), 4, 1)
PROMPT = [7, *[-12] * 6, 8, *[-3] * 4, *[-12] * 6, 9]
IMAGES = {-12: FIRST, -3: SECOND}


def test_images_are_numbered_by_their_order_and_named_once() -> None:
    tokens, named = file_tokens(PROMPT, IMAGES)
    assert tokens == [7, *[-1] * 6, 8, *[-2] * 4, *[-1] * 6, 9]
    assert read_images(named, tokens) == [FIRST, SECOND]
    assert prompt_tokens(tokens, [-12, -3]) == PROMPT


def test_text_has_no_images() -> None:
    tokens, named = file_tokens([1, 2], {})
    assert (tokens, read_images(named, tokens)) == ([1, 2], [])


TOKENS, NAMED = file_tokens(PROMPT, IMAGES)


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (TOKENS, "[]"),
        (TOKENS, "{"),
        (TOKENS, "[1, 2]"),
        (TOKENS, NAMED.replace("00", "0g", 1)),
        (TOKENS, NAMED.replace("0001", "01", 1)),
        (TOKENS, NAMED.replace(" 3]", " 4]")),
        (TOKENS, NAMED.replace(" 3]", " 3.0]")),
        (TOKENS, json.dumps([*json.loads(NAMED), ["00" * 32, 1, 1]])),
        (TOKENS[:-1], NAMED),
        ([token for i, token in enumerate(TOKENS) if i != 3], NAMED),
        ([-3 if token == -2 else token for token in TOKENS], NAMED),
        ([1, -1], "[]"),
    ],
    ids=str,
)
def test_images_that_do_not_fit_the_tokens_are_refused(tokens: list[int], named: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_images(named, tokens)
