"""What a prefix bench came to: tokens read, seconds to the first token, memory; as tables, Markdown, CSV and JSON, and
back from JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.prefix import Group, Measurement, Saved
from pymtp.bench.report import Lines, Record, Spread, figures, run_with
from pymtp.bench.traces import NAMES

FEW = 24  # requests of a trace, of which each is shown
MIB = 2**20
EXPLAINED = (
    "new: tokens that no text before begins with: what would be read if all were kept. read: with prefixes kept; "
    "without, all tokens are read. beyond: the most that a request read beyond what was new. first token: seconds from "
    "a request to it; medians of all requests. of none: ratio to the same request with cache_prompt=False, right "
    "beside it. of all: the seconds to all first tokens together, likewise. memory: of the host for prefixes, the most."
)


@dataclass(frozen=True)
class Cell:
    """All measurements of one trace. See EXPLAINED.

    prompt, unseen: tokens of all requests in a round. read: of them, by round. first_token, first_token_none: seconds.
    of_none: ratios by request, over all rounds. of_all: by round. differing: texts that differ, of `texts`.
    cache_bytes: the budget; None for an LLM's own. saved: medians. from_disk: seconds to load a prefix and come to the
    first token, over those without.
    """

    trace: str
    measurements: int
    requests: int
    prompt: int
    unseen: int
    read: Spread | None
    beyond: int
    first_token: Spread | None
    first_token_none: Spread | None
    of_none: Spread | None
    of_all: Spread | None
    nbytes: int
    cache_bytes: int | None
    evicted: int
    texts: int
    differing: int
    saved: Saved | None
    from_disk: Spread | None


@dataclass(frozen=True)
class Row:
    """A request of a trace; medians over the rounds. of_first: seconds to its first token over those of the trace's
    first request, with prefixes kept."""

    trace: str
    number: int
    prompt: int
    unseen: int
    read: int
    first_token: float
    first_token_none: float
    of_none: float
    of_first: float


@dataclass(frozen=True)
class Report(Record[Measurement]):
    """A run, a cell for each trace, and a row for each request of a short one."""

    def cells(self) -> list[Cell]:
        """In the order of NAMES."""
        return [_cell(several) for several in self._by_trace()]

    def rows(self) -> list[Row]:
        """Of traces with few requests."""
        short = [several for several in self._by_trace() if 1 < len(several[0].prompt) <= FEW]
        return [_row(several, i) for several in short for i in range(len(several[0].prompt))]

    def _by_trace(self) -> list[list[Measurement]]:
        found = [[m for m in self.measurements if m.trace == name] for name in NAMES]
        return [several for several in found if several]


def _cell(several: Sequence[Measurement]) -> Cell:
    first = several[0]
    saved = [m.saved for m in several if m.saved is not None]
    pairs = [(kept, none) for m in several for kept, none in zip(m.first_token, m.first_token_none, strict=True)]
    return Cell(
        trace=first.trace,
        measurements=len(several),
        requests=len(first.prompt),
        prompt=sum(first.prompt),
        unseen=sum(first.unseen),
        read=Spread.of([sum(m.read) for m in several]),
        beyond=max(read - new for m in several for read, new in zip(m.read, m.unseen, strict=True)),
        first_token=Spread.of([kept for kept, _ in pairs]),
        first_token_none=Spread.of([none for _, none in pairs]),
        of_none=Spread.of([kept / none for kept, none in pairs]),
        of_all=Spread.of([sum(m.first_token) / sum(m.first_token_none) for m in several]),
        nbytes=max(m.nbytes for m in several),
        cache_bytes=first.cache_bytes,
        evicted=max(m.figures["evicted"] for m in several),
        texts=sum(len(m.prompt) for m in several),
        differing=sum(len(m.differing) for m in several),
        saved=Saved(
            max(s.nbytes for s in saved), median(s.save_seconds for s in saved), median(s.load_seconds for s in saved)
        )
        if saved
        else None,
        from_disk=Spread.of(
            [(m.saved.load_seconds + m.first_token[0]) / m.first_token_none[0] for m in several if m.saved is not None]
        ),
    )


def _row(several: Sequence[Measurement], i: int) -> Row:
    return Row(
        trace=several[0].trace,
        number=i + 1,
        prompt=several[0].prompt[i],
        unseen=several[0].unseen[i],
        read=max(m.read[i] for m in several),
        first_token=median(m.first_token[i] for m in several),
        first_token_none=median(m.first_token_none[i] for m in several),
        of_none=median(m.first_token[i] / m.first_token_none[i] for m in several),
        of_first=median(m.first_token[i] / m.first_token[0] for m in several),
    )


def as_json(report: Report) -> str:
    """Every measurement, the cells and rows made of them, and what they were made with and on. `load` reads it."""
    return shared.as_json(
        "prefix",
        report,
        cells=[asdict(cell) for cell in report.cells()],
        rows=[asdict(row) for row in report.rows()],
    )


def load(path: Path) -> Report:
    """A report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "prefix",
        lambda whole: Report(**shared.header(whole), measurements=[_measurement(m) for m in whole["measurements"]]),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> Measurement:
    return Measurement(**record | {"saved": None if record["saved"] is None else Saved(**record["saved"])})


