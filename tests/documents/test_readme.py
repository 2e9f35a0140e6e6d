"""Tests of the documents: a short README with short sentences, and valid local links and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from helpers.documents import DOCUMENTS, PAGES, README, anchors, links

from pymtp.bench.rows_report import RowsReport

MAX_LINES = 120
MAX_WORDS = 30  # words in a sentence
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest -n auto --dist worksteal"


TUTORIAL = [README, *sorted((ROOT / "docs/tutorial").glob("*.md"))]


def shown(text: str) -> str:
    """Return a Markdown text without comments, which tools read."""
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def prose(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a Markdown text, without code, tables, headings and images."""
    text = shown(text)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^(    .*|\|.*|#.*|!\[.*)$", "", text, flags=re.M)
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
        if words := re.sub(r"^([-*]|\d+\.) ", "", " ".join(block.split())):
            yield words


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of the prose; a link counts as its words, and a piece of code as one word."""
    for block in prose(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", block)
        plain = re.sub(r"`[^`]*`", "code", plain).replace("**", "")
        yield from re.split(r"(?<=[.!?])\s+", plain)


def test_readme_has_at_most_120_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("page", TUTORIAL, ids=lambda page: page.name)
def test_sentences_of_readme_and_tutorial_have_at_most_30_words(page: Path) -> None:
    found = list(sentences(page.read_text(encoding="utf-8")))
    assert len(found) > 15
    assert [sentence for sentence in found if len(sentence.split()) > MAX_WORDS] == []


def test_sentences_splits_prose_without_code() -> None:
    text = (
        "# Title\n\nOne <!-- no -->two\nthree. [Four](a.md) `x y z`!\n\n    no\n\n| no |\n- item one\n- **item** two\n"
    )
    assert list(sentences(text)) == ["One two three.", "Four code!", "item one", "item two"]


def test_readme_has_the_command_that_runs_the_tests() -> None:
    assert f"    {TEST_COMMAND}\n" in README.read_text(encoding="utf-8")


def test_documents_never_install_pymtp_from_the_package_index() -> None:
    install = re.compile(r"pip install[^\n]*[ '\"]pymtp\b(?!/)(?!` from the public index is another project)[^\n]*")
    files = [*PAGES, *(ROOT / "pymtp").rglob("*.py")]
    assert [(file, line) for file in files for line in install.findall(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_point_to_existing_files_and_headings(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


@pytest.mark.parametrize("weights", ["q4_0", "q4_k", "q8_0"])
def test_table_of_rows_in_the_docs_matches_the_bench_output(weights: str) -> None:
    report = RowsReport.load(ROOT / f"benchmarks/rows_{weights}.json")
    headings, printed = next((t.headings, t.rows[0]) for t in report.tables() if "processor" in t.headings)
    lines = shown((ROOT / "docs/reference/performance.md").read_text(encoding="utf-8")).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| weights | one row, ms |"))
    row = next(line for line in lines[at:] if line.startswith(f"| {weights.upper()} |"))
    told = dict(zip(*([cell.strip() for cell in line.split("|")] for line in (lines[at], row)), strict=True))
    expected = dict(zip(headings, printed, strict=True))
    for column in ("2 rows", "4 rows", "8 rows"):
        assert told[column] == expected[column], column


def test_index_of_the_docs_lists_every_page() -> None:
    index = {(ROOT / "docs" / target).resolve() for target in links(ROOT / "docs/README.md")}
    tutorial = {(ROOT / "docs/tutorial" / target).resolve() for target in links(ROOT / "docs/tutorial/index.md")}
    assert {page for page in PAGES if page.name != "README.md"} - index - tutorial == set()
