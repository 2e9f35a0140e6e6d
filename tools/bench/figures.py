"""Compare the numbers of README.md and docs/ with the files of benchmarks/ that they are from, or write them anew.

    pip install jmespath typer
    python tools/bench/figures.py             # shows the numbers that differ; exit code 1 if any does
    python tools/bench/figures.py --write     # takes them from the files
    python tools/bench/figures.py --unmarked  # shows the decimal fractions that are of no file

A comment that is not shown follows a number, with the file, an expression and a format of Python:

    3.23<!-- server.json: series[0].median_ratio.pymtp: .2f -->

The expression is one of JMESPath (https://jmespath.org), with three more functions: `median(array)`, `ratio(a, b)`,
which is a / b, and `only(array)`, the element of an array that has one. In a table it has no |, which would end a cell.

Each decimal fraction of a page is marked so, unless it is a version, a size of a model or a temperature ("vLLM 0.28",
"0.8B", "T = 0.7"), in code, in the address of a link, or in a paragraph, list or table after a comment that says what
it is instead:

    <!-- no measurement: sizes of files, by `pymtp info --memory` -->
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import jmespath
import jmespath.exceptions
import jmespath.functions
import typer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
MARK = re.compile(
    r"(?P<number>(?:(?<=[ |(])-)?\d[\d,.]*%?)?<!-- (?P<file>[\w./-]+\.json): (?P<expression>[^\n]+?): (?P<form>\S*) -->"
)
FRACTION = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\d.])")
DECLARED = re.compile(r"^ *<!-- no measurement: [^\n]+? -->\n\n?(?:[^\n]+(?:\n|\Z))*", re.M)
NO_PROSE = re.compile(r"^( *)```.*?^\1```$|<!--.*?-->|`[^`\n]*`|\]\([^)\n]*\)|(?<=\n\n)(?: {4}[^\n]*\n?)+", re.M | re.S)
NAMED = re.compile(
    r"(?:Qwen|Python|NumPy|CUDA|vLLM|docs|lavapipe|qemu|HTTP/|arXiv) ?[\d.]+(?:(?:,| and| or|, and) \d\.\d)*"
    r"|[\d.]+(?:B\b| million parameters)"
    r"|(?:T =|temperatures?(?: of)?) [\d.]+",
    re.I,
)


class FigureError(ValueError):
    """A comment whose number cannot be found."""


class Functions(jmespath.functions.Functions):
    """The functions of expressions."""

    @jmespath.functions.signature({"types": ["array-number"]})
    def _func_median(self, numbers: list[float]) -> float | None:
        return statistics.median(numbers) if numbers else None

    @jmespath.functions.signature({"types": ["array"]})
    def _func_only(self, elements: list[Any]) -> Any:
        return elements[0] if len(elements) == 1 else None

    @jmespath.functions.signature({"types": ["number"]}, {"types": ["number"]})
    def _func_ratio(self, one: float, other: float) -> float | None:
        return one / other if other else None


OPTIONS = jmespath.Options(custom_functions=Functions())


@cache
def content(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def right_number(file: str, expression: str, form: str) -> str:
    """Return the number of an expression, in its format. Raises FigureError if there is none."""
    if not (FOLDER / file).is_file():
        raise FigureError(f"there is no {file}")
    try:
        value = jmespath.search(expression, content(FOLDER / file), OPTIONS)
    except jmespath.exceptions.JMESPathError as error:
        raise FigureError(f"{expression}: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FigureError(f"{expression} of {file} is {value!r:.80}, not a number")
    try:
        return format(value, form)
    except ValueError as error:
        raise FigureError(f"{form!r} is not a format of a number") from error


def rewrite(text: str, differ: Callable[[int, str, str], None] = lambda *_: None) -> str:
    """Return a page with the numbers of the files. differ: gets line, number and right number of each that differs.

    Raises FigureError for a comment whose number cannot be found, or that follows no number.
    """

    def replace(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 1
        try:
            right = right_number(match["file"], match["expression"], match["form"])
            if match["number"] is None:
                raise FigureError("no number stands before the comment")
            if "|" in match["expression"] and text[text.rfind("\n", 0, match.start()) + 1] == "|":
                raise FigureError(f"the | in {match['expression']} ends a cell of the table")
        except FigureError as error:
            raise FigureError(f"line {line}: {error}") from error
        if right != match["number"]:
            differ(line, match["number"], right)
        return right + match[0][match[0].index("<!--") :]

    return MARK.sub(replace, text)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blank(match: re.Match[str]) -> str:
    """Return the line ends of a match, so that numbers of lines stay the same."""
    return " " + "\n" * match[0].count("\n")


def unmarked(text: str) -> list[tuple[int, str]]:
    """Return the lines and decimal fractions that are neither marked, nor declared as no measurement, nor a name."""
    for pattern in (DECLARED, MARK, NO_PROSE, NAMED):
        text = pattern.sub(blank, text)
    return [(n, number) for n, line in enumerate(text.splitlines(), 1) for number in FRACTION.findall(line)]


def main(
    files: Annotated[
        list[Path] | None, typer.Argument(exists=True, help="Pages; README.md and docs/ if none is named.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the numbers of the files into the pages.")] = False,
    count: Annotated[bool, typer.Option("--unmarked", help="Show the decimal fractions without a file.")] = False,
) -> None:
    """Compare the numbers of pages with their files."""
    chosen: Iterable[Path] = files or pages()
    differing = 0
    for page in chosen:
        text = page.read_text(encoding="utf-8")
        if count:
            for line, number in unmarked(text):
                differing += 1
                typer.echo(f"{page}:{line}: {number} is of no file")
            continue

        def differ(line: int, number: str, right: str, page: Path = page) -> None:
            nonlocal differing
            differing += 1
            typer.echo(f"{page}:{line}: {number} is {right} in the file")

        try:
            new = rewrite(text, differ=differ)
        except FigureError as error:
            typer.echo(f"{page}: {error}", err=True)
            raise typer.Exit(2) from error
        if write and new != text:
            page.write_text(new, encoding="utf-8")
    if differing and not write:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
