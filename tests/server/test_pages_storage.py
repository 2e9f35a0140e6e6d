"""Tests of the chat page where its storage fails, and where several chats or tabs change at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fastapi.responses import JSONResponse
from helpers.browser import Tab
from helpers.scripted_server import ScriptedServer, delta, said, sse
from playwright.sync_api import Page, Route, expect

# Makes the storage fail while window.full is set.
FULL = """() => {
  for (const [kind, name] of [[IDBObjectStore, "put"], [Storage, "setItem"]]) {
    const original = kind.prototype[name];
    kind.prototype[name] = function (...values) {
      if (window.full) throw new DOMException("full", "QuotaExceededError");
      return original.apply(this, values);
    };
  }
  window.full = true;
}"""
# Counts the messages of the page that screen readers read at once.
ALERTS = """() => {
  window.alerts = 0;
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes) window.alerts += [...addedNodes].filter((one) => one.role === "alert").length;
  }).observe(document.getElementById("notices"), { childList: true });
}"""


def ask(page: Page, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def ended(page: Page, n: int = 1) -> None:
    """Wait until n answers have ended and are stored."""
    expect(page.locator(".facts:not(:empty)")).to_have_count(n)
    expect(page.locator("[data-saving]")).to_have_count(0)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).last.click()


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


def test_turn_that_was_not_stored_is_stored_with_the_next(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [[said("one")], [said("two")]]
    ask(page, "first")
    ended(page)
    page.evaluate(FULL)
    gate = threading.Event()
    scripted.answers[:] = [[sse(delta(content="t")), lambda: gate.wait(30), said("wo")]]
    ask(page, "second")
    expect(page.get_by_role("alert")).to_contain_text("This chat is not stored: the browser has no more room")
    page.evaluate("window.full = false")
    gate.set()
    ended(page, 2)
    page.reload()
    expect(page.locator(".said")).to_have_text(["first", "second"])
    expect(page.locator(".content")).to_have_text(["one", "two"])


def test_full_storage_disturbs_neither_branches_nor_the_theme(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [[said("one")], [said("two")]]
    ask(page, "go")
    ended(page)
    press(page, "Regenerate")
    expect(page.locator(".content")).to_have_text("two")
    ended(page)
    page.evaluate(FULL)
    press(page, "Previous answer")
    expect(page.locator(".content")).to_have_text("one")
    expect(page.get_by_role("alert")).to_contain_text("no more room")
    page.select_option("#theme", "dark")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_chat_deleted_elsewhere_during_an_answer_is_reported_once(
    tab: Tab, scripted: ScriptedServer, gate: threading.Event
) -> None:
    one = tab.open(scripted.url)
    scripted.answers.append([*[sse(delta(content="a"))] * 2, lambda: gate.wait(30), sse(delta(content="b")), said("c")])
    one.clock.install()
    ask(one, "go")
    expect(one.locator(".content")).to_have_text("aa")
    expect(one.locator("#chat-list a")).to_have_count(1)
    two = tab.context.new_page()
    two.goto(one.url)
    press(two, "Delete")
    expect(one.get_by_role("alert")).to_contain_text("Deleted in another tab, and not stored any more: go")
    one.evaluate(ALERTS)
    one.clock.fast_forward(5000)  # the page stores an answer that runs each second
    gate.set()
    ended(one)
    assert one.evaluate("window.alerts") <= 1  # the end of the answer
    press(one, "Keep it")
    expect(two.locator("#chat-list a")).to_have_text(["go"])
    one.reload()
    expect(one.locator(".content")).to_have_text("aabc")


def test_settings_of_two_tabs_are_all_kept(tab: Tab, scripted: ScriptedServer) -> None:
    one = tab.open(scripted.url)
    two = tab.context.new_page()
    two.goto(one.url)
    for page, name, value in ((one, "temperature", "0.3"), (two, "top_k", "7"), (one, "seed", "5")):
        page.locator("#settings").evaluate("settings => settings.open = true")
        page.fill(f"#{name}", value)
        page.press(f"#{name}", "Tab")
    two.uncheck("#mtp")
    for page in (one, two):
        page.reload()
        values = [page.input_value(f"#{name}") for name in ("temperature", "top_k", "seed")]
        assert [*values, page.is_checked("#mtp")] == ["0.3", "7", "5", False]


def test_undo_in_another_tab_removes_the_message_about_it(tab: Tab, scripted: ScriptedServer) -> None:
    one = tab.open(scripted.url)
    scripted.answers.append([said("first")])
    ask(one, "go")
    ended(one)
    two = tab.context.new_page()
    two.goto(one.url)
    press(two, "Delete")
    expect(one.get_by_role("alert")).to_contain_text("Deleted in another tab")
    press(two, "Undo")
    expect(one.get_by_role("alert")).to_have_count(0)


def test_message_refused_while_another_chat_is_shown_is_not_mixed_into_it(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers.append([said("one")])
    ask(page, "first")
    ended(page)
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    ask(page, "too long")
    expect(page.locator(".said")).to_have_count(2)
    press(page, "New chat")
    page.fill("#question", "of another chat")
    page.wait_for_function("() => document.querySelectorAll('#chat-list a').length === 1")
    numbers = page.locator("#numbers").text_content()
    while not held:
        page.wait_for_timeout(5)
    held[0].fulfill(status=400, json={"error": {"message": "the prompt is too long"}})
    expect(page.get_by_role("alert")).to_contain_text("Not sent in another chat: the prompt is too long")
    assert page.input_value("#question") == "of another chat"
    assert page.locator("#numbers").text_content() == numbers
    page.fill("#question", "")
    press(page, "Put it into the field")
    expect(page.locator("#question")).to_have_value("too long")
    page.locator("#chat-list a").click()
    expect(page.locator(".said")).to_have_text(["first"])
    tab.forgive("400")


def test_refused_message_leaves_the_branch_that_was_shown(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [[said("one")], [said("two")], JSONResponse({"error": {"message": "too long"}}, 400)]
    ask(page, "go")
    ended(page)
    press(page, "Regenerate")
    expect(page.locator(".content")).to_have_text("two")
    ended(page)
    press(page, "Previous answer")
    ask(page, "long")
    expect(page.get_by_role("alert")).to_contain_text("too long")
    ended(page)
    page.reload()
    expect(page.locator(".content")).to_have_text(["one"])
    tab.forgive("400")


def test_markdown_switched_during_an_answer_holds_from_its_end(
    tab: Tab, scripted: ScriptedServer, gate: threading.Event
) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [[said("*x*")], [sse(delta(content="*a")), lambda: gate.wait(30), said("b*")]]
    ask(page, "first")
    ended(page)
    ask(page, "second")
    expect(page.locator(".content").last).to_have_text("*a")
    page.locator("#settings summary").click()
    page.uncheck("#markdown")
    gate.set()
    expect(page.locator(".content")).to_have_text(["*x*", "*ab*"])
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edited message").fill("other")
    page.check("#markdown")
    expect(page.locator(".content em")).to_have_text(["x", "ab"])
    expect(page.get_by_label("Edited message")).to_have_value("other")


def test_comparison_counts_the_equal_characters_of_the_text(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    thought = sse(delta(reasoning_content="hm"))
    scripted.answers += [
        [thought, said("a😀bc")],
        [thought, said("a😀bd")],
        [sse(delta(reasoning_content="hmm")), said("x")],
    ]
    ask(page, "go")
    for says in ("The texts differ from character 4 on.", "The thoughts differ from character 3 on."):
        press(page, "Run the same again without MTP")
        expect(page.locator(".verdict")).to_have_text(says)
    assert [request["messages"] for request in scripted.requests] == [[{"role": "user", "content": "go"}]] * 3


def test_unknown_model_is_asked_for_again(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    expect(page.locator("#model")).to_have_text("scripted")
    scripted.models = JSONResponse({"data": [{"id": "other"}]})
    scripted.answers += [JSONResponse({"error": {"message": "there is no model 'scripted'"}}, 404), [said("well")]]
    ask(page, "go")
    expect(page.get_by_role("alert")).to_contain_text("there is no model")
    expect(page.locator("#model")).to_have_text("other")
    press(page, "Try again")
    ended(page)
    assert [request["model"] for request in scripted.requests] == ["scripted", "other"]
    tab.forgive("404")


def test_defaults_of_one_model_are_not_shown_for_another(new_tab: Callable[..., Tab], scripted: ScriptedServer) -> None:
    known = {"id": "one", "status": {"value": "loaded"}, "meta": {"sampling": {"temperature": 0.6}}}
    scripted.models = JSONResponse({"data": [known, {"id": "two", "status": {"value": "unloaded"}}]})
    page = new_tab().open(scripted.url)
    field = page.locator("#temperature")
    expect(field).to_have_attribute("placeholder", "0.6")
    page.get_by_label("Model", exact=True).select_option("two")
    expect(field).to_have_attribute("placeholder", "1")


def test_key_that_no_header_can_have_is_reported(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    page.locator("#settings summary").click()
    page.fill("#key", "ключ")
    ask(page, "go")
    expect(page.get_by_role("alert")).to_contain_text("The API key has characters that no key has")
    expect(page.locator("#key")).to_be_focused()
