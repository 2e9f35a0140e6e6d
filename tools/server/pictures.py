"""Take the pictures of the pages for docs/how-to/, from a running server with the shipped model.

pymtp serve --threads 1 --draft-tokens 5
python tools/server/pictures.py http://127.0.0.1:8080 docs/how-to
"""

from __future__ import annotations

import argparse
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

QUESTION = "Write a Python function to return the median of numbers. Call it median."
FIELDS = {"max_tokens": "100", "temperature": "0"}
LOAD_SECONDS = 30  # requests run so long before the picture of the figures
MAX_BYTES = 200_000
TITLES = ["How do I solve a quadratic equation?", "A trip to Rome in autumn", "Rename many files", "Words for snow"]
FORMULAS = r"""Divide $ax^2 + bx + c = 0$ by $a \neq 0$, and complete the square:

$$
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
$$

- [x] Check that $a \neq 0$
- [x] Compute the discriminant $D = b^2 - 4ac$
- [ ] For $D \ge 0$, take both roots
"""


def chat(page: Page, url: str) -> None:
    """Open the chat page, send the question, and wait for the answer."""
    page.goto(url)
    closed = not page.locator("#settings").evaluate("settings => settings.open")
    if closed:
        page.locator("#settings summary").click()
    for name, value in FIELDS.items():
        page.fill(f"#{name}", value)
    page.locator("#settings summary").click()
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    expect(page.locator(".facts:not(:empty)")).to_have_count(1)


def take_chats(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 760})
    chat(page, url)
    page.get_by_role("button", name="Run the same again without MTP").click()
    expect(page.locator(".verdict")).not_to_be_empty()
    page.locator("#log").evaluate("log => log.scrollTop = 0")
    save(page, folder / "pages-chat.png")
    page = browser.new_page(viewport={"width": 1200, "height": 760}, color_scheme="dark")
    chat(page, url)
    page.locator("#log").evaluate("log => log.scrollTop = 0")
    save(page, folder / "pages-chat-dark.png")
    page = browser.new_page(viewport={"width": 360, "height": 720}, device_scale_factor=2, is_mobile=True)
    chat(page, url)
    page.locator("#log").evaluate("log => log.scrollTop = 0")
    save(page, folder / "pages-chat-phone.png")


def take_list(browser: Browser, url: str, folder: Path) -> None:
    """Import chats with formulas and tasks, which the shipped model does not write, and open one."""
    page = browser.new_page(viewport={"width": 1200, "height": 560})
    page.goto(url)
    page.set_input_files("#import-file", [{"name": "chats.json", "mimeType": "", "buffer": chats_file()}])
    page.locator("#chat-list a").first.click()
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator(".content .katex").first).to_be_visible()
    page.locator("#log").evaluate("log => log.scrollTop = 0")
    save(page, folder / "pages-chat-list.png")


def chats_file() -> bytes:
    """Return a file of chats in the page's format. The first one has two answers."""
    nothing: dict[str, Any] = {"text": "", "ends": [], "steps": []}
    answer = {"role": "assistant", "model": "m", "system": "", "request": {}, "thinking": nothing, "calls": []}
    answer |= {"rounds": [[3, 2]] * 30, "figures": None, "tokens": 90, "reason": "stop"}
    ends = [*range(4, len(FORMULAS), 4), len(FORMULAS)]
    content = {"text": FORMULAS, "ends": ends, "steps": [i % 4 for i in range(len(ends))]}

    def chat(title: str, updated: int) -> dict[str, Any]:
        turns: list[dict[str, Any]] = [
            {"id": "q", "parent": None, "role": "user", "at": 1, "text": title, "files": []},
            answer | {"id": "a", "parent": "q", "at": 2, "content": content},
            answer | {"id": "b", "parent": "q", "at": 3, "content": content},
        ]
        return {"title": title, "created": updated, "updated": updated, "leaf": "b", "turns": turns}

    made = [chat(title, -i) for i, title in enumerate(TITLES)]
    return json.dumps({"format": "pymtp chats", "version": 1, "chats": made}).encode()


def take_figures(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 760})
    page.goto(f"{url}/figures.html")
    stop = threading.Event()
    clients = [threading.Thread(target=send_requests, args=(url, seed, stop)) for seed in range(3)]
    for client in clients:
        client.start()
    page.wait_for_timeout(LOAD_SECONDS * 1000)
    save(page, folder / "pages-figures.png")
    stop.set()
    for client in clients:
        client.join()


def warm_up(url: str) -> None:
    """Send requests with and without drafts: the first answers of a server take longer."""
    for drafts in ({}, {"draft_tokens": 0}):
        complete(url, QUESTION, 3, **drafts)


def send_requests(url: str, seed: int, stop: threading.Event) -> None:
    """Send requests one after the other, with pauses, until `stop` is set."""
    while not stop.wait(0.5 + seed / 2):
        complete(url, f"{QUESTION}, case {seed}", seed)
        seed += 10


def complete(url: str, text: str, seed: int, **fields: int) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 300, "temperature": 0.7}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body | fields | {"seed": seed}, timeout=60)
    answer.raise_for_status()


def save(page: Page, path: Path) -> None:
    page.mouse.move(0, 0)
    page.screenshot(path=path)
    assert path.stat().st_size < MAX_BYTES, f"{path.name} has {path.stat().st_size} bytes"
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="URL of the server")
    parser.add_argument("folder", type=Path, help="folder for the pictures")
    options = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("needs a Chromium: apt-get install chromium")
    warm_up(options.url)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        take_chats(browser, options.url.rstrip("/"), options.folder)
        take_list(browser, options.url.rstrip("/"), options.folder)
        take_figures(browser, options.url.rstrip("/"), options.folder)
        browser.close()


if __name__ == "__main__":
    main()
