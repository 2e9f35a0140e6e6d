"""Report of a prefix bench: prefilled tokens, times and memory, as tables, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.prefix import PrefixGroup, PrefixMeasurement, Saved
from pymtp.bench.report import Record, Spread, TextTable, describe_settings, format_spread
from pymtp.bench.traces import NAMES

MAX_SHOWN = 24  # a table shows each request of a trace that has at most this number of requests
MIB = 2**20
EXPLAINED = (
    "new: tokens after the longest prefix that a prompt shares with an earlier text; a cache without limits would "
    "prefill only these tokens. read: tokens that were prefilled with a prefix cache; without a cache, all tokens are. "
    "of all (tokens): read relative to all tokens of the prompts. beyond: the largest number of tokens that a request "
    "read in addition to its new ones. first token: seconds from a request to its first token, as a median of all "
    "requests. of none: time to the first token relative to the same request with cache_prompt=False in the same "
    "round. of all (seconds): sum of all times to a first token, relative to their sum with cache_prompt=False. "
    "memory: the largest host memory of cached prefixes."
)


@dataclass(frozen=True)
class PrefixCell:
    """All measurements of one trace. See EXPLAINED.

    measurements: number of measurements.
    requests: number of requests of the trace.
    prompt, unseen: total tokens of all prompts in one bench round, and how many of them are new.
    read: total tokens that were prefilled with the cache in one bench round.
    beyond: largest number of tokens that a request read in addition to its new ones.
    first_token, first_token_none: seconds to the first token of a request, with and without the cache.
    of_none: ratio of these two times, for each request of each bench round.
    of_all: ratio of the sums of these two times over all requests, for each bench round.
    nbytes: largest size of the cache.
    cache_bytes: limit of the cache; None for LLM's default.
    evicted: largest number of evictions in a bench round.
    texts, differing: number of completions, and how many of them differ between the two LLMs.
    saved: largest size of the prefix file, and median times; None for a trace without one.
    from_disk: time to load the prefix file and generate the first token, relative to that of a whole prefill.
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
class RequestRow:
    """One request of a trace. Times and ratios are medians over the bench rounds.

    number: position of the request in the trace, from 1.
    prompt, unseen: length of the prompt in tokens, and how many of them are new.
    read: largest number of tokens that were prefilled with the cache.
    first_token, first_token_none: seconds to the first token, with and without the cache.
    of_none: ratio of these two times.
    of_first: time to the first token relative to that of the trace's first request, both with the cache.
    """

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
class PrefixReport(Record[PrefixMeasurement]):
    """All measurements of a prefix bench, a cell for each trace, and a row for each request of short traces."""

    def cells(self) -> list[PrefixCell]:
        """Return a cell for each trace, in the order of NAMES."""
        return [_cell(measurements) for measurements in self._by_trace()]

    def rows(self) -> list[RequestRow]:
        """Return a row for each request of each trace that has 2 to MAX_SHOWN requests."""
        short = [ms for ms in self._by_trace() if 1 < len(ms[0].prompt) <= MAX_SHOWN]
        return [_row(measurements, i) for measurements in short for i in range(len(measurements[0].prompt))]

    def _by_trace(self) -> list[list[PrefixMeasurement]]:
        by_trace = [[m for m in self.measurements if m.trace == name] for name in NAMES]
        return [measurements for measurements in by_trace if measurements]


def _cell(measurements: Sequence[PrefixMeasurement]) -> PrefixCell:
    first = measurements[0]
    saved = [m.saved for m in measurements if m.saved is not None]
    pairs = [
        (cached, uncached)
        for m in measurements
        for cached, uncached in zip(m.first_token, m.first_token_none, strict=True)
    ]
    return PrefixCell(
        trace=first.trace,
        measurements=len(measurements),
        requests=len(first.prompt),
        prompt=sum(first.prompt),
        unseen=sum(first.unseen),
        read=Spread.of([sum(m.read) for m in measurements]),
        beyond=max(read - new for m in measurements for read, new in zip(m.read, m.unseen, strict=True)),
        first_token=Spread.of([cached for cached, _ in pairs]),
        first_token_none=Spread.of([uncached for _, uncached in pairs]),
        of_none=Spread.of([cached / uncached for cached, uncached in pairs]),
        of_all=Spread.of([sum(m.first_token) / sum(m.first_token_none) for m in measurements]),
        nbytes=max(m.nbytes for m in measurements),
        cache_bytes=first.cache_bytes,
        evicted=max(m.figures["evicted"] for m in measurements),
        texts=sum(len(m.prompt) for m in measurements),
        differing=sum(len(m.differing) for m in measurements),
        saved=Saved(
            max(s.nbytes for s in saved), median(s.save_seconds for s in saved), median(s.load_seconds for s in saved)
        )
        if saved
        else None,
        from_disk=Spread.of(
            [
                (m.saved.load_seconds + m.first_token[0]) / m.first_token_none[0]
                for m in measurements
                if m.saved is not None
            ]
        ),
    )


