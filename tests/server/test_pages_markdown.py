"""Tests of Markdown on the chat page, in a real Chromium: rendering of texts in any pieces, and its cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from helpers.browser import Tab
from helpers.scripted_server import ScriptedServer
from playwright.sync_api import Page

# html: the rendered HTML without the spans of the colours. work: the number of painted characters.
HELPERS = """async () => {
  const { Markdown } = await import("/static/markdown.js");
  const { ColouredText } = await import("/static/coloured_text.js");
  class Counted extends ColouredText {
    work = 0;
    paint(parent, from, to) { this.work += to - from; super.paint(parent, from, to); }
  }
  window.drawn = (pieces) => {
    const [root, text] = [document.createElement("div"), new Counted()];
    const view = new Markdown(root, text);
    for (const [piece, runs] of pieces) { text.append(piece, runs); view.draw(); }
    view.draw(true);
    return { root, text };
  };
  window.html = (pieces) => {
    const { root } = drawn(pieces.map((piece) => [piece, []]));
    for (const span of root.querySelectorAll("span[data-at]")) span.replaceWith(...span.childNodes);
    for (const one of root.querySelectorAll(".katex"))
      (one.closest(".katex-display") ?? one).replaceWith(`⟨${one.querySelector("annotation").textContent}⟩`);
    root.querySelectorAll(".code-head").forEach((head) => head.replaceWith(head.firstChild.textContent + "|"));
    for (const one of root.querySelectorAll("*"))
      for (const name of ["tabindex", "target", "rel", "dir"]) one.removeAttribute(name);
    root.normalize();
    return root.innerHTML;
  };
}"""


@pytest.fixture(scope="module")
def page(new_shared_tab: Callable[..., Tab], scripted_server: ScriptedServer) -> Page:
    page = new_shared_tab().open(scripted_server.url)
    page.evaluate(HELPERS)
    return page


def code(text: str, language: str = "") -> str:
    return f'<div class="code">{language}|<pre><code>{text}</code></pre></div>'


def link(href: str, text: str) -> str:
    return f'<a href="{href}">{text}</a>'


def task(text: str, *, done: bool = False) -> str:
    state = 'checked="" aria-label="done"' if done else 'aria-label="to do"'
    return f'<li class="task"><input type="checkbox" disabled="" {state}>{text}</li>'


LINES = "\n{}\n{}\n"


def math(source: str) -> str:
    return f'<span class="formula">⟨{source}⟩</span>'


DRAWN = {
    "one\ntwo": "<p>one\ntwo</p>",
    "one\n\ntwo\n": "<p>one</p><p>two</p>",
    "# One\n### Two *x*\nthree": "<h3>One</h3><h5>Two <em>x</em></h5><p>three</p>",
    "#no": "<p>#no</p>",
    "*a* **b** ***c*** _d_ __e__ ~~f~~": "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> "
    "<strong>e</strong> <del>f</del></p>",
    "**a *b* c** *d **e***": "<p><strong>a <em>b</em> c</strong> <em>d <strong>e</strong></em></p>",
    "snake_case_name 2 * 3 * 4 **": "<p>snake_case_name 2 * 3 * 4 **</p>",
    r"\*a\* \# \x": r"<p>*a* # \x</p>",
    "`a *b*` ``c`d`` `` ` `` `e": "<p><code>a *b*</code> <code>c`d</code> <code>`</code> `e</p>",
    "*a `*` b*": "<p><em>a <code>*</code> b</em></p>",
    "[a *b*](https://c.d/e)": f"<p>{link('https://c.d/e', 'a <em>b</em>')}</p>",
    '[a](<http://b.c/d e> "f")': f"<p>{link('http://b.c/d%20e', 'a')}</p>",
    "[a](mailto:b@c.d)": f"<p>{link('mailto:b@c.d', 'a')}</p>",
    "see https://a.b/c_d_e(f). <https://g.h>": f"<p>see {link('https://a.b/c_d_e(f)', 'https://a.b/c_d_e(f)')}. "
    f"{link('https://g.h/', 'https://g.h')}</p>",
    "![a](https://b.c/d.png)": f"<p>!{link('https://b.c/d.png', 'a')}</p>",
    "- a\n- b\n  - c\n\n  d\n\ne": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li></ul>"
    "<p>e</p>",
    "1. a\n2. b\n  * c": "<ol><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ol>",
    "7) a\n\n8) b": '<ol start="7"><li><p>a</p></li><li><p>b</p></li></ol>',
    "- a\n+ b": "<ul><li><p>a</p></li></ul><ul><li><p>b</p></li></ul>",
    "born in\n1986. Then": "<p>born in\n1986. Then</p>",
    "> a\nb\n> - c\n\nd": "<blockquote><p>a\nb</p><ul><li><p>c</p></li></ul></blockquote><p>d</p>",
    "a\n---\n***": "<p>a</p><hr><hr>",
    "```python\ndef f():\n\n    *x*\n```\nend": code("def f():\n\n    *x*\n", "python") + "<p>end</p>",
    "~~~\n```\n~~~": code("```\n"),
    "````\n```\n````": code("```\n"),
    "- a\n  ```\n  b\n    c\n  ```\n- d": "<ul><li><p>a</p>" + code("b\n  c\n") + "</li><li><p>d</p></li></ul>",
    "```\nnever ended": code("never ended"),
    "| a | b |\n|---|:-:|\n| `1` | 2\\|3 |\nx": '<div class="table"><table><thead><tr><th>a</th>'
    '<th class="center">b</th></tr></thead>'
    '<tbody><tr><td><code>1</code></td><td class="center">2|3</td></tr></tbody></table></div><p>x</p>',
    "a | b\n--|--:\n1": '<div class="table"><table><thead><tr><th>a</th><th class="right">b</th></tr></thead>'
    "<tbody></tbody></table></div><p>1</p>",
    "a\n|---|---|": "<p>a\n|---|---|</p>",
    "<b>&amp;</b>": "<p>&lt;b&gt;&amp;amp;&lt;/b&gt;</p>",
    "a\u2028b 😀 é": "<p>a\u2028b 😀 é</p>",
    "- [ ] a\n- [x] b *c*\n- [y] d\n- [ ]": f"<ul>{task('<p>a</p>')}{task('<p>b <em>c</em></p>', done=True)}"
    "<li><p>[y] d</p></li><li><p>[ ]</p></li></ul>",
    "$x_i^2$, \\(y\\)\n$$z$$ \\[w_i\\] *$a_b$*": f"<p>{math('x_i^2')}, {math('y')}\n{math('z')} {math('w_i')} "
    f"<em>{math('a_b')}</em></p>",
    "$5 and $6, US$7 and 8$ $ a$ `$b$` \\(c": "<p>$5 and $6, US$7 and 8$ $ a$ <code>$b$</code> (c</p>",
    "$\\foo{$ $\\pmb{x$": "<p>$\\foo{$ $\\pmb{x$</p>",
    "a\n$$\nx\n- y\n$$ b": f'<p>a</p><div class="formula">{math(LINES.format("x", "- y"))}</div><p>b</p>',
    "> \\[\n> z\n> = 1\n> \\]": f'<blockquote><div class="formula">{math(LINES.format("z", "= 1"))}</div></blockquote>',
    "$$\nnever ended": '<div class="formula">$$\nnever ended</div>',
    "| $a$ |\n|---|\n| \\(b\\) |": '<div class="table"><table><thead><tr>'
    f"<th>{math('a')}</th></tr></thead><tbody><tr><td>{math('b')}</td></tr></tbody></table></div>",
}


def test_markdown_is_rendered(page: Page) -> None:
    found = page.evaluate("texts => texts.map(text => html([text]))", list(DRAWN))
    assert dict(zip(DRAWN, found, strict=True)) == DRAWN


HOSTILE = [
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "[a](javascript:alert(1)) [b](JavaScript&colon;alert(1)) [c](java\tscript:alert(1)) [d](\x01javascript:alert(1))",
    "[e](data:text/html,<script>alert(1)</script>) [f](vbscript:x) [g](file:///etc/passwd) [h](//evil.example)",
    '<javascript:alert(1)> <https://a"onclick=alert(1)> [i](https://b.c"onmouseover="alert(1))',
    "```<img src=x onerror=alert(1)>\n</code></pre><svg onload=alert(1)>\n```",
    "| <img src=x onerror=alert(1)> |\n|---|\n| [j](javascript:alert(1)) |",
    "# <iframe srcdoc='<script>alert(1)</script>'>\n> <form action=https://evil.example><input onfocus=alert(1)>",
    "![k](javascript:alert(1)) ![l](https://evil.example/pixel.png) <style>@import 'https://evil.example';</style>",
    "[m][n]\n\n[n]: javascript:alert(1)\n\n<a href=javascript:alert(1)>o</a>",
]
FORMULAS = [
    r"$\href{javascript:alert(1)}{x}$ $\url{javascript:alert(1)}$ $\includegraphics{https://evil.example/a.png}$",
    r"$\htmlClass{error}{b}$ $\htmlId{question}{c}$ $\htmlStyle{position: fixed}{d}$ $\htmlData{at=1}{e}$",
    r"$\def\a{\a\a}\a$ $\pmb{f}$ $\fcolorbox{red}{blue}{g}$ $\text{<img src=x onerror=alert(1)>}$",
    r"$\text{<a href=javascript:alert(1)>}$ $\rule{9999em}{9999em}$",
]


def test_formulas_cannot_do_harm(page: Page) -> None:
    for text in FORMULAS:
        page.evaluate("text => document.querySelector('.turns').replaceChildren(drawn([[text, []]]).root)", text)
        assert page.locator(".turns .katex").count() >= 2
        assert page.locator(".turns").locator("a, img, script, [id], .error, [data-at]:not(p > span)").count() == 0
        assert page.evaluate("document.querySelector('.turns .rule')?.getBoundingClientRect().width ?? 0") < 1000


MADE_OF = {
    "a",
    "b",
    "blockquote",
    "button",
    "code",
    "div",
    "em",
    "h3",
    "p",
    "pre",
    "span",
    "table",
    "tbody",
    "td",
    "th",
}
MADE_OF |= {"thead", "tr"}


def test_hostile_markdown_is_rendered_as_text(page: Page) -> None:
    found = page.evaluate(
        """texts => texts.map((text) => {
          const { root } = drawn([...text].map((c) => [c, []]));
          document.body.append(root);
          const all = [...root.querySelectorAll("*")];
          return { tags: all.map((one) => one.localName), hrefs: all.map((one) => one.getAttribute("href")),
                   names: all.flatMap((one) => one.getAttributeNames()), shown: root.textContent };
        })""",
        HOSTILE,
    )
    for text, made in zip(HOSTILE, found, strict=True):
        assert set(made["tags"]) <= MADE_OF, text
        assert set(made["names"]) <= {"class", "tabindex", "type", "data-at", "dir", "href", "target", "rel"}, text
        assert all(href is None or href.startswith("https://") for href in made["hrefs"]), text
        assert "alert" not in text or "alert(1)" in made["shown"], text


# Texts whose elements would be nested so deep that the browser's tab would crash, and one that took minutes.
NESTED = [">" * 5000 + " x", "- + " * 2000 + "x", "$$\n" + "x^{" * 350 + "x" + "}" * 350 + "\n$$"]
NESTED += ["a\n|-" + " " * 200_000 + "x", "$$\n\\def\\a#1{\\sqrt{#1}}" + "\\a{" * 400 + "x" + "}" * 400 + "\n$$"]


def test_malign_text_neither_crashes_nor_stops_the_browser(page: Page) -> None:
    for text in NESTED:
        page.evaluate("text => document.querySelector('.turns').replaceChildren(drawn([[text, []]]).root)", text)
        depth = """() => {
          let depth = 0;
          for (let level = [document.querySelector(".turns")]; level.length; depth++)
            level = level.flatMap((one) => [...one.children]);
          return depth;
        }"""
        assert page.evaluate(depth) < 500
        assert "x" in page.locator(".turns").inner_text()


def texts(n: int) -> list[str]:
    """Return n random texts that consist of Markdown's constructs."""
    marks = ["$", "$$", "\\(", "\\)", "\\[", "\\]", "[ ] ", "[x] ", "[x", "$\n"]
    marks += [
        "*",
        "**",
        "_",
        "`",
        "``",
        "```",
        "~~~",
        "~~",
        ">",
        "#",
        "|",
        "|-|",
        "---",
        "[",
        "](",
        ")",
        "<",
        "\\",
        "-",
    ]
    blanks = ["\n"] * 6 + ["\n\n", " ", "  ", "    ", "\t", "\r", "\u2028"]
    parts = [*marks, *blanks, "- ", "1. ", "> ", "1.", ".", "h", "http://x", "😀", "é", "a", "a b "]
    rng = random.Random(18)
    return ["".join(rng.choices(parts, k=rng.randint(1, 30))) for _ in range(n)]


