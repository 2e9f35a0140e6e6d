"""Report of a prefix bench: prefilled tokens, times and memory by trace, and by request of short traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pymtp.bench.paired import Group
from pymtp.bench.plot import saved_figure
from pymtp.bench.prefix import PrefixMeasurement, Saved
from pymtp.bench.report import Report, describe_settings
from pymtp.bench.table import SPREAD, Cell, Column, Spread, Table
from pymtp.bench.traces import NAMES

MAX_SHOWN = 24  # a table shows each request of a trace that has at most this number of requests
MIB = 2**20


@dataclass(frozen=True)
class PrefixReport(Report):
    """All measurements of a prefix bench. A cell is a trace, a row is a request of a short trace. See `explained`.

    Of a cell, prompt and unseen are tokens of all prompts in one bench round; of_none is over all requests of all
    bench rounds, of_all over bench rounds; nbytes, evicted and the prefix file's size are the largest; cache_bytes is
    None for LLM's default; from_disk is the time to load the prefix file and generate the first token, relative to that
    of a whole prefill. Times of a row are medians over the bench rounds; read is the largest.
    """

    measurements: list[PrefixMeasurement]

    bench = "prefix"
    spreads = ("read", "first_token", "first_token_none", "of_none", "of_all", "from_disk")
    explained = (
        "new: tokens after the longest prefix that a prompt shares with an earlier text; a cache without limits would "
        "prefill only these tokens. read: tokens that were prefilled with a prefix cache; without a cache, all tokens "
        "are. of all (tokens): read relative to all tokens of the prompts. beyond: the largest number of tokens that a "
        "request read in addition to its new ones. first token: seconds from a request to its first token, as a median "
        "of all requests. of none: time to the first token relative to the same request with cache_prompt=False in the "
        "same round. of all (seconds): sum of all times to a first token, relative to their sum with "
        "cache_prompt=False. memory: the largest host memory of cached prefixes."
    )

    def cells(self) -> list[Cell]:
        """Return a cell for each trace, in the order of NAMES."""
        return [_cell(measurements) for measurements in self._by_trace()]

    def rows(self) -> list[Cell]:
        """Return a row for each request of each trace that has 2 to MAX_SHOWN requests."""
        short = [ms for ms in self._by_trace() if 1 < len(ms[0].prompt) <= MAX_SHOWN]
        return [_row(measurements, i) for measurements in short for i in range(len(measurements[0].prompt))]

    def computed(self) -> dict[str, Any]:
        """Return the cells and the rows."""
        return {**super().computed(), "rows": [vars(row) for row in self.rows()]}

    def csv_lines(self) -> list[dict[str, Any]]:
        """Return a line per trace, with the figures of its prefix file."""
        lines = super().csv_lines()
        for line in lines:
            saved = line.pop("saved")
            line |= {f"saved_{name}": saved and getattr(saved, name) for name in Saved.__dataclass_fields__}
        return lines

    def _by_trace(self) -> list[list[PrefixMeasurement]]:
        by_trace = [[m for m in self.measurements if m.trace == name] for name in NAMES]
        return [measurements for measurements in by_trace if measurements]

    def tables(self) -> list[Table]:
        """Build the tables: tokens read, times to the first token, prefix files, and requests of short traces."""
        cells, settings = self.cells(), self.settings
        if not cells:
            return []
        title = (
            f"{settings['model']}, sequences: {settings['n_seq_max']}, scale: {settings['scale']:g}, "
            f"{describe_settings(settings)}"
        )
        trace = Column("trace", "trace")
        read = [
            trace,
            Column("requests", "requests"),
            Column("tokens", "prompt", ","),
            Column("new", "unseen", ","),
            Column("read", lambda c: _median(c.read), ",.0f"),
            Column("of all", lambda c: _median(c.read) / c.prompt, ".3f"),
            Column("beyond", "beyond", ","),
            Column("memory, MiB", lambda c: c.nbytes / MIB, ",.1f"),
            Column("budget, MiB", lambda c: None if c.cache_bytes is None else c.cache_bytes / MIB, ",.1f"),
            Column("evicted", "evicted", ","),
        ]
        names = {"none": "first_token_none", "cache": "first_token", "of none": "of_none", "of all": "of_all"}
        seconds = [
            trace,
            Column("requests", "requests"),
            *(Column(heading, name, SPREAD) for heading, name in names.items()),
        ]
        on_disk = [
            trace,
            Column("tokens", "prompt", ","),
            Column("file, MiB", lambda c: c.saved.nbytes / MIB, ",.1f"),
            Column("saving, s", lambda c: c.saved.save_seconds, ".3f"),
            Column("loading, s", lambda c: c.saved.load_seconds, ".3f"),
            Column("with the first token, of none", "from_disk", SPREAD),
        ]
        each = [
            trace,
            Column("request", "number"),
            Column("tokens", "prompt", ","),
            Column("new", "unseen", ","),
            Column("read", "read", ","),
            Column("none, s", "first_token_none", ".3f"),
            Column("cache, s", "first_token", ".3f"),
            Column("of none", "of_none", ".3f"),
            Column("of the first", "of_first", ".3f"),
        ]
        tables = [
            Table(f"Tokens read: {title}", read, cells),
            Table(f"First token, seconds: {title}", seconds, cells),
            Table(f"A prefix from disk: {title}", on_disk, [cell for cell in cells if cell.saved is not None]),
            Table("Each request, medians", each, self.rows()),
        ]
        return [table for table in tables if table.figures]

    def findings(self) -> list[str]:
        """Return the note about the texts that were compared."""
        cells = self.cells()
        texts, differing = sum(cell.texts for cell in cells), sum(cell.differing for cell in cells)
        same = f"no, {differing} differ" if differing else "yes"
        return [f"same text: {same}, {texts} texts compared with those generated without a prefix cache"]

    def plot(self, path: Path) -> None:
        """Draw the prefilled and the new tokens of each trace, and its time to the first tokens, as shares."""
        cells = self.cells()
        traces = [cell.trace for cell in cells]
        with saved_figure(path, 1, 2, figsize=(10, 4)) as panels:
            left, right = panels[0]
            left.barh(traces, [_median(cell.read) / cell.prompt for cell in cells], label="read")
            left.barh(traces, [cell.unseen / cell.prompt for cell in cells], height=0.4, label="new")
            left.set(xlabel="tokens, of all", xlim=(0, 1))
            right.barh(traces, [_median(cell.of_all) for cell in cells], color="C2")
            right.axvline(1, color="0.6", linewidth=1)
            right.set(xlabel="seconds to first tokens, of those without cache")
            for panel in (left, right):
                panel.invert_yaxis()
            left.legend(fontsize="small")

    @staticmethod
    def describe_start(group: Group, arm: str) -> str:
        """Describe a measurement that is about to start, for the progress bar. arm: name of the trace."""
        return f"round {group.round + 1}, trace {arm}"

    @staticmethod
    def describe_result(m: PrefixMeasurement) -> str:
        """Describe a finished measurement in one line."""
        share = sum(m.first_token) / sum(m.first_token_none)
        text = f"{sum(m.read):,} of {sum(m.prompt):,} tokens read, first tokens in {share:.3f} of the time"
        return f"round {m.round + 1}: {m.trace}: {text}"


def _cell(measurements: Sequence[PrefixMeasurement]) -> Cell:
    first = measurements[0]
    saved = [(m, m.saved) for m in measurements if m.saved is not None]
    pairs = [pair for m in measurements for pair in zip(m.first_token, m.first_token_none, strict=True)]
    return Cell(
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
            max(s.nbytes for _, s in saved),
            median(s.save_seconds for _, s in saved),
            median(s.load_seconds for _, s in saved),
        )
        if saved
        else None,
        from_disk=Spread.of([(s.load_seconds + m.first_token[0]) / m.first_token_none[0] for m, s in saved]),
    )


def _row(measurements: Sequence[PrefixMeasurement], i: int) -> Cell:
    return Cell(
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


def _median(spread: Spread | None) -> float:
    return spread.median if spread else 0.0
