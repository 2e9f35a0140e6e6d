"""Tests of the chat page with a real server: text, colours, stop button, comparison, keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers.browser import Tab
from helpers.servers import Server, wait_until
from playwright.sync_api import Page, Route, expect

from pymtp import SamplingParams

REQUEST = "Write a Python function to return the n-th Fibonacci number. Call it fibonacci."  # a long answer
STORY = "Tell a story about a dog."  # has many answers
# Returns [position in the text, shown text, class] for each span of the answer in order.
SPANS = """[...document.querySelectorAll(".content span[data-at]")].map(
  (span) => [Number(span.dataset.at), span.textContent, span.className])"""


def fill_settings(page: Page, **fields: object) -> None:
    """Fill fields of the settings."""
    page.locator("#settings").evaluate("settings => settings.open = true")
    for name, value in fields.items():
        page.fill(f"#{name}", str(value))


def ask(page: Page, text: str = REQUEST) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def override_fields(page: Page, **fields: object) -> None:
    """Override fields in all further requests of the page."""

    def change(route: Route) -> None:
        request_body: dict[str, Any] = json.loads(route.request.post_data or "")
        route.continue_(post_data=json.dumps(request_body | fields))

    page.route("**/v1/chat/completions", change)


def ended(page: Page, n: int = 1) -> None:
    expect(page.locator(".facts:not(:empty)")).to_have_count(n)


def chunks_of(body: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("markdown", [True, False])
def test_chat_page_colours_each_character_by_its_origin(tab: Tab, server: Server, markdown: bool) -> None:
    page = tab.open(server.url)
    fill_settings(page, max_tokens=150, seed=7, temperature=0.3)
    page.set_checked("#markdown", markdown)
    with page.expect_response("**/v1/chat/completions") as response:
        ask(page)
    ended(page)
    chunks = chunks_of(response.value.text())
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    reported = [run for chunk in chunks for run in (chunk.get("pymtp") or {}).get("origins", ())]
    steps = [step for field, n, step in reported for _ in range(n) if field == "content"]
    assert len(steps) == len(text)
    assert set(steps) == {0, 1, 2, 3}  # drafts of all three steps were accepted
    drawn_to, markup = 0, ""
    for at, shown, name in page.evaluate(SPANS):
        markup += text[drawn_to:at]
        drawn_to = at + len(shown)
        assert text[at:drawn_to] == shown
        assert {f"o{step}" for step in steps[at:drawn_to]} == {name}
    assert drawn_to <= len(text)
    assert (markup + text[drawn_to:]).strip("`\n#* ") in ("python" if markdown else "", "")


def test_chat_page_shows_the_text_of_the_llm(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    given: dict[str, Any] = {"seed": 14, "temperature": 2.0, "top_p": 0.8, "top_k": 10, "min_p": 0.2}
    fill_settings(page, max_tokens=60, system="Be brief.", **given)
    page.uncheck("#markdown")
    ask(page, STORY)
    ended(page)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}]

    def text(messages: list[dict[str, str]] = messages, **other: Any) -> str:
        return server.llm.chat(messages, SamplingParams(max_tokens=60, **given | other)).content

    assert page.locator(".content").text_content() == text()
    others = ({"seed": 15}, {"temperature": 1.0}, {"top_p": 1.0}, {"top_k": 0}, {"min_p": 0.0})
    assert text() not in [text(messages[1:]), *(text(**other) for other in others)]  # each field changes the text


def test_comparison_shows_the_same_text_without_mtp(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    fill_settings(page, max_tokens=80, temperature=1)  # both requests get the same seed, although the user sets none
    ask(page, STORY)
    ended(page)
    page.get_by_role("button", name="Run the same again without MTP").click()
    ended(page, 2)
    expect(page.locator(".verdict")).to_contain_text("The texts are equal.")
    one, two = page.locator(".content").all()
    assert one.text_content() == two.text_content()
    assert one.locator(".o1").count() > 0
    assert two.locator("[data-at]:not(.o0)").count() == 0
    assert page.locator(".facts").all_text_contents()[1].count("no drafts") == 1
    assert [title.text_content() for title in page.locator(".column > h3").all()] == ["With MTP", "Without MTP"]


def test_mtp_switch_disables_drafts(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    fill_settings(page, max_tokens=20, temperature=0)
    page.uncheck("#mtp")
    ask(page)
    ended(page)
    expect(page.locator(".facts")).to_contain_text("no drafts · ended at its limit")
    expect(page.get_by_role("button", name="Run the same again with MTP")).to_be_visible()


def test_stop_button_frees_the_slot(tab: Tab, new_server: Callable[..., Server]) -> None:
    server = new_server(llm={"n_seq_max": 1, "n_ctx": 32768}).ready()
    page = tab.open(server.url)
    override_fields(page, ignore_eos=True)  # so that only the stop button ends the generation
    ask(page)
    expect(page.locator(".content span").first).to_be_visible()
    page.keyboard.press("Escape")
    wait_until(lambda: server.llm.figures().cancelled == 1 and server.free())
    expect(page.locator(".facts")).to_contain_text("stopped")
    fill_settings(page, max_tokens=5)
    ask(page)
    ended(page, 2)


def test_chat_page_works_by_keyboard(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    expect(page.locator("#question")).to_be_focused()
    fill_settings(page, max_tokens=30)
    page.focus("#question")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    ended(page)
    assert page.locator(".said").text_content() == "one\ntwo"
    expect(page.locator("#question")).to_be_focused()
    page.keyboard.press("Shift+Tab")  # moves the focus backwards through the page, to the first link
    reached = []
    for _ in range(60):
        name = page.evaluate("""() => {
          const one = document.activeElement;
          const box = one.getBoundingClientRect();
          const style = getComputedStyle(one);
          const name = (one.labels?.[0] ?? one).textContent.trim() || one.getAttribute("aria-label");
          return [one.localName, name, box.width > 0, style.outlineStyle !== "none"];
        }""")
        if name[0] == "body":
            break
        reached.append(name)
        page.keyboard.press("Shift+Tab")
    assert all(visible and outlined and name for _, name, visible, outlined in reached), reached
    names = [name for _, name, _, _ in reached]
    for name in (
        "Regenerate",
        "Run the same again without MTP",
        "Edit",
        "Copy",
        "Figures",
        "Seed",
        "API key",
        "New chat",
        "Search",
        "Rename",
        "Delete",
    ):
        assert any(name in each for each in names), name
    page.get_by_role("button", name="Regenerate").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(2)
    ended(page)


def test_copy_button_copies_the_markdown_source(new_tab: Callable[..., Tab], server: Server) -> None:
    tab = new_tab(permissions=["clipboard-read", "clipboard-write"])
    page = tab.open(server.url)
    fill_settings(page, max_tokens=30)
    with page.expect_response("**/v1/chat/completions") as response:
        ask(page)
    ended(page)
    page.locator(".turn:not(.user)").get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    chunks = chunks_of(response.value.text())
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert page.evaluate("navigator.clipboard.readText()") == text


def test_shown_draft_statistics_equal_the_statistics_of_the_server(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    fill_settings(page, max_tokens=100, seed=7, temperature=0.3)
    with page.expect_response("**/v1/chat/completions") as response:
        ask(page)
    ended(page)
    *_, last = chunks_of(response.value.text())
    reported = last["pymtp"]
    numbers = dict(zip(*(page.locator(f"#numbers {tag}").all_text_contents() for tag in ("dt", "dd")), strict=True))
    assert numbers["Tokens"] == str(last["usage"]["completion_tokens"])
    share = 100 * reported["accepted"] / reported["drafted"]
    assert float(numbers["Drafts accepted"].split()[0]) == pytest.approx(share, abs=0.06)
    bars = page.locator("#positions .bar span:last-child").all_text_contents()
    assert len(bars) == len(reported["accepted_per_position"]) == 3
    assert float(bars[0].split()[0]) == pytest.approx(
        100 * reported["accepted_per_position"][0] / sum(depth > 0 for depth in reported["depths"]), abs=0.06
    )
    drawn = page.locator("#depths path").first.get_attribute("d")
    assert drawn is not None
    assert drawn.count("H") == min(100, int(numbers["Rounds"]))


def test_screen_readers_hear_the_begin_and_the_end_of_an_answer(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    fill_settings(page, max_tokens=100)
    page.evaluate("""() => {
      window.heard = [];
      for (const region of document.querySelectorAll("[role=status], [aria-live]"))
        new MutationObserver(() => heard.push(region.textContent)).observe(region, { childList: true, subtree: true });
    }""")
    ask(page)
    ended(page)
    said = page.evaluate("heard")
    assert said[0] == "The answer begins."
    assert said[-1].startswith("The answer has ended: ")
    assert len(said) == 2


def test_required_tool_call_is_shown_and_its_result_continues_the_chat(tab: Tab, server: Server) -> None:
    page = tab.open(server.url)
    parameters = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    fill_settings(page, max_tokens=100, seed=1, tools=json.dumps(tools))
    page.select_option("#tool_choice", "required")
    ask(page)
    ended(page)
    call = page.get_by_label("Tool call")
    assert call.locator("strong").text_content() == "weather"
    given = call.locator("pre").text_content()
    assert given is not None
    assert isinstance(json.loads(given)["days"], int)
    page.select_option("#tool_choice", "none")
    call.get_by_label("Result").fill("rain")
    page.get_by_role("button", name="Send results").click()
    ended(page, 2)
    assert page.locator(".content").last.text_content() != ""
