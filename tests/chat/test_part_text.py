"""Tests of the text of content parts: texts as they are, and placeholders for everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pymtp.chat.part_text import content_text, part_text

TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (TEXT, "x"),
        ({"type": "output_text", "text": "x", "annotations": []}, "x"),
        ({"type": "refusal", "refusal": "no"}, "no"),
        ("x", "x"),
        (5, "5"),
        (None, "null"),
        ({"type": "image", "source": {"type": "base64", "data": "iVBOR"}}, "[image]"),
        ({"type": "input_image", "image_url": "data:"}, "[image]"),
        ({"type": "computer_screenshot", "image_url": "data:"}, "[image]"),
        ({"type": "input_audio"}, "[audio]"),
        ({"type": "input_file", "filename": "a.pdf", "file_data": "data:"}, "[file: a.pdf]"),
        ({"type": "document", "title": "T", "source": {"type": "base64", "data": "x"}}, "[document: T]"),
        ({"type": "document", "title": "T", "source": {"type": "text", "data": "x"}}, "T\n\nx"),
        ({"type": "document", "source": {"type": "content", "content": [TEXT, {"type": "image"}]}}, "x\n\n[image]"),
        ({"type": "search_result", "title": "T", "source": "S", "content": [TEXT]}, "T\n\nS\n\nx"),
        ({"type": "tool_reference", "tool_name": "ls"}, "[tool: ls]"),
        ({"type": "logs", "logs": "x"}, "x"),
        ({"type": "something_new", "data": "x"}, "[something_new]"),
        ({"type": "text"}, "[text]"),
        ({"stdout": "x", "exit_code": 0}, '{"stdout": "x", "exit_code": 0}'),
        ({"type": "web_search_result", "url": "u", "encrypted_content": "zz"}, '{"url": "u"}'),
        (
            {"type": "code_execution_result", "stdout": "x", "content": [{"type": "image"}]},
            '{"stdout": "x", "content": ["[image]"]}',
        ),
    ],
)
def test_part_without_text_becomes_a_placeholder(part: Any, text: str) -> None:
    assert part_text(part) == text


def test_parts_are_joined_and_single_values_are_taken() -> None:
    assert content_text([TEXT, {"type": "image"}]) == "x\n\n[image]"
    assert content_text([TEXT, TEXT], "") == "xx"
    assert (content_text(None), content_text("x"), content_text(TEXT)) == ("", "x", "x")
    assert content_text({"type": "computer_screenshot", "image_url": "data:"}) == "[image]"


@pytest.mark.parametrize("value", [{"data": [1], "type": "a"}, {"text": "x", "more": 1}, {"type": "object"}, {}])
def test_object_that_is_the_result_of_a_tool_is_kept_as_json(value: Any) -> None:
    assert json.loads(content_text(value)) == value


def test_part_that_is_nested_too_deep_is_cut_off() -> None:
    part: Any = TEXT
    for _ in range(1000):
        part = {"type": "search_result", "content": [part]}
    assert "[…]" in part_text(part)
    value: Any = {"type": "x_result"}
    for _ in range(100_000):
        value = {"type": "x_result", "a": value}
    assert "[…]" in part_text(value)
    assert content_text({"a": value}) == "[…]"
