"""Tests of the look of both pages: on a phone, light and dark, and for the colour-blind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi.responses import JSONResponse
from helpers.browser import Tab
from helpers.colours import contrast, nearest, read
from helpers.scripted_server import DONE, ScriptedServer, delta, said, sse
from helpers.servers import Server
from playwright.sync_api import Page, expect

WIDE = "# " + "Heading" * 12 + "\n```\n" + "x = 1; " * 40 + "\n```\n| " + "cell | " * 20 + "\n" + "|---" * 20 + "|\n\n"
WIDE += "https://example.org/" + "a" * 200 + " `" + "b" * 200 + "`\n> - " + "c" * 200
PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}

# Returns [name, colour, background] for each element that shows text.
TEXTS = """() => [...document.querySelectorAll("body *")].flatMap((one) => {
  const shows = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!(shows || one.matches("input, textarea")) || !one.checkVisibility()) return [];
  const style = getComputedStyle(one);
  const colours = [style.color];
  if (one.placeholder) colours.push(getComputedStyle(one, "::placeholder").color);
  let behind = one;
  const isClear = (each) => ["rgba(0, 0, 0, 0)", "transparent"].includes(getComputedStyle(each).backgroundColor);
  while (behind.parentElement && isClear(behind)) behind = behind.parentElement;
  const name = `${one.localName}.${one.className}#${one.id}`;
  return colours.map((colour) => [name, colour, getComputedStyle(behind).backgroundColor]);
})"""


def fill(page: Page, scripted: ScriptedServer) -> None:
    """Make the page show every kind of content that a chat may have."""
    extension = {"origins": [["content", 1, step] for step in (*range(10), "text")], "rounds": [[12, 10, 3, 1]]}
    text = delta(content="abcdefghijk\n\n" + WIDE, extension=extension)
    call = {"index": 0, "id": "1", "function": {"name": "d" * 60, "arguments": '{"e": "' + "f" * 300 + '"}'}}
    thought = delta(reasoning_content=WIDE)
    scripted.answers.append([sse(thought, text, delta(tool_calls=[call]), delta("tool_calls")) + DONE])
    page.fill("#question", "go " + "g" * 100)
    page.press("#question", "Control+Enter")
    expect(page.locator(".facts:not(:empty)")).to_have_count(1)
    scripted.answers.append([b"data: ]\n\n"])
    page.get_by_role("button", name="without MTP").click()
    expect(page.get_by_role("alert")).not_to_be_empty()
    open_details(page)
    page.fill("#tools", "{")


def open_details(page: Page, selector: str = "details") -> None:
    """Open the parts of the page that can be folded, and fold those beside the chat that a selector leaves out."""
    page.locator("details").evaluate_all("all => all.forEach((one) => (one.open = !one.closest('aside')))")
    page.locator(selector).evaluate_all("all => all.forEach((one) => (one.open = true))")


@pytest.fixture(scope="module")
def full_page(new_shared_tab: Callable[..., Tab], scripted_server: ScriptedServer) -> Page:
    """Return a page that shows every kind of content."""
    page = new_shared_tab().open(scripted_server.url)
    fill(page, scripted_server)
    return page


@pytest.fixture(scope="module")
def full_phone(new_shared_tab: Callable[..., Tab], scripted_server: ScriptedServer) -> Page:
    page = new_shared_tab(**PHONE).open(scripted_server.url)
    fill(page, scripted_server)
    return page


def test_chat_page_fits_a_phone(full_phone: Page) -> None:
    page = full_phone
    open_details(page)
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    wider = """[...document.querySelectorAll("main > *, .turn *:not(.code *, .table *), aside *")].filter(
      (one) => one.checkVisibility() && !one.closest(".unseen, option") && one.getBoundingClientRect().right > 361
    ).map((one) => `${one.localName}.${one.className}`)"""
    assert page.evaluate(wider) == []
    assert page.locator("#question").is_visible()
    assert page.locator("#send").bounding_box()["y"] < 640  # type: ignore[index]


@pytest.mark.parametrize("panel", ["figures", "legend", "settings"])
def test_open_panel_leaves_half_the_height_of_a_phone_for_the_chat(full_phone: Page, panel: str) -> None:
    open_details(full_phone, f"#{panel}")
    assert full_phone.locator("#log").bounding_box()["height"] > 320  # type: ignore[index]


def test_figures_page_fits_a_phone(new_tab: Callable[..., Tab], server: Server) -> None:
    page = new_tab(**PHONE).open(f"{server.url}/figures.html")
    expect(page.get_by_text("Places")).to_be_visible()
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    assert page.evaluate(UNLABELLED) == []


# Returns the ids of the fields without a label, also of hidden ones, which axe-core does not look at.
UNLABELLED = """[...document.querySelectorAll("input, select, textarea")].filter(
  (one) => !one.labels[0]?.textContent.trim()).map((one) => one.id)"""


def test_form_fields_have_labels(full_page: Page) -> None:
    assert full_page.evaluate(UNLABELLED) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(full_page: Page, scheme: str) -> None:
    page = full_page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    texts = page.evaluate(TEXTS)
    names = {name for name, _, _ in texts}
    for part in (
        "span.o0#",
        "span.o9#",
        "span.otext#",
        "p.error#",
        "p.facts#",
        "dt.#",
        "button.main#stop",
        "textarea.#question",
    ):
        assert part in names or part == "button.main#stop", part
    low = [(name, colour, behind) for name, colour, behind in texts if contrast(read(colour), read(behind)) < 4.5]
    assert low == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_step_colours_differ_for_the_colour_blind(full_page: Page, scheme: str) -> None:
    page = full_page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    behind = "one => getComputedStyle(one).backgroundColor"
    legend = [page.locator(f".legend .o{step}").evaluate(behind) for step in (*range(1, 8), "text")]
    assert nearest([read(colour) for colour in (page.locator(":root").evaluate(behind), *legend)]) > 19


def test_steps_beyond_the_legend_have_its_last_colour(full_page: Page) -> None:
    found = [
        full_page.locator(f".content .o{step}").first.evaluate("one => getComputedStyle(one).backgroundColor")
        for step in range(10)
    ]
    assert len(set(found)) == 8
    assert found[7] == found[8] == found[9]


def test_drafts_from_text_have_the_colour_of_the_legend_and_are_counted(full_page: Page) -> None:
    behind = "one => getComputedStyle(one).backgroundColor"
    of_text = full_page.locator(".content .otext").first
    assert of_text.text_content() == "k"
    assert of_text.evaluate(behind) == full_page.locator(".legend .otext").evaluate(behind)
    answer = full_page.locator(".turn:not(.user)").last
    expect(answer.locator(".facts").first).to_contain_text("83.3 % of drafts accepted (1 of 3 from text)")


def test_colours_can_be_disabled(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    fill(page, scripted)
    page.uncheck("#coloured")
    colours = ".content span[data-at]"
    found = page.locator(colours).evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert set(found) == {"rgba(0, 0, 0, 0)"}
    page.reload()
    assert not page.is_checked("#coloured")


def test_theme_follows_the_system_or_the_choice(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    behind = "getComputedStyle(document.documentElement).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(behind)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(behind)
    assert light != dark
    page.select_option("#theme", "dark")
    assert page.evaluate(behind) == dark
    page.reload()
    assert page.evaluate(behind) == dark
    page.select_option("#theme", "auto")
    assert page.evaluate(behind) == light


def test_settings_are_restored_on_the_next_visit(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    page.locator("#settings summary").click()
    page.fill("#temperature", "0.7")
    page.fill("#system", "Be brief.")
    page.select_option("#thinking", "off")
    page.reload()
    scripted.answers.append([said("well")])
    page.fill("#question", "go")
    page.press("#question", "Control+Enter")
    expect(page.locator(".content")).to_have_text("well")
    (request_body,) = scripted.requests
    assert request_body["model"] == "scripted"
    assert request_body["temperature"] == 0.7
    assert request_body["chat_template_kwargs"] == {"enable_thinking": False}
    assert request_body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert request_body["pymtp"] == {"origins": True}
    assert "top_p" not in request_body  # the server chooses the values of empty fields
    assert 0 <= request_body["seed"] < 2**32


def test_empty_settings_use_and_show_the_servers_defaults(tab: Tab, scripted: ScriptedServer) -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "seed": -1}
    scripted.models = JSONResponse({"data": [{"id": "scripted", "meta": {"sampling": defaults}}]})
    page = tab.open(scripted.url)
    for name, shown in (("temperature", "0.6"), ("top_k", "20"), ("top_p", "0.95"), ("min_p", "0"), ("seed", "random")):
        expect(page.locator(f"#{name}")).to_have_attribute("placeholder", shown)
    scripted.answers.append([said("well")])
    page.fill("#question", "go")
    page.press("#question", "Control+Enter")
    expect(page.locator(".facts:not(:empty)")).to_have_count(1)
    assert not scripted.requests[0].keys() & {"temperature", "top_k", "top_p", "min_p", "max_tokens"}


def test_invalid_settings_are_focused_and_not_sent(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    page.locator("#settings summary").click()
    for field, wrong in (("#tools", "[{"), ("#tools", "{}"), ("#temperature", "-1"), ("#top_p", "2")):
        page.fill(field, wrong)
        page.fill("#question", "go")
        page.press("#question", "Control+Enter")
        expect(page.locator(field)).to_be_focused()
        assert page.input_value("#question") == "go"
        page.fill(field, "")
    assert scripted.requests == []


def test_page_offers_the_models_of_a_server_and_sends_the_chosen_one(tab: Tab, scripted: ScriptedServer) -> None:
    cards = [{"id": name, "status": {"value": value}} for name, value in (("one", "loaded"), ("two", "unloaded"))]
    scripted.models = JSONResponse({"data": cards})
    page = tab.open(scripted.url)
    choice = page.get_by_label("Model", exact=True)
    expect(choice).to_have_value("one")
    choice.select_option("two")
    page.reload()
    expect(choice).to_have_value("two")
    scripted.answers.append([said("well")])
    page.fill("#question", "go")
    page.press("#question", "Control+Enter")
    expect(page.locator(".content")).to_have_text("well")
    assert scripted.requests[0]["model"] == "two"
