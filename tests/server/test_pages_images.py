"""Tests of images on the chat page: pasted, dropped and chosen ones are sent, shown and kept."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import PIL.Image
import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.responses import JSONResponse
from helpers.browser import Tab
from helpers.picture_files import data_url, picture
from helpers.scripted_server import ScriptedServer, said
from helpers.servers import Server
from playwright.sync_api import Page, expect

PNG = picture()
IMAGE = {"type": "image_url", "image_url": {"url": data_url(PNG)}}


@pytest.fixture
def page(tab: Tab, scripted: ScriptedServer) -> Page:
    return tab.open(scripted.url)


def ask(page: Page, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Control+Enter")


def ended(page: Page, n: int = 1) -> None:
    """Wait until n answers have ended and are stored."""
    expect(page.locator(".facts:not(:empty)")).to_have_count(n)
    expect(page.locator("[data-saving]")).to_have_count(0)


def choose(page: Page, *files: tuple[str, str, bytes]) -> None:
    """Choose files: the name, the type and the bytes of each."""
    chosen: Any = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    page.set_input_files("#attach-file", chosen)


def contents(scripted: ScriptedServer) -> list[Any]:
    """Return the contents of the messages of the last request."""
    return [message["content"] for message in scripted.requests[-1]["messages"]]


# Pastes or drops a file as a browser does.
GIVE = """([kind, name, data]) => {
  const transfer = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
  const options = { bubbles: true, cancelable: true };
  const event = kind === "paste" ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
                                 : new DragEvent("drop", { ...options, dataTransfer: transfer });
  document.getElementById("question").dispatchEvent(event);
}"""


@pytest.mark.parametrize("kind", ["paste", "drop", "choose"])
def test_image_is_sent_shown_and_kept(page: Page, scripted: ScriptedServer, kind: str) -> None:
    if kind == "choose":
        choose(page, ("a.png", "image/png", PNG))
    else:
        page.evaluate(GIVE, [kind, "a.png", base64.b64encode(PNG).decode()])
    expect(page.locator("#files li")).to_contain_text(f"a.png · 64 x 48 · {len(PNG)} bytes")
    expect(page.locator("#files img")).to_have_count(1)
    scripted.answers += [[said("one")], [said("two")], [said("three")]]
    ask(page, "what is it?")
    ended(page)
    question = [IMAGE, {"type": "text", "text": "what is it?"}]
    assert contents(scripted) == [question]
    expect(page.locator("#files li")).to_have_count(0)
    shown = page.locator(".turn.user .picture img")
    assert shown.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [64, 48]
    page.reload()
    ended(page)
    expect(page.locator(".turn.user .picture img")).to_have_attribute("alt", "a.png, 64 x 48 pixels")
    ask(page, "and now?")
    ended(page, 2)
    assert contents(scripted) == [question, "one", "and now?"]
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edited message").fill("")
    page.get_by_role("button", name="Send").first.click()
    expect(page.locator(".content")).to_have_text("three")
    assert contents(scripted) == [[IMAGE]]


def test_model_answers_questions_about_a_pasted_image(tab: Tab, seeing_server: Server) -> None:
    tab.context.add_init_script("""localStorage.setItem("pymtp.settings", '{"max_tokens": "8"}')""")
    page = tab.open(seeing_server.url)
    page.evaluate(GIVE, ["paste", "a.png", base64.b64encode(PNG).decode()])
    for n in (1, 2):
        ask(page, "What is it?")
        ended(page, n)
    assert all(page.locator(".content").all_text_contents())
    expect(page.locator(".picture")).to_have_count(1)


def test_thumbnail_of_an_image_is_accessible_and_grows(page: Page, scripted: ScriptedServer) -> None:
    choose(page, ("a.png", "image/png", picture(size=(300, 600))))
    scripted.answers.append([said("one")])
    ask(page, "go")
    ended(page)
    assert Axe().run(page).response["violations"] == []
    thumbnail = page.locator(".picture")
    small = thumbnail.bounding_box()
    thumbnail.press("Enter")
    expect(thumbnail).to_have_attribute("aria-pressed", "true")
    large = thumbnail.bounding_box()
    assert small is not None
    assert large is not None
    assert (small["height"] < 250, large["height"] >= 600) == (True, True)


def test_image_that_is_large_or_of_another_format_becomes_jpeg(page: Page, scripted: ScriptedServer) -> None:
    bmp = picture("blue", (2100, 700), "BMP")  # more than 4 MiB
    choose(page, ("a.bmp", "image/bmp", bmp), ("b.avif", "image/avif", picture(kind="AVIF")))
    expect(page.locator("#files li")).to_have_count(2)
    scripted.answers.append([said("one")])
    ask(page, "go")
    ended(page)
    urls = [part["image_url"]["url"] for part in contents(scripted)[0][:2]]
    assert all(url.startswith("data:image/jpeg;base64,") for url in urls)
    large, other = (PIL.Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls)
    assert (large.size, other.size) == ((2048, 683), (64, 48))
    red, _, blue = large.convert("RGB").getpixel((9, 9))  # type: ignore[misc]
    assert (red < 9, blue > 240) == (True, True)


def test_images_are_attached_within_a_limit_that_is_said(page: Page) -> None:
    bmp = picture(size=(1000, 1000), kind="BMP")  # 3 MB
    choose(page, *[(f"{i}.bmp", "image/bmp", bmp) for i in range(3)], ("x.png", "image/png", b"\x89PNG"))
    expect(page.locator("#files li")).to_have_count(2)
    expect(page.get_by_role("alert")).to_contain_text("2.bmp has 2.9 MiB: the images of one message have at most 8.0")
    expect(page.get_by_role("alert")).to_contain_text("x.png is an image that this browser cannot read.")


def test_refused_image_goes_back_into_the_field(tab: Tab, page: Page, scripted: ScriptedServer) -> None:
    choose(page, ("a.png", "image/png", PNG))
    scripted.answers.append(JSONResponse({"error": {"message": "this model cannot see"}}, 400))
    ask(page, "go")
    expect(page.get_by_role("alert")).to_contain_text("Not sent: this model cannot see")
    expect(page.locator("#files li")).to_have_count(1)
    expect(page.locator("#question")).to_have_value("go")
    tab.forgive("400 (Bad Request)")


def test_exported_chat_has_its_images_and_an_imported_one_loads_none(page: Page, scripted: ScriptedServer) -> None:
    choose(page, ("a.png", "image/png", PNG))
    scripted.answers.append([said("one")])
    ask(page, "go")
    ended(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = json.loads(download.value.path().read_text())
    (kept,) = file["chats"][0]["turns"][0]["files"]
    assert kept == {"name": "a.png", "image": data_url(PNG), "width": 64, "height": 48}

    def import_file() -> None:
        data: Any = {"name": "x.json", "mimeType": "", "buffer": json.dumps(file).encode()}
        page.set_input_files("#import-file", [data])

    import_file()
    expect(page.locator("#notices")).to_contain_text("Imported: 1 chat.")
    for url in ("http://a.example/a.png", "data:image/svg+xml;base64,PHN2Zz4=", "data:image/png;base64,<"):
        kept["image"] = url
        import_file()
        expect(page.get_by_role("alert")).to_contain_text("chats[0].turns[0].files[0].image is no data URL of an image")


# Returns for the first 1, 2, … of images of these sizes how many of them are left out of a request.
LEFT_OUT = """async (sizes) => {
  const { leaveOutImages } = await import("./static/images.js");
  const image = (size) => ({ type: "image_url", image_url: { url: "x".repeat(size) } });
  const messages = sizes.map((size) => ({ role: "user", content: [image(size), { type: "text", text: "a" }] }));
  return sizes.map((_, n) => leaveOutImages(messages.slice(0, n + 1))
    .filter(({ content }) => content[0].type === "text").length);
}"""


def test_oldest_images_of_a_long_chat_are_left_out_many_together(page: Page, scripted: ScriptedServer) -> None:
    left_out = page.evaluate(LEFT_OUT, [1] * 100)
    assert left_out == [0] * 64 + [16] * 16 + [32] * 16 + [48] * 4
    large = page.evaluate(LEFT_OUT, [6 * 2**20] * 8)
    assert large == [0, 0, 0, 0, 2, 3, 4, 4]