def pieces_of(text: str, rng: random.Random, most: int) -> list[str]:
    found = []
    while text:
        n = rng.randint(1, most)
        found.append(text[:n])
        text = text[n:]
    return found


def test_markdown_rendering_does_not_depend_on_the_pieces(page: Page) -> None:
    rng = random.Random(1)
    cases = [[text, pieces_of(text, rng, rng.choice((1, 4, 12)))] for text in [*DRAWN, *HOSTILE, *texts(1500)]]
    differing = page.evaluate("cases => cases.filter(([text, pieces]) => html([text]) !== html(pieces))", cases)
    assert differing == []


def test_each_character_has_the_colour_of_its_origin(page: Page) -> None:
    rng = random.Random(2)
    for text in [*DRAWN, *texts(60)]:
        steps: list[int] = []
        pieces: list[Any] = []
        for piece in pieces_of(text, rng, 9):
            runs = [[len(part), rng.randint(0, 7)] for part in pieces_of(piece, rng, 3)]
            steps += [step for n, step in runs for _ in range(n)]
            pieces.append([piece, runs])
        spans = page.evaluate(
            """pieces => [...drawn(pieces).root.querySelectorAll("span[data-at]")].map(
                 (span) => [Number(span.dataset.at), span.textContent, span.className])""",
            pieces,
        )
        units = [(c, step) for c, step in zip(text, steps, strict=True) for _ in range(1 + (ord(c) > 0xFFFF))]
        drawn_to = 0
        for at, shown, name in spans:
            assert at >= drawn_to  # the spans are in order, and do not overlap
            drawn_to = at + len(shown.encode("utf-16-le")) // 2
            expected = units[at:drawn_to]
            assert "".join(dict.fromkeys(shown)) == "".join(dict.fromkeys(c for c, _ in expected))
            assert {name} == {f"o{step}" for _, step in expected}


def test_markdown_rendering_takes_time_linear_in_the_length(page: Page) -> None:
    units = ["word *em* text ", "some words here\n", "- item **x**\n", "*never closed ", "[a ", "> > a\n", "`a ``b "]
    for unit in [*units, "```\n" + "x = 1\n" * 50, "| a | b |\n", "a https://b.c d\n\n"]:
        works = []
        for size in (2000, 6000):
            text = (unit * size)[:size]
            pieces = [[text[i : i + 40], [[40, i // 40 % 5]]] for i in range(0, size, 40)]
            works.append(page.evaluate("pieces => drawn(pieces).text.work", pieces))
        assert works[1] < 3.6 * works[0], unit
