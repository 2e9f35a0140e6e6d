"""Measure how fast the chat page is, in Chromium: python tools/server/page_speed.py [--runs N]

The page's server answers from a script, so that only the page is measured. Printed are medians and the highest values,
in milliseconds: from the arrival of an answer's first token to the frame that shows it, in a new chat and in a chat of
2 MB; from the click on that chat to the frame that shows its last answer; from the load of the page to its list of 200
chats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.browser import chromium
from helpers.scripted_server import DONE, ScriptedServer, delta, sse

TEXT = "Line of *the* answer.\n\n" * 870  # 20 KB
# Notes when the first token of a stream arrives, and when a frame has shown the first piece of its text.
WATCH = """() => {
  window.arrived = window.shown = null;
  const read = ReadableStreamDefaultReader.prototype.read;
  ReadableStreamDefaultReader.prototype.read = async function () {
    const result = await read.call(this);
    if (result.value) window.arrived ??= performance.now();
    return result;
  };
  new MutationObserver(() => {
    const all = [...document.querySelectorAll(".content")];
    if (window.shown !== null || all.length <= window.before || !all.at(-1).textContent) return;
    window.shown = 0;
    requestAnimationFrame(() => setTimeout(() => (window.shown = performance.now())));
  }).observe(document.getElementById("log"), { childList: true, subtree: true });
}"""
# Returns the milliseconds from the first token to the frame that shows it.
SHOWN = """() => new Promise((resolve) => {
  const look = () => (window.shown ? resolve(window.shown - window.arrived) : setTimeout(look, 5));
  look();
})"""
# Returns the milliseconds from a click on a link to the frame that shows the last answer of its chat.
OPEN = """(link) => new Promise((resolve) => {
  const begin = performance.now();
  new MutationObserver((_, observer) => {
    if (![...document.querySelectorAll(".content")].at(-1)?.textContent) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - begin)));
  }).observe(document.getElementById("log"), { childList: true, subtree: true });
  link.click();
})"""


def chats() -> bytes:
    """Return a file of 200 chats, one of them with 2 MB of answers."""
    user = {"role": "user", "text": "go", "files": []}
    origins = {"text": TEXT, "ends": [*range(20, len(TEXT), 20), len(TEXT)]}
    origins["steps"] = [i % 4 for i in range(len(origins["ends"]))]
    nothing: dict[str, Any] = {"text": "", "ends": [], "steps": []}
    answer = {"role": "assistant", "model": "m", "system": "", "request": {}, "thinking": nothing, "calls": []}
    answer |= {"content": origins, "rounds": [], "figures": None, "tokens": 1, "reason": "stop"}

    def chat(title: str, n: int) -> dict[str, Any]:
        turns = [
            {"id": str(i), "parent": str(i - 1) if i else None, "at": i} | (answer if i % 2 else user)
            for i in range(2 * n)
        ]
        return {"title": title, "created": 1, "updated": 1, "leaf": None, "turns": turns}

    made = [chat(f"small {i}", 1) for i in range(199)] + [chat("large", 100)]
    return json.dumps({"format": "pymtp chats", "version": 1, "chats": made}).encode()


def first_token(page: Page, server: ScriptedServer) -> float:
    """Send a message; return the milliseconds from the first token to the frame that shows it."""
    before = page.locator(".content").count()
    page.evaluate("before => { window.arrived = window.shown = null; window.before = before; }", before)
    pieces = [
        delta(content=f"word{i} ", extension={"origins": [["content", 5, i % 3]], "rounds": []}) for i in range(50)
    ]
    server.answers.append([sse(piece) for piece in pieces] + [sse(delta("stop")) + DONE])
    page.fill("#question", "go")
    page.press("#question", "Enter")
    expect(page.locator(".facts").last).not_to_be_empty()
    return float(page.evaluate(SHOWN))


def show(name: str, measure: Callable[[], float], runs: int) -> None:
    times = [measure() for _ in range(runs)]
    print(f"{name:<44}{statistics.median(times):8.1f}{max(times):8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    server = ScriptedServer()
    expect.set_options(timeout=120_000)
    print(f"{'milliseconds':<44}{'median':>8}{'highest':>8}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(server.url)
        page.set_input_files("#import-file", [{"name": "x.json", "mimeType": "", "buffer": chats()}])
        expect(page.locator("#chat-list a")).to_have_count(200)

        def load() -> float:
            page.goto("about:blank")
            page.goto(server.url)
            expect(page.locator("#chat-list a")).to_have_count(200)
            return float(page.evaluate("performance.now()"))

        def open_large() -> float:
            page.locator("#new-chat").click()
            return float(page.get_by_role("link", name="large").evaluate(OPEN))

        show("load of the page, to the list of 200 chats", load, runs)
        page.evaluate(WATCH)
        show("first token to its frame, in a new chat", lambda: first_token(page, server), runs)
        show("click on the chat of 2 MB, to its last answer", open_large, runs)
        show("first token to its frame, in the chat of 2 MB", lambda: first_token(page, server), runs)
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
