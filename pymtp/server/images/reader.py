"""Reading of a chat's images that are not in the body of its request: of other servers, and of files.

Images in the body are data URLs, which `template_messages` reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from pymtp.chat.images import WHERE, Place, place_of
from pymtp.engine.request import Caller, current_caller
from pymtp.errors import InvalidRequestError
from pymtp.images import Image, ImageLimits
from pymtp.server.errors import UnavailableError
from pymtp.server.http.body_budget import BodyBudget
from pymtp.server.image_parts import content_with_images, image_part, image_url, with_scheme
from pymtp.server.images.fetch import ImageFetcher
from pymtp.server.images.files import FILE, read_media_file
from pymtp.server.settings import ServerSettings

Prepare = Callable[[Callable[[], Any]], Awaitable[Any]]
Admit = Callable[[], AbstractContextManager[object]]
LIMITS = ImageLimits()
# The most bytes of a request's images that are not in its body, and of those of all requests: as of bodies
MAX_BYTES = 32 * 2**20
MAX_ALL_BYTES = 4 * MAX_BYTES
AT_ONCE = 4  # images of one request that are fetched at once
_LEFT_OUT = InvalidRequestError(f"left out, as a request may have {LIMITS.max_images} images")
MEDIA = ("video", "audio")  # that data URLs may have in place of an image
_TOOL_ROLES = ("tool", "function")


class _Place(NamedTuple):
    """Where a chat has an image. name: for messages of errors. in_result: whether it is in the result of a tool."""

    message: int
    part: int
    name: str
    url: str
    in_result: bool


class ImageReader:
    """Reads images from the hosts and the folder that the settings allow, with one limit on the memory for all."""

    def __init__(self, settings: ServerSettings) -> None:
        self._fetcher = ImageFetcher(settings.allow_image_urls)
        self._folder = None if settings.media_path is None else Path(settings.media_path)
        self._budget = BodyBudget(MAX_ALL_BYTES, MAX_BYTES)

    @asynccontextmanager
    async def with_images(
        self, messages: Sequence[Any], prepare: Prepare, admit: Admit = nullcontext
    ) -> AsyncIterator[Sequence[Any]]:
        """Return messages whose images are data URLs or `Image`s. Their memory is counted until the context is left.

        The result of a tool is part of the past, which no user can correct. So an image in it that cannot be read
        becomes a text that says why.

        prepare: runs a slow call on another thread, for the current caller.
        admit: returns the context in which images are read and kept; not called if there are none to read.

        Raises InvalidRequestError for an image of a user that cannot be read, and for too many images to be read;
        UnavailableError if the images of other requests take all memory for images; and the errors of `admit`.
        """
        given, messages = messages, [_in_parts(message) for message in messages]
        places = [place for i, message in enumerate(messages) for place in _places(i, message)]
        if not places:
            yield given
            return
        LIMITS.check_count(sum(not place.in_result for place in places))
        urls = [*dict.fromkeys(place.url for place in places if _is_elsewhere(place.url))]
        of_users = {place.url for place in places if not place.in_result}
        n_beyond = max(0, len(urls) - LIMITS.max_images)
        left_out = [url for url in urls if url not in of_users][:n_beyond]  # the oldest of tools
        urls = [url for url in urls if url not in left_out]
        with admit() if urls else nullcontext():
            async with self._reserved(len(urls)) as resize:
                found = await self._read_all(urls, prepare)
                found |= dict.fromkeys(left_out, _LEFT_OUT)
                resize(sum(one.nbytes for one in found.values() if isinstance(one, Image)))
                yield _replaced(messages, places, found)

    @asynccontextmanager
    async def _reserved(self, n_images: int) -> AsyncIterator[Callable[[int], None]]:
        """Reserve memory for images until the context is left. Return the function that corrects its size."""
        if not n_images:
            yield lambda _: None
            return
        size = min(n_images * LIMITS.max_bytes, MAX_BYTES)
        reserved = await self._budget.reserve((current_caller.get() or Caller()).client, size)
        if reserved is None:
            seconds = self._budget.retry_after(size)
            raise UnavailableError(
                f"the images of other requests take all memory for images: try again in {seconds} seconds", seconds
            )
        try:
            yield lambda n: self._budget.resize(reserved, n)
        finally:
            self._budget.release(reserved)

    async def _read_all(self, urls: Sequence[str], prepare: Prepare) -> dict[str, Image | InvalidRequestError]:
        """Return the image at each URL, or the error."""
        slots, left = asyncio.Semaphore(AT_ONCE), MAX_BYTES
        too_many = InvalidRequestError(f"the images of a request by URL have more than {MAX_BYTES} bytes together")

        async def read(url: str) -> Image | InvalidRequestError:
            nonlocal left
            async with slots:
                try:
                    if left < 0:  # nothing is read any more
                        raise too_many
                    if _has_scheme(url, FILE):
                        data = await prepare(lambda: read_media_file(url, self._folder, LIMITS.max_bytes))
                    else:
                        data = await self._fetcher.fetch(url, LIMITS.max_bytes)
                    left -= len(data)
                    if left < 0:
                        raise too_many
                    image: Image = await prepare(lambda: Image.read(data, LIMITS))
                    return image
                except InvalidRequestError as error:
                    return error

        return dict(zip(urls, await asyncio.gather(*map(read, urls)), strict=True))


def _in_parts(message: Any) -> Any:
    """Return a message in which each image of a tool's result is a part in OpenAI's form, whatever form it had."""
    if not isinstance(message, Mapping) or message.get("role") not in _TOOL_ROLES:
        return message
    content = content_with_images(message.get("content"), "")
    return {**message, "content": content} if isinstance(content, list) else message


def _places(i: int, message: Any) -> list[_Place]:
    role = message.get("role") if isinstance(message, Mapping) else None
    content = message.get("content") if role == "user" or role in _TOOL_ROLES else None
    if not isinstance(content, list):
        return []
    return [
        _Place(i, j, place_of(part, f"messages[{i}].content[{j}]"), url, role != "user")
        for j, part in enumerate(content)
        if (url := image_url(part)) is not None
    ]


def _is_elsewhere(url: str) -> bool:
    return _has_scheme(url, "http:", "https:", FILE)


def _has_scheme(url: str, *schemes: str) -> bool:
    return url[: max(map(len, schemes))].lower().startswith(schemes)


def _replaced(
    messages: Sequence[Any], places: Sequence[_Place], found: Mapping[str, Image | InvalidRequestError]
) -> list[Any]:
    """Return the messages with the images that were read. Raises the error of an image of a user."""
    replaced = list(messages)
    contents: dict[int, list[Any]] = {}  # the contents of the messages with images
    for place in places:
        image = found.get(place.url)
        if isinstance(image, Image):
            part: dict[str, Any] = {"type": "image", "image": image, WHERE: Place(place.name)}
        elif image is None:
            _refuse_other_media(place)
            part = image_part(with_scheme(place.url), place.name)
        elif place.in_result:
            part = {"type": "text", "text": f"[image: {image}]"}
        else:
            raise InvalidRequestError(f"{place.name}: {image}", place.name) from image
        if place.message not in contents:
            contents[place.message] = list(messages[place.message]["content"])
            replaced[place.message] = {**messages[place.message], "content": contents[place.message]}
        contents[place.message][place.part] = part
    return replaced


def _refuse_other_media(place: _Place) -> None:
    """Raise InvalidRequestError for the data URL of a video or a sound."""
    for kind in MEDIA:
        if _has_scheme(place.url, f"data:{kind}/"):
            raise InvalidRequestError(f"{place.name}: {kind} is not supported: a message has text and images")
