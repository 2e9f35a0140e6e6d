"""Tests of images in `pymtp chat`: they belong to the next message, and to saved chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from helpers.command import run
from helpers.picture_files import data_url, picture
from makers.make_mmproj import make_mmproj

from pymtp.cli.chat import files
from pymtp.cli.chat.files import load_chat, save_chat
from pymtp.errors import InvalidRequestError

RED = {"type": "image_url", "image_url": {"url": data_url(picture())}}
BLUE = {"type": "image_url", "image_url": {"url": data_url(picture("blue", kind="BMP"), "bmp")}}
OPTIONS = ("-t", "1", "-c", "1024", "-n", "2", "--temperature", "0")


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mmproj("demo", tmp_path_factory.mktemp("projector") / "mmproj.gguf")


def parts(text: str, *images: Any) -> list[Any]:
    return [*images, {"type": "text", "text": text}]


def test_image_belongs_to_the_next_message_and_to_the_saved_chat(projector: Path, tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(picture())
    (tmp_path / "b.bmp").write_bytes(picture("blue", kind="BMP"))
    (tmp_path / "c.png").write_bytes(b"no image")
    (tmp_path / "d.png").write_bytes(picture()[:-30])
    PIL.Image.new("RGB", (1, 300)).save(tmp_path / "narrow.png")
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    lines = [
        f"/image {tmp_path}/c.png",
        f"/image {tmp_path}/none.png",
        "/image",
        f"/image {tmp_path}/d.png",
        f"/image {tmp_path}/narrow.png",
        f'/image "{tmp_path}/a b.png"',
    ]
    lines += ["What is it?", "And now?", f"/save {first}", f"/image {tmp_path}/b.bmp", "/edit Now?", f"/save {second}"]
    lines += ["/clear", f"/load {second}", "/regen"]
    done = run("chat", *OPTIONS, "--mmproj", str(projector), stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stderr.split())
    for words in (
        "c.png: an image is none of PNG",
        "error: a PNG image cannot be decoded",
        "is too narrow",
        "No such file",
        "error: /image FILE",
        "a b.png, 64 x 48 pixels: the next message has it",
        "4 messages from",
    ):
        assert words in shown
    assert [one["content"] for one in json.loads(first.read_text())[::2]] == [parts("What is it?", RED), "And now?"]
    assert [one["content"] for one in json.loads(second.read_text())[::2]] == [
        parts("What is it?", RED),
        parts("Now?", BLUE),
    ]


def test_edited_message_keeps_its_images_and_a_new_chat_has_none(projector: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    lines = [f"/image {tmp_path}/a.png", "One?", "/edit Two?", f"/save {first}"]
    lines += [f"/image {tmp_path}/a.png", "/clear", "Three?", f"/save {second}"]
    done = run("chat", *OPTIONS, "--mmproj", str(projector), stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert [json.loads(file.read_text())[0]["content"] for file in (first, second)] == [parts("Two?", RED), "Three?"]


def test_images_can_be_dropped_from_the_next_message_and_from_an_edited_one(projector: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    files = [tmp_path / f"{i}.json" for i in range(3)]
    show = f"/image {tmp_path}/a.png"
    lines = [show, "/image -", "None?", f"/save {files[0]}", "/clear", show, "One?", "/image -", "/edit None?"]
    lines += [f"/save {files[1]}", "/clear", show, "One?", "/image -", show, "/edit Another?", f"/save {files[2]}"]
    done = run("chat", *OPTIONS, "--mmproj", str(projector), stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    found = [json.loads(file.read_text())[0]["content"] for file in files]
    assert found == ["None?", "None?", parts("Another?", RED)]


def test_refused_message_leaves_its_images_for_the_next_one(projector: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    file = tmp_path / "chat.json"
    lines = [f"/image {tmp_path}/a.png", "word " * 3000, "Short?", f"/save {file}"]
    done = run("chat", *OPTIONS, "--mmproj", str(projector), stdin="\n".join(lines))
    assert "it is not in the chat" in " ".join(done.stderr.split())
    (message, _) = json.loads(file.read_text())
    assert message["content"] == parts("Short?", RED)


def test_model_that_sees_nothing_refuses_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": parts("a", RED)}]))
    done = run("chat", *OPTIONS, stdin=f"/image {tmp_path}/a.png\n/load {file}\n")
    assert " ".join(done.stderr.split()).count("this model was loaded without a projector") == 2


def test_chat_that_would_be_too_large_to_load_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chat.json"
    chat = [{"role": "user", "content": parts("a", RED)}]
    save_chat(file, chat)
    old = file.read_text()
    monkeypatch.setattr(files, "MAX_BYTES", len(old) - 10)
    with pytest.raises(InvalidRequestError, match="the chat is not saved: its file would have more than"):
        save_chat(file, [*chat, *chat])
    assert file.read_text() == old
    monkeypatch.undo()
    assert load_chat(file) == chat


def test_chat_with_a_damaged_image_is_not_loaded(tmp_path: Path) -> None:
    damaged = {"type": "image_url", "image_url": {"url": data_url(picture()[:-30])}}
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": parts("a", damaged)}]))
    with pytest.raises(InvalidRequestError, match="a PNG image cannot be decoded"):
        load_chat(file)
