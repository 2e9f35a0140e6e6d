"""The images of a chat: the content parts that hold them, and the markers that stand for them in the rendered prompt.

A template only sees text, so an image becomes a marker in the text of its message. After rendering, each marker of an
image of this chat is replaced by the image's tokens. A marker has characters of Unicode's private use area and the
SHA-256 of the image, so the text of a message holds it only where the chat has this very image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pymtp.errors import InvalidRequestError
from pymtp.images import Image, ImageLimits
from pymtp.validation import shown

WHERE = "where"  # the key under which a part with an image has its Place
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"  # the tokens around an image, as the models know them
NO_PROJECTOR = (
    "this model was loaded without a projector, so it cannot see images: give mmproj=… (--mmproj), a file named "
    "mmproj*.gguf from the model's repository"
)
_MARKER = re.compile("\ue000image:[0-9a-f]{64}\ue001".encode())
LEFT_OUT_AT_ONCE = 16  # images of tools
MAX_DECODED = 200_000_000  # pixels of the images of one chat that are decoded to find damage: some seconds of work
_DATA = "data:"
_URLS = (_DATA, "http://", "https://")
MAX_PATH = 4096  # characters of a path
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}=*\s*")  # the smallest image has more


class Place(str):
    """The name of the field of a body that has an image, for messages of errors. No value of a client is a Place."""


def place_of(part: Mapping[str, Any], otherwise: str) -> str:
    """Return the Place of a part with an image, and `otherwise` for a part without one."""
    place = part.get(WHERE)
    return place if isinstance(place, Place) else otherwise


class ImageTokens(Protocol):
    """The tokens of a model's images. Threads may share the object."""

    limits: ImageLimits

    def is_checked(self, image: Image) -> bool:
        """Return whether the image was decoded before."""

    def place(self, image: Image, *, decode: bool = True) -> tuple[int, int]:
        """Return the token of an image, which is negative, and the number of its tokens.

        decode: whether to decode it, if that was not done before.

        Raises InvalidRequestError for an image that is damaged, or that the model cannot see, such as one that is too
        narrow.
        """


class PlacedImage(NamedTuple):
    """An image, its token and the number of its tokens: see `ImageTokens.place`."""

    image: Image
    token: int
    n_tokens: int


class ChatImages:
    """Collects the images of a chat while its messages are converted.

    by_marker: the images, by the markers that stand for them.
    """

    def __init__(self, tokens: ImageTokens) -> None:
        self._tokens = tokens
        self._n_images = self._n_to_leave_out = self._n_pixels = 0
        self.by_marker: dict[str, PlacedImage] = {}

    def expect(self, n_images: int, n_of_tools: int) -> None:
        """Prepare for the images of a chat, of which n_of_tools are in results of tools.

        If they are more than a request may have, `add_of_tool` leaves out the oldest, LEFT_OUT_AT_ONCE together: so the
        beginning of the prompt changes once in as many turns.
        """
        blocks = -(-max(0, n_images - self._tokens.limits.max_images) // LEFT_OUT_AT_ONCE)
        self._n_to_leave_out = min(n_of_tools, blocks * LEFT_OUT_AT_ONCE)

    def add_of_tool(self, part: Mapping[str, Any]) -> str:
        """Add the image of a part of a tool's result, as `add`. One that is refused or left out becomes a placeholder.

        It is not refused, because no user can correct what a tool wrote.
        """
        if self._n_to_leave_out:
            self._n_to_leave_out -= 1
            return f"[image: left out, as a request may have {self._tokens.limits.max_images} images]"
        try:
            return self.add(part)
        except InvalidRequestError as error:
            return f"[image: {error}]"

    def add(self, part: Mapping[str, Any]) -> str:
        """Add the image of a part, and return the text that stands for it.

        Damage of new images beyond the first MAX_DECODED pixels is found later, when they are encoded.

        Raises InvalidRequestError for an image that is damaged or refused, and for too many images.
        """
        self._n_images += 1
        self._tokens.limits.check_count(self._n_images)
        image = Image.read(_source(part), self._tokens.limits)
        if not self._tokens.is_checked(image):
            self._n_pixels += image.width * image.height
        placed = self._tokens.place(image, decode=self._n_pixels <= MAX_DECODED)
        marker = f"\ue000image:{image.digest.hex()}\ue001"
        self.by_marker[marker] = PlacedImage(image, *placed)
        return f"{VISION_START}{marker}{VISION_END}"

    def find(self, data: bytes) -> list[tuple[int, int, PlacedImage]]:
        """Find the markers of these images in a rendered text: the beginning and the end of each, and its image."""
        found = (
            (match.start(), match.end(), self.by_marker.get(match[0].decode())) for match in _MARKER.finditer(data)
        )
        return [(start, end, placed) for start, end, placed in found if placed is not None]

    def among(self, tokens: Collection[int]) -> dict[int, Image]:
        """Return the images whose tokens are among these, by their tokens."""
        return {placed.token: placed.image for placed in self.by_marker.values() if placed.token in tokens}


def is_image_part(part: object) -> bool:
    """Return whether a content part holds an image in one of the forms that `template_messages` takes."""
    match part:
        case {"type": "image", "image": _}:
            return True
        case {"type": "image_url" | "input_image", "image_url": str()}:
            return True
        case {"type": "image_url", "image_url": {"url": str()}}:
            return True
    return False


def _source(part: Mapping[str, Any]) -> Any:
    """Return the source of a part's image. Raises InvalidRequestError for a string that is not a data URL.

    A string may come from a client of a server, and must never be the path of a file.
    """
    source = part["image"] if part["type"] == "image" else part["image_url"]
    if part["type"] != "image" and isinstance(source, Mapping):
        source = source["url"]
    if isinstance(source, str) and source[: len(_DATA)].lower() != _DATA:
        raise InvalidRequestError(
            f'an image must be bytes, a Path or a URL "data:image/…;base64,…", not {shown(source)}'
        )
    return source


def with_image_paths(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return messages in which the strings of {"type": "image", "image": …} are paths of files, but data URLs stay.

    `images` of a message, as Ollama's client has them, become such parts before its text. Only for messages from Python
    code: see `_source`.
    """
    if not isinstance(messages, Sequence) or not any(map(_has_images, messages)):
        return messages
    return [_with_paths(message) if _has_images(message) else message for message in messages]


def _has_images(message: object) -> bool:
    if not isinstance(message, Mapping):
        return False
    return isinstance(message.get("content"), (list, tuple)) or bool(message.get("images"))


def _with_paths(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(message.get("images") or (), (list, tuple)):
        raise InvalidRequestError(f"images of a message must be a list, not {shown(message['images'])}", "images")
    content = message.get("content") or ()
    parts = content if isinstance(content, (list, tuple)) else [{"type": "text", "text": content}]
    if images := message.get("images"):
        parts = [*({"type": "image", "image": _ollama_source(image)} for image in images), *parts]
        message = {name: value for name, value in message.items() if name != "images"}
    return {**message, "content": [_with_path(part) for part in parts]}


def _ollama_source(image: Any) -> Any:
    """Return the source of an image of Ollama's client: a string is a path, or else base64."""
    is_path = isinstance(image, str) and (image.lower().startswith(_URLS) or not _BASE64.fullmatch(image))
    if isinstance(image, str) and not is_path and not os.path.exists(image[:MAX_PATH]):
        return f"{_DATA}image/png;base64,{image}"
    return image


def _with_path(part: Any) -> Any:
    match part:
        case {"type": "image", "image": str(path)} if not path.lower().startswith(_URLS):
            return {**part, "image": Path(path)}
    return part
