"""Parts of messages that are images, in the forms of all APIs.

An API's reader turns them into OpenAI's form, {"type": "image_url", "image_url": {"url": …}}, which is plain JSON. Only
images/reader.py gets the images themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.chat.images import WHERE, Place, place_of
from pymtp.chat.part_text import content_text

Part = Mapping[str, Any]
_DATA = "data:"
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_TYPES = ("image_url", "input_image", "image", "computer_screenshot")


def image_part(url: str, where: str = "") -> dict[str, Any]:
    """Return an image in OpenAI's form.

    url: a data:, http:, https: or file: URL, or base64 without one.
    where: where the body has the image, if that is not obvious from the messages that are read from the body.
    """
    return {"type": "image_url", "image_url": {"url": url}} | ({WHERE: Place(where)} if where else {})


def with_places(parts: Sequence[Any], name: str) -> list[Any]:
    """Return parts in which each image, in OpenAI's form, tells where the body has it. name: of the field `parts`."""
    urls = map(image_url, parts)
    return [
        part if url is None else image_part(url, f"{name}[{i}]")
        for i, (part, url) in enumerate(zip(parts, urls, strict=True))
    ]


def data_url(data: str, media_type: object = None) -> str:
    """Return the data URL of base64. media_type: such as image/png; the bytes tell the format, whatever it says."""
    is_valid = isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)
    return f"data:{media_type if is_valid else 'image'};base64,{data}"


def with_scheme(url: str) -> str:
    """Return a data URL unchanged, and that of base64 alone."""
    return url if url[: len(_DATA)].lower() == _DATA else data_url(url)


def image_url(part: object) -> str | None:
    """Return the URL of an image in any API's form; None for a part that is no image, or that has none."""
    if not isinstance(part, Mapping) or part.get("type") not in _TYPES:
        return None
    match part:
        case {"image_url": str(url)} | {"image_url": {"url": str(url)}}:
            return url
        case {"source": {"type": "base64", "data": str(data), **source}}:
            return data_url(data, source.get("media_type"))
        case {"source": {"type": "url", "url": str(url)}}:
            return url
        case {"type": "image", "data": str(data)}:  # the form of the Model Context Protocol
            return data_url(data, part.get("mimeType"))
        case {"type": "image", "image": str(url)}:  # the form of Qwen's own examples
            return url
    return None


def ignored_details(name: str, messages: Sequence[Any]) -> list[str]:
    """List the places of details of images that a client asks for, which change nothing. name: the messages' field."""
    found = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            match part:
                case {"type": "image_url", "image_url": {"detail": detail}} | {"type": "input_image", "detail": detail}:
                    found += [] if detail in (None, "auto") else [f"{name}.{i}.content.{j}.detail"]
    return found


def image_urls(message: object) -> list[str]:
    """Return the URLs of the images of a message."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return [url for part in content if (url := image_url(part)) is not None] if isinstance(content, list) else []


def content_with_images(content: object, between: str = "\n\n") -> str | list[dict[str, Any]]:
    """Return a content as one text, or as a list of texts and images if a part of it is an image.

    content, between: those of `content_text`, which tells what the other parts become.
    """
    if isinstance(content, Mapping):
        parts: Sequence[Any] = [content]
    else:
        parts = content if isinstance(content, Sequence) and not isinstance(content, (str, bytes)) else ()
    urls = [image_url(part) for part in parts]
    if not any(url is not None for url in urls):
        return content_text(content, between)
    found: list[dict[str, Any]] = []
    texts: list[Any] = []
    for part, url in zip(parts, urls, strict=True):
        if url is None:
            texts.append(part)
            continue
        found += _text_parts(texts, between)
        found.append(image_part(url, place_of(part, "")))
        texts = []
    return found + _text_parts(texts, between)


def _text_parts(parts: Sequence[Any], between: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if (text := content_text(parts, between)) else []
