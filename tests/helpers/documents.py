"""The Markdown files of the repository, their headings and links, and their blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

from conftest import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "patches/README.md", "vendor/README.md"))]
DOCUMENTS += [path for pattern in ("*.md", "examples/**/*.md") for path in ROOT.glob(pattern) if path not in DOCUMENTS]

# a block between fences, or lines with an indentation of four after an empty line
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?"
    r"(?:^(?P<indent> *)```(?P<language>\w*)(?: (?P<options>[^\n]*))?\n(?P<fenced>.*?)^(?P=indent)```$"
    r"|(?:(?<=\n\n)|(?<=-->\n))(?P<indented>(?: {4}[^\n]*\n(?:\n+(?= {4}))?)+))",
    flags=re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A block of code. language: that of its fence; `sh` for an indented one. file: the name that its title gives it.

    reason: why it cannot run, from the comment before it `<!-- not run: … -->`.
    """

    page: Path
    line: int
    language: str
    code: str
    file: str | None
    reason: str | None


@cache
def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        indented = match["indented"] is not None
        title = re.search(r'title="([^"]+)"', match["options"] or "")
        found.append(
            Block(
                page,
                text.count("\n", 0, match.start("indented" if indented else "fenced")) + 1,
                "sh" if indented else match["language"] or "none",
                dedent(match["indented"] if indented else match["fenced"]),
                title and title[1],
                match["reason"],
            )
        )
    return found


def without_code(text: str) -> str:
    """Return a Markdown text without its blocks and spans of code, and without comments."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site make of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), flags=re.M)
    found: list[str] = []
    for heading in headings:
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def links(page: Path) -> list[str]:
    """Return the targets of the links and images of a page that are no URLs."""
    text = re.sub(r"`[^`\n]*`", "", without_code(page.read_text(encoding="utf-8")))
    targets = re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text) + re.findall(r'\b(?:src|href)="([^"]+)"', text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]