def _row(measurements: Sequence[PrefixMeasurement], i: int) -> RequestRow:
    return RequestRow(
        trace=measurements[0].trace,
        number=i + 1,
        prompt=measurements[0].prompt[i],
        unseen=measurements[0].unseen[i],
        read=max(m.read[i] for m in measurements),
        first_token=median(m.first_token[i] for m in measurements),
        first_token_none=median(m.first_token_none[i] for m in measurements),
        of_none=median(m.first_token[i] / m.first_token_none[i] for m in measurements),
        of_first=median(m.first_token[i] / m.first_token[0] for m in measurements),
    )


def as_json(report: PrefixReport) -> str:
    """Format the report as JSON for `load`: measurements, table entries, table rows, settings and environment."""
    return shared.as_json(
        "prefix",
        report,
        cells=[asdict(cell) for cell in report.cells()],
        rows=[asdict(row) for row in report.rows()],
    )


def load(path: Path) -> PrefixReport:
    """Load a report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "prefix",
        lambda whole: PrefixReport(
            **shared.header(whole), measurements=[_measurement(m) for m in whole["measurements"]]
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> PrefixMeasurement:
    return PrefixMeasurement(**record | {"saved": None if record["saved"] is None else Saved(**record["saved"])})


def as_csv(report: PrefixReport) -> str:
    """Format the table as CSV, a line for each trace, with times in seconds and memory in bytes."""
    spreads = ("read", "first_token", "first_token_none", "of_none", "of_all", "from_disk")
    return shared.as_csv([_flat(cell, spreads) for cell in report.cells()])


def _flat(cell: PrefixCell, spreads: Sequence[str]) -> dict[str, Any]:
    line = shared.flatten(asdict(cell), spreads)
    saved = line.pop("saved") or dict.fromkeys(Saved.__dataclass_fields__)
    return line | {f"saved_{name}": value for name, value in saved.items()}


def tables(report: PrefixReport) -> Iterator[TextTable]:
    """Build the tables: tokens read, times to the first token, the prefix file, and each request of short traces."""
    cells, settings = report.cells(), report.settings
    if not cells:
        return
    title = (
        f"{settings['model']}, sequences: {settings['n_seq_max']}, scale: {settings['scale']:g}, "
        f"{describe_settings(settings)}"
    )
    yield TextTable(
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
    yield TextTable(
        f"First token, seconds: {title}",
        ("trace", "requests", "none", "spread", "cache", "spread", "of none", "spread", "of all", "spread"),
        [
            (
                cell.trace,
                str(cell.requests),
                *format_spread(cell.first_token_none),
                *format_spread(cell.first_token),
                *format_spread(cell.of_none),
                *format_spread(cell.of_all),
            )
            for cell in cells
        ],
    )
    on_disk = [(cell, cell.saved) for cell in cells if cell.saved is not None]
    if on_disk:
        yield TextTable(
            f"A prefix from disk: {title}",
            ("trace", "tokens", "file, MiB", "saving, s", "loading, s", "with the first token, of none", "spread"),
            [
                (
                    cell.trace,
                    f"{cell.prompt:,}",
                    f"{saved.nbytes / MIB:,.1f}",
                    f"{saved.save_seconds:.3f}",
                    f"{saved.load_seconds:.3f}",
                    *format_spread(cell.from_disk),
                )
                for cell, saved in on_disk
            ],
        )
    if rows := report.rows():
        yield TextTable(
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


def _notes(report: PrefixReport) -> list[str]:
    """Return the notes to print below the tables: missing measurements, compared texts, explanations, environment."""
    cells = report.cells()
    texts, differing = sum(cell.texts for cell in cells), sum(cell.differing for cell in cells)
    same = "yes" if not differing else f"no, {differing} differ"
    return [
        *(f"left out: {line}" for line in report.left_out),
        f"same text: {same}, {texts} texts compared with those generated without a prefix cache",
        f"{shared.SPREAD}. {EXPLAINED}",
        *shared.describe_environment(report),
    ]


def as_markdown(report: PrefixReport) -> str:
    """Format all tables as Markdown."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: PrefixReport) -> Stack:
    """Format all tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def describe_start(group: PrefixGroup, arm: str) -> str:
    """Describe a measurement that is about to start, for the progress bar. arm: name of the trace."""
    return f"round {group.round + 1}, trace {arm}"


def describe_result(m: PrefixMeasurement) -> str:
    """Describe a finished measurement in one line."""
    share = sum(m.first_token) / sum(m.first_token_none)
    text = f"{sum(m.read):,} of {sum(m.prompt):,} tokens read, first tokens in {share:.3f} of the time"
    return f"round {m.round + 1}: {m.trace}: {text}"
