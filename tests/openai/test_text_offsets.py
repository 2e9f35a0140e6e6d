"""Tests of the offsets of tokens in the text of a completion."""

from __future__ import annotations

import pytest

from pymtp.openai.request_body import CHAT, TEXT, read_params
from pymtp.openai.response_body import TextOffsets


def test_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    offsets = TextOffsets(3)
    assert [offsets.take(bytes([byte])) for byte in "x😀y".encode()] == [3, 4, 4, 4, 4, 5]


@pytest.mark.parametrize(("url", "expected"), [(TEXT, 0), (CHAT, None)])
def test_prompts_that_are_not_repeated_have_no_log_probabilities(url: str, expected: int | None) -> None:
    body = {"messages": [], "prompt": "a", "echo": True, "logprobs": True}
    assert read_params(url, body, {}).prompt_logprobs == expected
