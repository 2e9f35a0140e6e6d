"""Tests of the chat page with streams whose bytes the test chooses, in a real Chromium."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from fastapi.responses import JSONResponse, Response
from helpers.browser import Tab
from helpers.scripted_server import DONE, ScriptedServer, delta, said, sse
from helpers.servers import wait_until
from playwright.sync_api import Page, expect

TEXT = "naïve 😀 \u2028 \u2029 \x85 日本 end"


def ask(page: Page, text: str = "go") -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def ended(page: Page, n: int = 1) -> None:
    expect(page.locator(".facts:not(:empty)")).to_have_count(n)


def shown(page: Page) -> str | None:
    return page.locator(".content").last.text_content()


@pytest.fixture
def page(tab: Tab, scripted: ScriptedServer) -> Page:
    return tab.open(scripted.url)


BODY = sse(*(delta(content=c) for c in TEXT), delta("stop")) + DONE
STREAMS = {
    "lines end with LF": BODY,
    "escaped": sse(delta(content=TEXT), delta("stop"), ascii_only=True) + DONE,
    "lines end with CR LF": BODY.replace(b"\n", b"\r\n"),
    "lines end with CR": BODY.replace(b"\n", b"\r"),
    "no blank after the colon": BODY.replace(b"data: ", b"data:"),
    "comments and other fields": b"\xef\xbb\xbf: hello\n\nevent: x\nid: 1\n\n" + BODY.replace(b"\n\n", b"\n: ping\n\n"),
    "events of several lines": BODY.replace(b', "delta"', b',\ndata: "delta"'),
    "the same with CR LF": BODY.replace(b', "delta"', b',\ndata: "delta"').replace(b"\n", b"\r\n"),
}
# For each size, returns the joined text of the events of a body that arrives in pieces of this size.
READ = """async ([body, sizes]) => {
  const { events } = await import("/static/sse.js");
  const bytes = Uint8Array.from(body);
  return Promise.all(sizes.map(async (size) => {
    let at = 0;
    const stream = new ReadableStream({ pull(controller) {
      if (at >= bytes.length) return controller.close();
      controller.enqueue(bytes.slice(at, (at += size)));
    } });
    let text = "";
    for await (const data of events(stream))
      if (data !== "[DONE]") text += JSON.parse(data).choices[0].delta.content ?? "";
    return text;
  }));
}"""


def test_stream_parser_accepts_any_pieces_and_line_ends(page: Page, scripted: ScriptedServer) -> None:
    for name, body in STREAMS.items():
        sizes = [1, 2, 3, 4, 5, 7, 64, len(body)]
        assert page.evaluate(READ, [list(body), sizes]) == [TEXT] * len(sizes), name
    scripted.answers.append([body[i : i + 5] for i in range(0, len(body), 5)])
    ask(page)
    ended(page)
    assert shown(page) == TEXT


def test_text_is_shown_during_the_stream(page: Page, scripted: ScriptedServer) -> None:
    goes_on = threading.Event()
    scripted.answers.append([sse(delta(content="first ")), lambda: goes_on.wait(30), said("second")])
    ask(page)
    expect(page.locator(".content")).to_have_text("first ")
    assert page.locator("#stop").is_visible()
    goes_on.set()
    ended(page)
    assert shown(page) == "first second"
    assert page.locator("#send").is_visible()


def test_stop_button_aborts_the_stream(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    presses = (lambda: page.press("#question", "Escape"), lambda: page.click("#stop"))
    for n, press in enumerate(presses, 1):
        goes_on = threading.Event()
        scripted.answers.append([sse(delta(content="first")), partial(goes_on.wait, 30), said("second")])
        ask(page)
        expect(page.locator(".content").last).to_have_text("first")
        press()
        wait_until(lambda n=n: scripted.disconnects == n)
        goes_on.set()
        expect(page.locator(".facts").last).to_contain_text("stopped")
        assert shown(page) == "first"
        assert page.evaluate("document.activeElement.id") == "question"


REFUSALS = [
    (JSONResponse({"error": {"message": "no key"}}, 401), "asks for an API key", "401"),
    (JSONResponse({"error": {"message": "full"}}, 429, {"Retry-After": "7"}), "busy. Try again in 7 s.", "429"),
    (JSONResponse({"error": {"message": "loading"}}, 503, {"Retry-After": "2"}), "loading. Try again in 2 s.", "503"),
    (Response("<h1>Bad gateway</h1>", 502), "status 502", "502"),
]


def test_refused_request_shows_an_error_and_can_be_retried(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    for n, (answer, says, problem) in enumerate(REFUSALS, 1):
        scripted.answers += [answer, [said("well")]]
        ask(page)
        expect(page.get_by_role("alert").last).to_contain_text(says)
        tab.forgive(problem)  # the console line of the browser about the status is expected
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".content")).to_have_text(["well"] * n)
        refused, answered = scripted.requests[-2:]
        assert refused["messages"] == answered["messages"]


BROKEN: list[tuple[list[Any], str]] = [
    ([sse(delta(content="half"))], "ended before the answer did"),
    ([sse(delta(content="half"), {"error": {"message": "the engine failed"}})], "the engine failed"),
    ([sse(delta(content="half")), b"data: {]\n\n"], "no JSON"),
]


def test_aborted_stream_shows_an_error_and_keeps_the_text(page: Page, scripted: ScriptedServer) -> None:
    for n, (pieces, says) in enumerate(BROKEN, 1):
        scripted.answers.append(pieces)
        ask(page)
        expect(page.get_by_role("alert").last).to_contain_text(says)
        ended(page, n)
        assert shown(page) == "half"
        expect(page.locator(".facts").last).to_contain_text("failed")


def test_chat_page_reports_a_missing_server(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    ask(page)
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    tab.forgive("ERR_CONNECTION_REFUSED")


def test_api_key_is_sent_and_stays_in_the_tab(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    scripted.answers += [JSONResponse({"error": {"message": "no key"}}, 401), [said("well")]]
    ask(page)
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type("secret")
    page.get_by_role("button", name="Try again").click()
    ended(page)
    assert scripted.keys == [None, "Bearer secret"]
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    assert page.input_value("#key") == "secret"
    tab.forgive("401")


def test_thinking_is_folded_apart_from_the_answer(page: Page, scripted: ScriptedServer) -> None:
    goes_on = threading.Event()
    extension = {"origins": [["reasoning_content", 4, 0], ["reasoning_content", 2, 3]], "rounds": [[3, 1, 0, 0]]}
    thought = delta(reasoning_content="hm **x", extension=extension)
    rest = sse(delta(reasoning_content="**"), delta(content="Yes."), delta("stop")) + DONE
    scripted.answers.append([sse(thought), lambda: goes_on.wait(30), rest])
    ask(page)
    expect(page.locator(".thinking summary")).to_have_text("Thinking …")
    goes_on.set()
    ended(page)
    expect(page.locator(".thinking summary")).to_have_text("Thoughts")
    assert not page.locator(".thinking .answer").is_visible()
    page.locator(".thinking summary").click()
    assert page.locator(".thinking strong .o3").inner_text() == "x"
    assert shown(page) == "Yes."


def test_chat_continues_with_the_result_of_a_tool_call(page: Page, scripted: ScriptedServer) -> None:
    begin = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": part}} for part in ('{"city": "Bo', 'nn", "days": [1,2]}')]
    calls = [delta(tool_calls=[call]) for call in (begin, *parts)]
    scripted.answers += [[sse(*calls, delta("tool_calls")) + DONE], [said("It rains.")]]
    tools = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]'
    page.locator("#settings summary").click()
    page.fill("#tools", tools)
    ask(page)
    call = page.get_by_label("Tool call")
    expect(call.locator("strong")).to_have_text("weather")
    expect(call.locator("pre")).to_have_text('{\n  "city": "Bonn",\n  "days": [\n    1,\n    2\n  ]\n}')
    call.get_by_label("Result").fill("rain <b>")
    page.get_by_role("button", name="Send results").click()
    expect(page.locator(".content").last).to_have_text("It rains.")
    assert scripted.requests[0]["tools"][0]["function"]["name"] == "weather"
    called = {"name": "weather", "arguments": '{"city": "Bonn", "days": [1,2]}'}
    assert scripted.requests[1]["messages"] == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": called}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain <b>"},
    ]


def test_hostile_answers_are_harmless(tab: Tab, scripted: ScriptedServer) -> None:
    page = tab.open(scripted.url)
    hostile = (
        "<img src=x onerror=document.title='evil'> [a](javascript:document.title='evil') <script>document.title='evil'"
    )
    call = {"index": 0, "id": "1", "function": {"name": hostile, "arguments": hostile}}
    chunks = [delta(reasoning_content=hostile), delta(content=hostile), delta(tool_calls=[call]), delta("tool_calls")]
    scripted.answers.append([sse(*chunks) + DONE])
    ask(page, hostile)
    ended(page)
    page.locator(".thinking summary").click()
    assert page.locator("main img, main script, main a").count() == 0
    assert page.get_by_text(hostile).count() >= 4
    assert page.title() == "pymtp: chat"


def test_very_long_answer_is_shown_completely(page: Page, scripted: ScriptedServer) -> None:
    line = "def f(x):  # 😀 *and* so on\n"
    text = "```python\n" + line * 3000 + "```\n" + "word " * 4000
    chunks = [delta(content=text[i : i + 50]) for i in range(0, len(text), 50)]
    scripted.answers.append([*(sse(chunk) for chunk in chunks), sse(delta("stop")) + DONE])
    ask(page)
    ended(page)
    assert page.locator(".content code").text_content() == line * 3000
    assert page.locator(".content p").text_content() == "word " * 4000
