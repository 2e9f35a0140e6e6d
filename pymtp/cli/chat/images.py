"""Images of a chat's messages: parts in OpenAI's form, so that a saved chat has them."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pymtp.chat.part_text import content_text
from pymtp.errors import InvalidRequestError
from pymtp.images import Image

Part = Mapping[str, Any]


def read_image(path: Path) -> tuple[Image, Part]:
    """Read the image of a file. Return it, and the part of a message with its bytes.

    Raises InvalidRequestError for a file that cannot be read, that is no image, or that is damaged.
    """
    image = Image.read(path)
    image.pixels()  # damage is found now: in the chat, each further message would be refused for it
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"cannot read the image {path}: {error.strerror or error}") from error
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return image, {"type": "image_url", "image_url": {"url": url}}


def with_images(images: Sequence[Part], text: str) -> str | list[Part]:
    """Return the content of a message: the images, then the text."""
    return [*images, {"type": "text", "text": text}] if images else text


def images_of(content: object) -> list[Part]:
    """Return the images of a message's content."""
    return [part for part in content if _is_image(part)] if isinstance(content, list) else []


def text_of(content: object) -> str:
    """Return the text of a message's content, without its images."""
    parts = [part for part in content if not _is_image(part)] if isinstance(content, list) else content
    return content_text(parts, "")


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image", "image")
