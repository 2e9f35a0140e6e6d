"""Tests of keys, focus, pasted files and scripts of other directions on the chat page."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from helpers.browser import Tab
from helpers.scripted_server import ScriptedServer, delta, said, sse
from playwright.sync_api import Page, expect

PHONE = {"viewport": {"width": 320, "height": 568}, "has_touch": True, "is_mobile": True}
FOCUSED = "document.activeElement.id || document.activeElement.localName"


@pytest.fixture
def page(tab: Tab, scripted: ScriptedServer) -> Page:
    return tab.open(scripted.url)


def ask(page: Page, text: str = "go") -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def ended(page: Page, n: int = 1) -> None:
    expect(page.locator(".facts:not(:empty)")).to_have_count(n)
    expect(page.locator("[data-saving]")).to_have_count(0)


def compose(page: Page, key: str) -> None:
    """Press a key while an input method writes a word into the field that has the focus."""
    page.evaluate(
        """key => document.activeElement.dispatchEvent(
             new KeyboardEvent("keydown", { key, isComposing: true, bubbles: true, cancelable: true }))""",
        key,
    )


def test_keys_of_an_input_method_neither_send_nor_cancel(page: Page, scripted: ScriptedServer) -> None:
    gate = threading.Event()
    scripted.answers += [[sse(delta(content="a")), lambda: gate.wait(30), said("b")]]
    page.fill("#question", "にほん")
    compose(page, "Enter")
    assert page.input_value("#question") == "にほん"
    page.press("#question", "Enter")
    expect(page.locator(".content")).to_have_text("a")
    compose(page, "Escape")
    gate.set()
    ended(page)
    expect(page.locator(".content")).to_have_text("ab")
    page.get_by_role("button", name="Edit").click()
    for key in ("Escape", "Enter"):
        compose(page, key)
        expect(page.get_by_label("Edited message")).to_have_value("にほん")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rename").click()
    for key in ("Escape", "Enter"):
        compose(page, key)
        expect(page.get_by_label("Title of the chat")).to_be_focused()
    assert len(scripted.requests) == 1


def test_escape_in_the_search_does_not_stop_an_answer(page: Page, scripted: ScriptedServer) -> None:
    gate = threading.Event()
    scripted.answers.append([sse(delta(content="a")), lambda: gate.wait(30), said("b")])
    ask(page)
    expect(page.locator(".content")).to_have_text("a")
    page.fill("#search", "x")
    page.press("#search", "Escape")
    expect(page.locator("#search")).to_have_value("")
    gate.set()
    ended(page)
    expect(page.locator(".content")).to_have_text("ab")


def test_double_click_on_send_does_not_stop_the_answer(page: Page, scripted: ScriptedServer) -> None:
    gate = threading.Event()
    scripted.answers.append([lambda: gate.wait(30), said("well")])
    page.fill("#question", "go")
    page.dblclick("#send")
    gate.set()
    ended(page)
    expect(page.locator(".content")).to_have_text("well")


def test_focus_stays_on_the_page_when_its_element_goes(page: Page, scripted: ScriptedServer) -> None:
    scripted.answers += [[said("one")], [said("two")], [said("three")], [said("four")]]
    page.fill("#question", "go")
    page.focus("#send")
    page.keyboard.press("Enter")
    ended(page)
    assert page.evaluate(FOCUSED) == "log"
    page.get_by_role("button", name="Regenerate").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".content")).to_have_text("two")
    ended(page)
    assert page.evaluate(FOCUSED) == "log"
    page.get_by_role("button", name="Edit").click()
    page.keyboard.press("Enter")
    expect(page.locator(".content")).to_have_text("three")
    ended(page)
    assert page.evaluate(FOCUSED) == "log"
    page.get_by_role("button", name="New chat").click()
    ask(page, "next")
    ended(page)
    link = page.locator("#chat-list a").last
    link.focus()
    page.keyboard.press("Enter")  # which draws the list again
    expect(page.locator(".content")).to_have_text("three")
    expect(link).to_be_focused()


def test_list_of_a_phone_closes_when_the_focus_leaves_it(new_tab: Callable[..., Tab], scripted: ScriptedServer) -> None:
    page = new_tab(**PHONE).open(scripted.url)
    page.click("#show-chats")
    page.focus("#export-all")
    page.keyboard.press("Tab")
    expect(page.locator("#chats")).to_be_hidden()
    assert page.evaluate(FOCUSED) == "log"


def test_enter_begins_a_line_on_a_phone(new_tab: Callable[..., Tab], scripted: ScriptedServer) -> None:
    page = new_tab(**PHONE).open(scripted.url)
    scripted.answers += [[said("yes")]]
    page.fill("#question", "one")
    page.press("#question", "Enter")
    page.keyboard.type("two")
    page.get_by_role("button", name="Send").click()
    ended(page)
    assert scripted.requests[0]["messages"][0]["content"] == "one\ntwo"
    page.get_by_role("button", name="Edit").click()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("form textarea").first).to_have_value("one\ntwo\n")


# Pastes files as a browser does: [name, text] of each one, and the text beside them.
PASTE = """([files, text]) => {
  const data = new DataTransfer();
  for (const [name, content] of files) data.items.add(new File([content], name));
  if (text) data.setData("text/plain", text);
  const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
  return document.getElementById("question").dispatchEvent(event);
}"""


def test_pasted_files_are_attached_within_the_limit_of_all(page: Page, scripted: ScriptedServer) -> None:
    assert page.evaluate(PASTE, [[["table.png", "x"]], "1\t2"])  # left to the browser, which takes the text
    scripted.answers.append([said("well")])
    page.evaluate(f"""() => {{
      for (const name of ["a.txt", "b.txt"]) ({PASTE})([[[name, "x".repeat(600_000)]], ""]);
      document.getElementById("composer").requestSubmit(); // at once: the message waits for its files
    }}""")
    expect(page.locator(".file summary")).to_have_text(["a.txt · 585.9 KiB"])
    expect(page.get_by_role("alert")).to_contain_text("b.txt has 585.9 KiB")
    ended(page)


ARABIC = "مرحبا بالعالم!"


def test_text_has_the_direction_of_its_writing(page: Page, scripted: ScriptedServer) -> None:
    scripted.answers.append([said(f"{ARABIC}\n\nhello\n\n- {ARABIC}\n\n> {ARABIC}\n\n| {ARABIC} |\n|---|\n| x |\n")])
    ask(page, ARABIC)
    ended(page)
    right = """one => {
      const range = document.createRange();
      range.selectNodeContents(one);
      const [box, text] = [one.getBoundingClientRect(), range.getBoundingClientRect()];
      return box.right - text.right < text.left - box.left;
    }"""
    for place in (".said", ".content > p:first-child", ".content li p", ".content blockquote p"):
        assert page.locator(place).evaluate(right), place
    assert not page.locator(".content > p", has_text="hello").evaluate(right)
    for place in (".content ul", ".content blockquote", ".content table"):
        assert page.locator(place).evaluate("one => getComputedStyle(one).direction") == "rtl", place
    for place in ("#question", "#chat-list a"):
        assert page.locator(place).evaluate("one => getComputedStyle(one).unicodeBidi") == "plaintext", place


def test_title_is_not_cut_within_a_character(page: Page, scripted: ScriptedServer) -> None:
    scripted.answers.append([said("well")])
    ask(page, "a" + "😀" * 100)
    expect(page.locator("#chat-list a")).to_have_text("a" + "😀" * 59 + "…")


def test_text_that_would_hang_the_browser_is_refused(tab: Tab, page: Page, scripted: ScriptedServer) -> None:
    def paste(n: int) -> None:
        page.evaluate("n => navigator.clipboard.writeText('word '.repeat(n / 5))", n)
        page.focus("#question")
        page.keyboard.press("Control+v")

    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    paste(20_000_000)
    expect(page.get_by_role("alert")).to_contain_text("Not inserted: the field would have 20,000,000 characters")
    expect(page.locator("#question")).to_have_value("")
    paste(50_000)
    page.wait_for_function("document.getElementById('question').textLength === 50000")
    expect(page.get_by_role("alert")).to_have_count(0)
    set_value = "field => field.value = 'word '.repeat(30000)"  # as a refused message that is put back
    page.locator("#question").evaluate(set_value)
    page.press("#question", "Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not sent: the message has 150,000 characters, at most 131,072")
    expect(page.locator(".turn")).to_have_count(0)
    page.locator("#question").evaluate("field => field.value = ''")
    scripted.answers.append([said("well")])
    ask(page)
    ended(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").evaluate(set_value)
    page.get_by_label("Edited message").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not sent: the message has 150,000 characters")
    assert len(scripted.requests) == 1