def as_csv(report: Report) -> str:
    """A line for each trace. Seconds and bytes."""
    spreads = ("read", "first_token", "first_token_none", "of_none", "of_all", "from_disk")
    return shared.as_csv([_flat(cell, spreads) for cell in report.cells()])


def _flat(cell: Cell, spreads: Sequence[str]) -> dict[str, Any]:
    line = shared.flat(asdict(cell), spreads)
    saved = line.pop("saved") or dict.fromkeys(Saved.__dataclass_fields__)
    return line | {f"saved_{name}": value for name, value in saved.items()}


def tables(report: Report) -> Iterator[Lines]:
    """Tokens; seconds; a prefix from disk; each request of short traces."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return
    title = (
        f"{settings['model']}, sequences: {settings['n_seq_max']}, scale: {settings['scale']:g}, {run_with(settings)}"
    )
    yield Lines(
        f"Tokens read: {title}",
        ("trace", "requests", "tokens", "new", "read", "of all", "beyond", "memory, MiB", "budget, MiB", "evicted"),
        [
            (
                cell.trace,
                str(cell.requests),
                f"{cell.prompt:,}",
                f"{cell.unseen:,}",
                f"{_median(cell.read):,.0f}",
                f"{_median(cell.read) / cell.prompt:.3f}",
                f"{cell.beyond:,}",
                f"{cell.nbytes / MIB:,.1f}",
                "-" if cell.cache_bytes is None else f"{cell.cache_bytes / MIB:,.1f}",
                f"{cell.evicted:,}",
            )
            for cell in cells
        ],
    )
    yield Lines(
        f"First token, seconds: {title}",
        ("trace", "requests", "none", "spread", "cache", "spread", "of none", "spread", "of all", "spread"),
        [
            (
                cell.trace,
                str(cell.requests),
                *figures(cell.first_token_none),
                *figures(cell.first_token),
                *figures(cell.of_none),
                *figures(cell.of_all),
            )
            for cell in cells
        ],
    )
    on_disk = [(cell, cell.saved) for cell in cells if cell.saved is not None]
    if on_disk:
        yield Lines(
            f"A prefix from disk: {title}",
            ("trace", "tokens", "file, MiB", "saving, s", "loading, s", "with the first token, of none", "spread"),
            [
                (
                    cell.trace,
                    f"{cell.prompt:,}",
                    f"{saved.nbytes / MIB:,.1f}",
                    f"{saved.save_seconds:.3f}",
                    f"{saved.load_seconds:.3f}",
                    *figures(cell.from_disk),
                )
                for cell, saved in on_disk
            ],
        )
    if rows := report.rows():
        yield Lines(
            "Each request, medians",
            ("trace", "request", "tokens", "new", "read", "none, s", "cache, s", "of none", "of the first"),
            [
                (
                    row.trace,
                    str(row.number),
                    f"{row.prompt:,}",
                    f"{row.unseen:,}",
                    f"{row.read:,}",
                    f"{row.first_token_none:.3f}",
                    f"{row.first_token:.3f}",
                    f"{row.of_none:.3f}",
                    f"{row.of_first:.3f}",
                )
                for row in rows
            ],
        )


def _median(spread: Spread | None) -> float:
    return spread.median if spread else 0.0


def _notes(report: Report) -> list[str]:
    """What a reader of the tables must know."""
    cells = report.cells()
    texts, differing = sum(cell.texts for cell in cells), sum(cell.differing for cell in cells)
    same = "yes" if not differing else f"no, {differing} differ"
    return [
        *(f"left out: {line}" for line in report.left_out),
        f"same text: {same}, {texts} texts compared with those without prefixes kept",
        f"{shared.SPREAD}. {EXPLAINED}",
        *shared.where_and_what(report),
    ]


def as_markdown(report: Report) -> str:
    """All tables for a document."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: Report) -> Stack:
    """All tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def going_on(group: Group, arm: str) -> str:
    """What is measured now, in a few words."""
    return f"round {group.round + 1}, trace {arm}"


def done(m: Measurement) -> str:
    """A line on one measurement."""
    share = sum(m.first_token) / sum(m.first_token_none)
    text = f"{sum(m.read):,} of {sum(m.prompt):,} tokens read, first tokens in {share:.3f} of the time"
    return f"round {m.round + 1}: {m.trace}: {text}"
