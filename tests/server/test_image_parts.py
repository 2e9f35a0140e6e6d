"""Tests of images in messages: every API's form becomes OpenAI's, in its place among the texts."""

from __future__ import annotations

from typing import Any

import pytest

from pymtp.server.image_parts import content_with_images, image_part, image_url, with_scheme
from pymtp.server.messages.read import read_message_request
from pymtp.server.messages.types import MessageRequest
from pymtp.server.ollama.read import read_chat, read_generate
from pymtp.server.ollama.types import OllamaChatRequest, OllamaGenerateRequest
from pymtp.server.responses.read import input_messages
from pymtp.server.responses.types import ResponseRequest

PNG = "data:image/png;base64,iVBO"
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("part", "url"),
    [
        ({"type": "image_url", "image_url": {"url": PNG}}, PNG),
        ({"type": "image_url", "image_url": PNG}, PNG),
        ({"type": "input_image", "image_url": PNG}, PNG),
        ({"type": "computer_screenshot", "image_url": PNG}, PNG),
        (BLOCK, PNG),
        ({"type": "image", "source": {"type": "base64", "data": "iVBO"}}, "data:image;base64,iVBO"),
        ({"type": "image", "source": {"type": "url", "url": "https://a/b"}}, "https://a/b"),
        ({"type": "image", "data": "iVBO", "mimeType": "image/png"}, PNG),
        ({"type": "image", "data": "iVBO", "mimeType": "a,b;c"}, "data:image;base64,iVBO"),
        ({"type": "image", "image": "/etc/passwd"}, "/etc/passwd"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, None),
        ({"type": "image_url"}, None),
        ({"type": "image_url", "image_url": {"url": 5}}, None),
        ({"type": "video_url", "image_url": PNG}, None),
        ({"type": ["image"], "image": PNG}, None),
        (PNG, None),
    ],
)
def test_image_has_a_url_in_each_form(part: Any, url: str | None) -> None:
    assert image_url(part) == url


def test_images_stay_in_their_places_among_the_texts() -> None:
    content = [TEXT, TEXT, BLOCK, {"type": "image"}, BLOCK, BLOCK]
    texts = [{"type": "text", "text": text} for text in ("a\n\na", "[image]")]
    assert content_with_images(content) == [texts[0], image_part(PNG), texts[1], image_part(PNG), image_part(PNG)]


@pytest.mark.parametrize(
    ("content", "text"), [([TEXT, {"type": "image"}], "a\n\n[image]"), ("a", "a"), (None, ""), ({"a": 1}, '{"a": 1}')]
)
def test_content_without_images_is_one_text(content: Any, text: str) -> None:
    assert content_with_images(content) == text


def test_base64_alone_gets_a_scheme() -> None:
    assert with_scheme("iVBO") == "data:image;base64,iVBO"
    assert with_scheme("DATA:image/png;base64,iVBO") == "DATA:image/png;base64,iVBO"


def test_blocks_of_messages_and_tool_results_are_images() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, BLOCK]}
    messages = [
        {"role": "user", "content": [BLOCK, TEXT]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [result, TEXT, BLOCK]},
    ]
    body = MessageRequest.model_validate({"model": "m", "max_tokens": 1, "messages": messages})
    read = read_message_request(body.model_dump(exclude_unset=True, by_alias=True))
    assert [message["content"] for message in read.prompt.messages] == [  # type: ignore[union-attr]
        [image_part(PNG, "messages[0].content[0]"), TEXT],
        "",
        [TEXT, image_part(PNG)],
        [TEXT, image_part(PNG, "messages[2].content[2]")],
    ]


def test_items_and_outputs_are_images() -> None:
    image, text = {"type": "input_image", "image_url": PNG, "detail": "auto"}, {"type": "input_text", "text": "a"}
    items = [
        {"role": "user", "content": [text, image]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image, text]},
        {"type": "computer_call_output", "call_id": "d", "output": {"type": "computer_screenshot", "image_url": PNG}},
        {"type": "custom_tool_call_output", "call_id": "e", "output": [image]},
    ]
    body = ResponseRequest.model_validate({"input": items}).model_dump(exclude_unset=True, by_alias=True)
    assert [message["content"] for message in input_messages(body["input"])] == [
        [TEXT, image_part(PNG, "input[0].content[1]")],
        "",
        [image_part(PNG), TEXT],
        [image_part(PNG)],
        [image_part(PNG)],
    ]


def test_images_of_ollama_come_before_the_text() -> None:
    messages = [{"role": "user", "content": "a", "images": ["iVBO"]}, {"role": "tool", "content": "b", "images": []}]
    chat = OllamaChatRequest.model_validate({"messages": messages}).model_dump(exclude_unset=True)
    assert [message["content"] for message in read_chat(chat, {}).prompt.messages] == [  # type: ignore[union-attr]
        [image_part("iVBO", "messages[0].images[0]"), TEXT],
        "b",
    ]
    prompt = OllamaGenerateRequest.model_validate({"prompt": "a", "images": ["iVBO"]}).model_dump(exclude_unset=True)
    (user,) = read_generate(prompt, {}).prompt.messages  # type: ignore[union-attr]
    assert user["content"] == [image_part("iVBO", "images[0]"), TEXT]
