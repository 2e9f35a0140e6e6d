"""Tests of the images of chats that are not in the bodies of their requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from helpers.picture_files import data_url, picture

from pymtp.errors import InvalidRequestError
from pymtp.images import Image
from pymtp.server.errors import UnavailableError
from pymtp.server.http import body_budget
from pymtp.server.image_parts import image_part
from pymtp.server.images import reader
from pymtp.server.images.reader import ImageReader
from pymtp.server.settings import ServerSettings


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": content}


async def call(work: Callable[[], Any]) -> Any:
    return work()


@pytest.fixture
def images(tmp_path: Path) -> ImageReader:
    (tmp_path / "a.png").write_bytes(picture())
    (tmp_path / "b.png").write_bytes(b"none")
    return ImageReader(ServerSettings(media_path=str(tmp_path)))


def read(images: ImageReader, *messages: Any) -> list[Any]:
    async def run() -> Any:
        async with images.with_images(messages, call) as read:
            return read

    found: list[Any] = asyncio.run(run())
    return found


def test_oldest_images_of_tools_are_not_read_beyond_the_limit(images: ImageReader, tmp_path: Path) -> None:
    for i in range(70):
        (tmp_path / f"{i}.png").write_bytes(picture())
    chat = [result([image_part(f"file://{i}.png")]) for i in range(69)] + [user(image_part("file://69.png"))]
    found = [message["content"][0] for message in read(images, *chat)]
    assert [part["type"] for part in found] == ["text"] * 6 + ["image"] * 64
    assert found[0]["text"] == "[image: left out, as a request may have 64 images]"


def test_client_cannot_name_the_place_of_its_image(images: ImageReader) -> None:
    part = image_part("data:video/mp4;base64,AAAA") | {"where": {"x": 1}}
    for message in (user(part), result([part])):
        with pytest.raises(InvalidRequestError, match=re.escape("messages[0].content[0]: video")):
            read(images, message)


def test_chat_without_images_is_unchanged(images: ImageReader) -> None:
    messages = ({"role": "system", "content": "a"}, user({"type": "text", "text": "b"}), result([{"type": "image"}]))
    assert read(images, *messages) is messages or read(images, *messages) == messages


def test_image_of_a_url_is_read_once_for_all_of_its_places(
    images: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read_file = reader.read_media_file
    monkeypatch.setattr(reader, "read_media_file", lambda url, *more: opened.append(url) or read_file(url, *more))
    text = {"type": "text", "text": "b"}
    first, third = (
        {"type": "image", "image": Image.read(picture()), "where": f"messages[0].content[{i}]"} for i in (0, 2)
    )
    found = read(images, user(image_part("file://a.png"), text, image_part("file://a.png")), result("c"))
    assert found == [user(first, text, third), result("c")]
    assert opened == ["file://a.png"]


def test_images_of_the_body_are_data_urls(images: ImageReader) -> None:
    data = image_part("data:image/png;base64,iVBO")
    places = [f"messages[0].content[{i}]" for i in range(2)]
    urls = "data:image/png;base64,iVBO", "data:image;base64,iVBO"
    assert read(images, user(data, image_part("iVBO"))) == [user(*map(image_part, urls, places))]


def test_image_of_a_result_is_in_openais_form(images: ImageReader) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
    path = {"type": "image", "image": "/etc/passwd"}  # no path of a client is ever opened
    urls = "data:image/png;base64,iVBO", "data:image;base64,/etc/passwd"
    places = [f"messages[0].content[{i}]" for i in range(2)]
    assert read(images, result([block, path])) == [result(list(map(image_part, urls, places)))]
    assert read(images, result(path)) == [result([image_part(urls[1], places[0])])]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://../a.png", "no file within the folder"),
        ("file://b.png", "none of PNG"),
        ("http://a.example/", "--allow-image-urls"),
    ],
)
def test_image_that_cannot_be_read_is_refused_or_a_text_of_a_result(
    images: ImageReader, url: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as failure:
        read(images, user({"type": "text", "text": "a"}, image_part(url)))
    assert failure.value.param == "messages[0].content[1]"
    ((part,),) = (each["content"] for each in read(images, result([image_part(url)])))
    assert part["type"] == "text"
    assert part["text"].startswith("[image: ")
    assert message in part["text"]


@pytest.mark.parametrize("kind", ["video", "audio"])
def test_other_media_are_refused_by_name(images: ImageReader, kind: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"messages\[0\].content\[0\]: {kind} is not supported"):
        read(images, user(image_part(f"data:{kind}/mp4;base64,AAAA")))


def test_number_of_images_is_limited_before_any_is_read(images: ImageReader) -> None:
    with pytest.raises(InvalidRequestError, match="65 images; at most 64"):
        read(images, user(*[image_part(f"file://{i}.png") for i in range(65)]))


def test_parts_of_a_message_are_copied_once_for_all_of_its_images(images: ImageReader) -> None:
    class Parts(list[Any]):
        n_read = 0

        def __iter__(self) -> Any:
            self.n_read += 1
            return super().__iter__()

    few, many = (Parts([image_part("data:image/png;base64,eA")] * n) for n in (1, 60))
    for parts in (few, many):
        read(images, {"role": "user", "content": parts})
    assert many.n_read == few.n_read


def test_bytes_of_images_by_url_are_limited(
    images: ImageReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.png").write_bytes(picture("blue"))
    monkeypatch.setattr(reader, "MAX_BYTES", len(picture()) + 1)
    with pytest.raises(InvalidRequestError, match="bytes together"):
        read(images, user(image_part("file://a.png"), image_part("file://c.png")))


def test_only_images_that_have_to_be_read_take_a_place(images: ImageReader) -> None:
    taken = list[int]()

    async def run(url: str) -> None:
        async with images.with_images([user(image_part(url))], call, lambda: taken.append(1) or nullcontext()):
            pass

    asyncio.run(run(data_url(picture())))
    assert not taken
    asyncio.run(run("file://a.png"))
    assert taken


def test_images_of_all_requests_share_a_limit(images: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "WAIT_SECONDS", 0.0)
    messages = [user(image_part("file://a.png"))]

    async def run() -> None:
        held = [await images._budget.reserve(str(i), reader.MAX_BYTES) for i in range(4)]
        with pytest.raises(UnavailableError, match="take all memory for images"):
            async with images.with_images(messages, call):
                pass
        for one in held:
            assert one is not None
            images._budget.release(one)
        async with images.with_images(messages, call):
            assert images._budget.nbytes == len(picture())
        assert images._budget.nbytes == 0

    asyncio.run(run())
