"""Tests of the page with the engine's statistics, in a real Chromium."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable

import httpx
import pytest
from helpers.browser import Tab
from helpers.servers import Server, wait_until
from playwright.sync_api import Locator, Page, Route, expect

from pymtp.engine.embedder import add_memory

ASK = {"model": "demo", "messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 50, "seed": 1}


def panel(page: Page, title: str) -> Locator:
    return page.locator(".panel", has=page.get_by_role("heading", name=title, exact=True))


def test_figures_route_returns_the_statistics_of_the_engine(server: Server) -> None:
    httpx.post(f"{server.url}/v1/chat/completions", json=ASK, timeout=30).raise_for_status()
    reported = httpx.get(f"{server.url}/figures").json()
    figures = server.llm.figures()
    assert (reported["places"], reported["n_ctx"], reported["open"]) == (4, 4096, 0)
    assert reported["engine"]["accepted_per_position"] == list(figures.accepted_per_position)
    assert reported["engine"]["prefixes"]["lookups"] == figures.prefixes.lookups
    memory = add_memory(server.llm.context.memory(), server.llm._embedder.memory)
    assert reported["memory"] == [{"device": each.device, "total": each.total} for each in memory]


def test_figures_route_answers_while_the_engine_is_busy(server: Server) -> None:
    """Check that /figures answers soon, although it must read the context, which the engine's thread uses."""
    ends = threading.Event()

    def read() -> None:
        body = ASK | {"max_tokens": 4000, "n": 4, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as stream:
            assert any(ends.is_set() for _ in stream.iter_raw())

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: server.llm.figures().running == 4)
    reported = [httpx.get(f"{server.url}/figures", timeout=30).json() for _ in range(3)]
    ends.set()
    reader.join()
    assert [each["engine"]["running"] for each in reported] == [4, 4, 4]
    wait_until(server.free)


def test_figures_page_shows_the_engines_counters(tab: Tab, server: Server) -> None:
    httpx.post(f"{server.url}/v1/chat/completions", json=ASK, timeout=30).raise_for_status()
    page = tab.open(f"{server.url}/figures.html")
    expect(panel(page, "Requests")).to_contain_text("running: 0, waiting: 0")
    figures = server.llm.figures()
    shares = panel(page, "Drafts accepted, by position").locator(".bar span:last-child").all_text_contents()
    by_position = zip(figures.accepted_per_position, figures.drafted_per_position, strict=True)
    reported = [100 * accepted / drafted for accepted, drafted in by_position]
    assert [float(share.split()[0]) for share in shares] == pytest.approx(reported, abs=0.06)
    expect(panel(page, "Requests that ended")).to_contain_text(f"Finished{figures.finished}")
    expect(panel(page, "Prefixes")).to_contain_text(f"of {figures.prefixes.lookups}")
    expect(panel(page, "Memory")).to_contain_text("MiB")
    expect(page.locator("#model")).to_have_text("demo")


def test_figures_page_shows_the_share_of_drafts_from_text_beside_the_positions(tab: Tab, server: Server) -> None:
    reported = httpx.get(f"{server.url}/figures").json()
    reported["engine"] |= {"drafted_per_position": [4], "accepted_per_position": [1]}
    reported["engine"] |= {"drafted_by_text": 8, "accepted_by_text": 6, "output_bytes": 2 * 2**20}
    tab.page.route(re.compile(r"/figures(\?|$)"), lambda route: route.fulfill(json=reported))
    page = tab.open(f"{server.url}/figures.html")
    bars = panel(page, "Drafts accepted, by position").locator(".bar")
    expect(bars).to_have_text(["125.0 %", "text75.0 %"])
    expect(panel(page, "Memory")).to_contain_text("Outputs kept for drafts2.0 MiB")


def test_plots_of_the_figures_page_advance_each_second(tab: Tab, server: Server) -> None:
    tab.page.clock.install()
    page = tab.open(f"{server.url}/figures.html")
    path = page.locator(".plot path").first
    for n in range(1, 4):
        with page.expect_response("**/figures"):
            page.clock.run_for(1000)
        page.wait_for_function(
            "n => document.querySelector('.plot path').getAttribute('d')?.split(/[ML]/).length > n", arg=n
        )
    assert path.get_attribute("d") != ""


def test_hidden_figures_page_does_not_poll(tab: Tab, server: Server) -> None:
    tab.page.clock.install()
    page = tab.open(f"{server.url}/figures.html")
    with page.expect_response("**/figures"):
        page.clock.run_for(1000)

    def hide(hidden: bool) -> None:
        value = json.dumps(hidden)
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: {value}, configurable: true }})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    hide(True)
    page.clock.run_for(1000)  # a poll may still be running
    request_body = tab.urls.count(f"{server.url}/figures")
    page.clock.run_for(60_000)
    assert tab.urls.count(f"{server.url}/figures") == request_body
    with page.expect_response("**/figures"):
        hide(False)


def test_figures_page_polls_once_at_a_time(tab: Tab, server: Server) -> None:
    held: list[Route] = []
    tab.page.route("**/figures", lambda route: held.append(route))
    with tab.page.expect_request("**/figures"):
        page = tab.open(f"{server.url}/figures.html")
    page.evaluate("for (let i = 0; i < 3; i++) document.dispatchEvent(new Event('visibilitychange'))")
    page.evaluate(
        "fetch('health').then((response) => response.status)"
    )  # any further poll was sent before this request
    assert len(held) == 1
    for route in held:
        route.continue_()


def test_figures_page_reports_a_missing_server_and_recovers(tab: Tab, server: Server) -> None:
    tab.page.clock.install()
    page = tab.open(f"{server.url}/figures.html")
    page.route("**/figures", lambda route: route.abort("connectionrefused"))
    page.clock.run_for(1000)
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/figures")
    page.clock.run_for(1000)
    expect(page.locator("#problem")).to_be_hidden()
    tab.forgive("ERR_CONNECTION_REFUSED")


def test_figures_page_asks_for_an_api_key(tab: Tab, new_server: Callable[..., Server]) -> None:
    server = new_server(api_keys=("secret",)).ready()
    page = tab.open(f"{server.url}/figures.html")
    page.get_by_label("API key").fill("secret")
    page.get_by_label("API key").press("Enter")
    expect(page.get_by_text("Places")).to_be_visible()
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#model")).to_have_text("demo")
    tab.forgive("401")
