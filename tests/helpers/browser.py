"""Tabs of a real Chromium, which record problems."""

from __future__ import annotations

import asyncio
import shutil
from asyncio import _set_running_loop as set_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

LONG = 30_000  # milliseconds until a test fails that waits


class Tab:
    """A page, and the problems of all pages of its context: console messages, exceptions, requests to other hosts."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.problems: list[str] = []
        self.urls: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.problems.append(f"exception: {error.error}"))
        context.on("request", self._on_request)
        self.page: Page = context.new_page()

    def open(self, url: str, *, wait_until: Literal["commit", "load"] = "load") -> Page:
        """Load a page, or wait only for its first bytes. Later requests to other hosts are problems."""
        self._host = urlsplit(url).netloc
        self.page.goto(url, wait_until=wait_until)
        return self.page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.urls.append(request.url)
        parts = urlsplit(request.url)
        if parts.scheme != "blob" and parts.netloc != self._host:
            self.problems.append(f"request to another host: {request.url}")

    def forgive(self, part: str) -> None:
        """Remove the expected problems of a test; there must be one."""
        left = [problem for problem in self.problems if part not in problem]
        assert len(left) < len(self.problems), f"no problem has {part!r}: {self.problems}"
        self.problems = left


def chromium() -> str:
    """Return the path of Chromium: its headless shell where there is one, since windows double the CPU time.

    Fails with instructions where there is none.
    """
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.fail("the tests of the pages need a Chromium: apt-get install chromium-headless-shell")


@pytest.fixture(scope="session")
def started_browser() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """Start Chromium and Playwright's event loop once: a start takes as long as a test."""
    expect.set_options(timeout=LONG)
    with sync_playwright() as playwright:
        loop = asyncio.get_running_loop()
        browser = playwright.chromium.launch(executable_path=chromium())
        set_running_loop(None)
        yield browser, loop
        set_running_loop(loop)
        browser.close()


@pytest.fixture(scope="module")
def browser(started_browser: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """Return the browser. Playwright's loop counts as running only until the module ends: other tests run their own."""
    browser, loop = started_browser
    set_running_loop(loop)
    yield browser
    set_running_loop(None)


@contextmanager
def _tabs(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Return a factory of tabs, with keywords of a browser's context. Fails at the end where a tab has a problem."""
    made: list[Tab] = []

    def make(**keywords: object) -> Tab:
        context = browser.new_context(**({"viewport": {"width": 1100, "height": 760}} | keywords))
        context.set_default_timeout(LONG)
        made.append(Tab(context))
        return made[-1]

    yield make
    for tab in made:
        tab.context.close()
    assert [problem for tab in made for problem in tab.problems] == []


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Return a factory of tabs, with keywords of a browser's context. The test fails where a tab has a problem."""
    with _tabs(browser) as make:
        yield make


@pytest.fixture(scope="module")
def new_shared_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Return a factory of tabs for all tests of a module, which leave them as they found them."""
    with _tabs(browser) as make:
        yield make


@pytest.fixture
def tab(new_tab: Callable[..., Tab]) -> Tab:
    return new_tab()
