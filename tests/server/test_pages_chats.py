"""Tests of the chats that the page keeps in the browser: they survive, and nothing that happens loses one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.responses import JSONResponse
from helpers.browser import Tab
from helpers.scripted_server import DONE, ScriptedServer, delta, said, sse
from playwright.sync_api import Page, Route, TimeoutError, expect

PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
TOO_LONG = "the prompt has 9000 tokens, and the context has 4096"
REFUSAL = JSONResponse({"error": {"message": TOO_LONG}}, 400)
NOTHING_STORED = """
for (const name of ["localStorage", "sessionStorage", "indexedDB"])
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
"""
RICH = "**Bold** $a^2$\n\n- [x] done\n- [ ] to do\n\n```python\nx = 1\n```\n\n$$\n\\frac{1}{2}\n$$\n"


def ask(page: Page, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Control+Enter")


def ended(page: Page, n: int = 1) -> None:
    """Wait until n answers have ended and are stored."""
    expect(page.locator(".facts:not(:empty)")).to_have_count(n)
    expect(page.locator("[data-saving]")).to_have_count(0)


def press(page: Page, name: str, *, keyboard: bool = False) -> None:
    """Press a button, with the mouse, or with the keyboard alone."""
    button = page.get_by_role("button", name=name, exact=True).last
    if keyboard:
        button.focus()
        page.keyboard.press("Enter")
    else:
        button.click()


def titles(page: Page) -> list[str]:
    return page.locator("#chat-list a").all_text_contents()


def violations(page: Page) -> list[Any]:
    """Return what axe-core finds: the rule, and the elements that break it."""
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["target"] for node in each["nodes"]]) for each in found]


def asked(scripted: ScriptedServer) -> list[str]:
    """Return the contents of the messages of the last request."""
    return [message["content"] for message in scripted.requests[-1]["messages"]]


VARIANTS = [("desktop", "light", False), ("phone", "dark", True)]


@pytest.mark.parametrize(("screen", "scheme", "keyboard"), VARIANTS)
def test_chats_are_made_renamed_searched_deleted_and_restored(
    new_tab: Callable[..., Tab], scripted: ScriptedServer, screen: str, scheme: str, keyboard: bool
) -> None:
    page = new_tab(**(PHONE if screen == "phone" else {}), color_scheme=scheme).open(scripted.url)

    def show_list() -> None:
        if screen == "phone":
            press(page, "Chats", keyboard=keyboard)

    assert violations(page) == []
    scripted.answers += [[said("It is red.")], [said(RICH)], [said("Again.")]]
    ask(page, "fox")
    ended(page)
    show_list()
    press(page, "New chat", keyboard=keyboard)
    expect(page.locator("#question")).to_be_focused()
    ask(page, "wolf")
    ended(page)
    press(page, "Regenerate", keyboard=keyboard)
    expect(page.locator(".position:visible")).to_have_text("2/2")
    expect(page.locator(".content")).to_have_text("Again.")
    ended(page)
    press(page, "Previous answer", keyboard=keyboard)
    expect(page.locator(".position:visible")).to_have_text("1/2")
    expect(page.get_by_role("button", name="Next answer")).to_be_focused()
    expect(page.locator(".content .katex")).to_have_count(2)
    show_list()
    expect(page.locator("#chat-list a")).to_have_text(["wolf", "fox"])
    assert violations(page) == []
    press(page, "Rename", keyboard=keyboard)
    page.keyboard.type("Dogs")
    page.keyboard.press("Escape" if keyboard else "Enter")
    expect(page.locator("#chat-list a")).to_have_text(["wolf" if keyboard else "Dogs", "fox"])
    page.fill("#search", "RED")
    expect(page.locator("#chat-list a")).to_have_text(["fox"])
    expect(page.locator(".snippet")).to_have_text("It is red.")
    page.fill("#search", "")
    expect(page.locator("#chat-list a")).to_have_count(2)
    press(page, "Delete", keyboard=keyboard)
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    assert violations(page) == []
    expect(page.locator(".turn")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".position:visible")).to_have_text("1/2")
    page.reload()
    expect(page.locator(".content .katex")).to_have_count(2)
    assert len(titles(page)) == 2


def test_page_is_loaded_only_when_it_can_be_used(tab: Tab, scripted: ScriptedServer) -> None:
    """A browser calls a page loaded while a module waits for another. A file chosen before that would be lost."""
    held: list[Route] = []
    tab.page.route("**/katex.min.js", lambda route: held.append(route))
    with tab.page.expect_request("**/katex.min.js"):
        tab.open(scripted.url, wait_until="commit")
    with pytest.raises(TimeoutError):
        tab.page.wait_for_load_state(timeout=500)
    held[0].continue_()
    tab.page.wait_for_load_state()
    tab.page.set_input_files("#attach-file", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}])
    expect(tab.page.locator("#files li")).to_have_count(1)


def test_chat_is_drawn_after_a_reload_as_it_was(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    extension = {
        "origins": [["reasoning_content", 2, 0], ["content", 3, 2], ["content", 2, 0], ["content", 1, "text"]],
        "rounds": [[3, 2, 0, 0], [3, 1, 2, 1]],
    }
    statistics = {"tokens_per_second": 12.5, "time_to_first_token": 0.25, "cached_tokens": 3}
    call = {"index": 0, "id": "1", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    body = sse(delta(reasoning_content="hm", content="**é**😀", extension=extension), delta(tool_calls=[call]))
    body += sse(delta("tool_calls") | {"usage": {"completion_tokens": 4}}, {"choices": [], "pymtp": statistics}) + DONE
    scripted.answers += [[body], [said("It rains.")], [said("well")]]
    page.set_input_files("#attach-file", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}])
    expect(page.locator("#files li")).to_have_count(1)
    ask(page, "one\ntwo")
    ended(page)
    page.get_by_label("Result").fill("rain")
    press(page, "Send results")
    ended(page, 2)
    drawn = page.locator(".turns").inner_html()
    page.reload()
    ended(page, 2)
    assert page.locator(".turns").inner_html() == drawn
    assert page.get_by_label("Result").input_value() == "rain"
    assert 'class="o2"' in drawn
    assert 'class="otext"' in drawn
    assert "50.0 % of drafts accepted (1 of 2 from text)" in drawn
    ask(page, "next")
    expect(page.locator(".turn")).to_have_count(5)
    messages = scripted.requests[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[0]["content"] == "a.txt:\n```\ntext\n```\n\none\ntwo"
    assert messages[2]["content"] == "rain"


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


def test_answer_goes_on_while_another_chat_is_shown(tab: Tab, scripted: ScriptedServer, gate: threading.Event) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [[sse(delta(content="slow ")), lambda: gate.wait(30), said("end")], [said("quick")]]
    ask(page, "first")
    expect(page.locator(".content")).to_have_text("slow ")
    press(page, "New chat")
    ask(page, "second")
    expect(page.locator(".content")).to_have_text("quick")
    page.go_back()
    expect(page.locator(".content")).to_have_text("slow ")
    expect(page.locator("#stop")).to_be_visible()
    gate.set()
    ended(page)
    expect(page.locator(".content")).to_have_text("slow end")


def test_two_tabs_do_not_overwrite_each_other(tab: Tab, scripted: ScriptedServer, gate: threading.Event) -> None:
    one = tab.open(scripted.url)
    scripted.answers.append([said("first")])
    ask(one, "go")
    ended(one)
    expect(one.locator("#chat-list a")).to_have_count(1)
    two = tab.context.new_page()
    two.goto(one.url)
    ended(two)
    scripted.answers.append([sse(delta(content="from one ")), lambda: gate.wait(30), said("end")])
    ask(one, "one")
    expect(one.locator(".content").last).to_have_text("from one ")
    expect(two.locator(".said").last).to_have_text("one")  # the other tab shows it
    scripted.answers.append([said("from two")])
    ask(two, "two")
    ended(two, 2)
    press(two, "Rename")
    two.keyboard.type("Both")
    two.keyboard.press("Enter")
    gate.set()
    ended(one, 2)
    for page in (one, two):
        expect(page.locator("#chat-list a")).to_have_text(["Both"])
        page.reload()
        expect(page.locator(".turn").first).to_be_visible()
    stored = two.evaluate(ALL_TURNS)
    assert sorted(stored) == ["first", "from one end", "from two", "go", "one", "two"]


ALL_TURNS = """async () => {
  const { ChatStore } = await import("/static/chat_store.js");
  const store = new ChatStore();
  const chats = await Promise.all((await store.heads()).map(({ id }) => store.chat(id)));
  return chats.flatMap(({ turns }) => turns.map((turn) => turn.text ?? turn.content.text));
}"""


def test_chat_deleted_in_another_tab_can_be_kept(tab: Tab, scripted: ScriptedServer) -> None:
    one = tab.open(scripted.url)
    scripted.answers.append([said("first")])
    ask(one, "go")
    ended(one)
    expect(one.locator("#chat-list a")).to_have_count(1)
    two = tab.context.new_page()
    two.goto(one.url)
    press(two, "Delete")
    expect(one.get_by_role("alert")).to_contain_text("Deleted in another tab")
    expect(one.locator("#chat-list a")).to_have_count(0)
    press(one, "Keep it")
    expect(two.locator("#chat-list a")).to_have_count(1)
    one.reload()
    expect(one.locator(".content")).to_have_text("first")


def test_refused_message_goes_back_and_the_chat_goes_on(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [REFUSAL, [said("well")], REFUSAL, REFUSAL, [said("good")]]
    page.set_input_files("#attach-file", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}])
    expect(page.locator("#files li")).to_have_count(1)
    ask(page, "long")  # the first message of a chat: the chat is gone again
    expect(page.get_by_role("alert")).to_contain_text(TOO_LONG)
    expect(page.locator("#question")).to_have_value("long")
    expect(page.locator("#files li")).to_have_count(1)
    expect(page.locator("#chat-list a, .turn")).to_have_count(0)
    press(page, "Remove a.txt")
    ask(page, "short")
    ended(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    ask(page, "long " * 100)
    expect(page.locator("#question")).to_have_value("long " * 100)
    expect(page.locator(".turn")).to_have_count(2)
    press(page, "Edit")
    page.get_by_label("Edited message").fill("too long")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(TOO_LONG)
    expect(page.get_by_label("Edited message")).to_have_value("too long")
    page.keyboard.press("Escape")
    expect(page.locator("[data-saving]")).to_have_count(0)
    page.reload()
    ended(page)
    expect(page.locator(".turn")).to_have_count(2)
    ask(page, "and so on")
    ended(page, 2)
    assert asked(scripted) == ["short", "well", "and so on"]
    tab.forgive("400")


def test_cancelled_edit_changes_nothing_and_a_sent_one_stands_beside(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [[said("one")], [said("two")], [said("three")], [said("four")]]
    for n, text in enumerate(("first", "second"), 1):
        ask(page, text)
        ended(page, n)
    for cancel in (lambda: press(page, "Cancel"), lambda: page.keyboard.press("Escape")):
        page.get_by_role("button", name="Edit").first.click()
        page.get_by_label("Edited message").fill("other")
        cancel()
        expect(page.locator(".said")).to_have_text(["first", "second"])
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edited message").fill("other")
    page.keyboard.press("Enter")
    expect(page.locator(".content")).to_have_text(["three"])
    assert asked(scripted) == ["other"]
    press(page, "Previous message")
    expect(page.locator(".content")).to_have_text(["one", "two"])
    press(page, "Edit")
    page.get_by_label("Edited message").fill("third")
    page.keyboard.press("Enter")
    expect(page.locator(".content")).to_have_text(["one", "four"])
    expect(page.locator(".said")).to_have_text(["first", "third"])
    assert asked(scripted) == ["first", "one", "third"]


def test_exported_chats_can_be_imported(new_tab: Callable[..., Tab], scripted: ScriptedServer, tmp_path: Path) -> None:
    tab = new_tab(accept_downloads=True)
    page = tab.open(scripted.url)
    scripted.answers += [[said(RICH)], [said("other")], [said("more")]]
    ask(page, "fox & co/?")
    ended(page)
    press(page, "Regenerate")
    expect(page.locator(".content")).to_have_text("other")
    ended(page)
    with page.expect_download() as download:
        press(page, "Export")
    assert download.value.suggested_filename == "fox-co.json"
    path = tmp_path / "chats.json"
    download.value.save_as(path)
    page.set_input_files("#import-file", path)
    expect(page.locator("#notices")).to_contain_text("Imported: 1 chat.")
    expect(page.locator("#chat-list a")).to_have_text(["fox & co/?"] * 2)
    with page.expect_download() as download:
        press(page, "Export all")
    download.value.save_as(path)
    first, second = json.loads(path.read_text())["chats"]
    assert [
        [turn.get("content", {}).get("text", turn.get("text")) for turn in chat["turns"]] for chat in (first, second)
    ]
    other = new_tab().open(scripted.url)
    other.set_input_files("#import-file", path)
    expect(other.locator("#chat-list a")).to_have_count(2)
    other.locator("#chat-list a").first.click()
    expect(other.locator(".position:visible")).to_have_text("2/2")
    drawn = other.locator(".content").inner_html()
    assert drawn == page.locator(".content").inner_html()


USER: dict[str, Any] = {"id": "1", "parent": None, "role": "user", "at": 1, "text": "go", "files": []}
TEXT = {"text": "ab", "ends": [2], "steps": [0]}
ANSWER: dict[str, Any] = {
    **{"id": "2", "parent": "1", "role": "assistant", "at": 2, "model": "m", "system": "", "request": {}},
    **{"thinking": {"text": "", "ends": [], "steps": []}, "content": TEXT, "calls": [], "rounds": [[1, 1]]},
    **{"figures": None, "tokens": 1, "reason": "stop"},
}


def chats_file(turns: list[dict[str, Any]], *, copies: int = 1, **fields: Any) -> str:
    chat = {"title": "t", "created": 1, "updated": 1, "leaf": turns[-1].get("id") if turns else None, "turns": turns}
    chats = [chat | {"title": f"chat {i}", "updated": i} for i in range(copies)]
    return json.dumps({"format": "pymtp chats", "version": 1, "chats": chats} | fields)


DAMAGED = {
    chats_file([USER, ANSWER])[:-20]: "no JSON, or not all of it",
    "[]": 'no "format"',
    chats_file([USER], version=2): "its version is 2, and this page reads version 1",
    chats_file([USER], chats={}): "chats is missing, or no list",
    chats_file([]): "chats[0].turns is empty",
    chats_file([USER | {"text": 5}]): "chats[0].turns[0].text is missing, or no text",
    chats_file(
        [USER, ANSWER | {"parent": "3"}]
    ): "chats[0].turns[1].parent is not null, and not the id of an earlier turn",
    chats_file([USER, ANSWER | {"id": "1"}]): "chats[0].turns[1].id is the id of an earlier turn",
    chats_file([USER | {"role": "root"}]): 'chats[0].turns[0].role is neither "user" nor "assistant"',
    chats_file(
        [USER, ANSWER | {"content": TEXT | {"ends": [3]}}]
    ): "content.ends does not ascend to the end of the text",
    chats_file([USER, ANSWER | {"content": TEXT | {"ends": [2, 2], "steps": [0, 0]}}]): "ends does not ascend",
    chats_file([USER, ANSWER | {"content": TEXT | {"steps": []}}]): "content.steps has not a step for each of its ends",
    chats_file(
        [USER, ANSWER | {"rounds": [[1, 2]]}]
    ): "rounds[0] is not [drafted, accepted, drafted from text, accepted",
    chats_file([USER, ANSWER | {"rounds": [[1, 1, 0, 1]]}]): "rounds[0] is not [drafted, accepted, drafted from text",
    chats_file([USER, ANSWER | {"rounds": [[3, 2, 1, 0, 0]]}]): "rounds[0] is not [drafted, accepted, drafted from",
    chats_file([USER, ANSWER | {"content": TEXT | {"steps": ["head"]}}]): "steps has not a step for each of its ends",
    chats_file([USER, ANSWER | {"figures": {}}]): "figures.tokens_per_second is missing, or no number",
    chats_file([USER, ANSWER | {"request": {"n": 9}}]): "request.n is no field of this page's requests",
    chats_file([USER, ANSWER | {"request": {"seed": "1"}}]): "request.seed is no field of this page's requests",
    chats_file([USER, ANSWER]).replace('"request": {', '"request": {"__proto__": {}'): "request.__proto__ is no field",
    chats_file([USER]).replace('"chat 0"', '" "'): "chats[0].title is empty",
    chats_file([USER]).replace('"updated": 0', '"updated": 1e999'): "chats[0].updated is missing, or no number",
}


def test_damaged_file_is_refused_whole_and_says_what_is_wrong(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)

    def choose(text: str) -> None:
        page.set_input_files("#import-file", [{"name": "x.json", "mimeType": "", "buffer": text.encode()}])

    choose(chats_file([USER, ANSWER | {"reason": "constructor"}]))
    expect(page.locator("#chat-list a")).to_have_text(["chat 0"])
    for text, says in DAMAGED.items():
        choose(text)
        expect(page.get_by_role("alert")).to_contain_text("x.json was not imported, and nothing is changed: ")
        expect(page.get_by_role("alert")).to_contain_text(says)
    expect(page.locator("#chat-list a")).to_have_text(["chat 0"])
    page.locator("#chat-list a").click()
    expect(page.locator(".content")).to_have_text("ab")
    expect(page.locator(".facts")).to_have_text("1 token · 100 % of drafts accepted")


def test_drafts_from_text_survive_the_export_and_the_import(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    copied = ANSWER | {"content": TEXT | {"ends": [1, 2], "steps": [1, "text"]}, "rounds": [[4, 2, 3, 1]]}
    file = chats_file([USER, copied])
    for _ in range(2):
        page.set_input_files("#import-file", [{"name": "x.json", "mimeType": "", "buffer": file.encode()}])
        page.locator("#chat-list a").first.click()
        expect(page.locator(".content .otext")).to_have_text("b")
        expect(page.locator(".facts")).to_have_text("1 token · 50.0 % of drafts accepted (1 of 3 from text)")
        expect(page.locator("#positions .bar")).to_have_text(["1100 %", "text33.3 %"])
        with page.expect_download() as download:
            press(page, "Export all")
        file = download.value.path().read_text()
        press(page, "Delete")
    (chat,) = json.loads(file)["chats"]
    assert (chat["turns"][1]["content"]["steps"], chat["turns"][1]["rounds"]) == ([1, "text"], [[4, 2, 3, 1]])


def test_page_works_in_a_browser_that_stores_nothing(tab: Tab, scripted: ScriptedServer) -> None:
    tab.context.add_init_script(NOTHING_STORED)
    page = tab.open(scripted.url)
    expect(page.locator("#notices")).to_contain_text("This browser stores nothing for this page")
    scripted.answers += [[said("one")], [said("two")]]
    ask(page, "first")
    ended(page)
    press(page, "New chat")
    ask(page, "second")
    expect(page.locator(".content")).to_have_text("two")
    page.locator("#chat-list a", has_text="first").click()
    expect(page.locator(".content")).to_have_text("one")
    page.select_option("#theme", "dark")
    page.uncheck("#coloured")
    with page.expect_download():
        press(page, "Export all")


def test_full_storage_is_reported_and_the_chat_goes_on(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    page.evaluate("""() => {
      IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
    }""")
    scripted.answers += [[said("one")], [said("two")]]
    for n, text in enumerate(("first", "second"), 1):
        ask(page, text)
        ended(page, n)
    expect(page.get_by_role("alert")).to_contain_text("This chat is not stored: the browser has no more room")
    assert asked(scripted) == ["first", "one", "second"]


def test_two_hundred_chats_and_one_of_two_megabytes(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    small = json.loads(chats_file([USER, ANSWER], copies=199))
    turns, parent = [], None
    for n in range(0, 200, 2):
        line = f"Line {n} of *the* answer.\n\n"
        text = line * (20_000 // len(line))
        content = {"text": text, "ends": list(range(20, len(text), 20)), "steps": []}
        content["ends"].append(len(text))
        content["steps"] = [i % 4 for i in range(len(content["ends"]))]
        turns += [USER | {"id": str(n), "parent": parent, "at": n}]
        turns += [ANSWER | {"id": str(n + 1), "parent": str(n), "at": n + 1, "content": content}]
        parent = str(n + 1)
    large = json.loads(chats_file(turns))["chats"][0] | {"title": "large", "updated": 1000}
    small["chats"].append(large)
    file = json.dumps(small).encode()
    assert sum(len(turn["content"]["text"]) for turn in turns if "content" in turn) > 1_990_000
    page.set_input_files("#import-file", [{"name": "x.json", "mimeType": "", "buffer": file}])
    expect(page.locator("#chat-list a")).to_have_count(200)
    page.get_by_role("link", name="large").click()
    expect(page.locator(".content").last).to_contain_text("Line 198 of the answer.")
    page.locator("#log").evaluate("log => log.scrollTop = 0")
    expect(page.locator(".content").first).to_contain_text("Line 0 of the answer.")
    assert page.locator(".content:empty").count() > 50  # what nobody sees is not drawn
    page.fill("#search", "line 0 of")
    expect(page.locator("#chat-list a")).to_have_text(["large"])
    scripted.answers.append([said("well")])
    ask(page, "on")
    expect(page.locator(".content").last).to_have_text("well")
    assert len(scripted.requests[-1]["messages"]) == 201


def test_files_are_attached_as_text_within_a_limit_that_is_said(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    assert "at most 1.0 MiB together" in (page.locator("#attach").get_attribute("title") or "")
    files = {"a.md": b"```\nx\n```", "b.txt": "é".encode(), "c.bin": b"\x89PNG\x00", "d.txt": b"x" * 2**20}
    chosen = [{"name": name, "mimeType": "", "buffer": data} for name, data in files.items()]
    page.set_input_files("#attach-file", chosen)  # type: ignore[arg-type]
    expect(page.get_by_role("alert")).to_contain_text("c.bin is not text in UTF-8")
    expect(page.get_by_role("alert")).to_contain_text(
        "d.txt has 1.0 MiB: the files of one message have at most 1.0 MiB"
    )
    expect(page.locator("#files li")).to_have_count(2)
    press(page, "Remove b.txt")
    scripted.answers.append([said("well")])
    ask(page, "see")
    ended(page)
    assert asked(scripted) == ["a.md:\n````\n```\nx\n```\n````\n\nsee"]
    page.locator(".file summary").click()
    expect(page.locator(".file pre")).to_have_text("```\nx\n```")


def test_address_of_a_chat_that_is_not_there_is_reported(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(f"{scripted.url}/#none")
    expect(page.locator("#notices")).to_contain_text("This browser has no such chat.")
    scripted.answers.append([said("well")])
    ask(page, "go")
    ended(page)
