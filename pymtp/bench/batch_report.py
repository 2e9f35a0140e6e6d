"""Report of a batch bench: medians and paired ratios by acceptance, number of sequences and arm, and delays.

An arm is one of the compared variants, see ARMS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from pymtp.bench.batch import ARMS, FORCED, REAL, Arrival, BatchMeasurement, Delays
from pymtp.bench.decode import AUTO, HEAD, NONE, format_temperature
from pymtp.bench.paired import Group
from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.report import (
    DRAFTS,
    Report,
    describe_settings,
    drafts_by_source,
    forced_note,
    group_by,
    paired_ratios,
    source_columns,
    synthetic_note,
)
from pymtp.bench.table import SPREAD, Cell, Column, Spread, Table

ARRIVING = (
    "a prompt arrives: ubatch: time of one ubatch of the prompt alone. round: time of one round of the running "
    "requests alone. gap: the longest time between two pieces of a running request while the prompt is prefilled. "
    "ratio: gap relative to the time of one ubatch and one round together."
)


@dataclass(frozen=True)
class BatchReport(Report):
    """All measurements of a batch bench.

    A cell is one arm with n sequences at one acceptance. Tokens, rows, launches and step seconds are means per decoding
    round; drafts are per round and sequence; delays are medians of those in Delays, in seconds; the times of an
    arriving prompt are medians of those in Arrival. Ratios are None if there is no measurement to compare with.

    predicted: by kind of forced text, the share of its tokens that a look-up predicts, see predicted_share.
    """

    measurements: list[BatchMeasurement]
    predicted: dict[str, float] = field(default_factory=dict)

    bench = "batch"
    spreads = ("speed", "of_none", "of_head", "of_best", "of_one", "arriving")
    explained = (
        "tokens/s: generated tokens of all requests, per second from the first arrival to the last token, prefills "
        "included; with forced text, decoding alone. of none: speed relative to the measurement without drafts in the "
        "same round; of head: relative to drafts of the head alone. of best: speed relative to the fixed number of "
        "drafts, or none, that has the highest median speed. of one: speed relative to the same number of drafts with "
        "the fewest sequences. first token: time from a request's arrival to its first token. gap: time between two "
        "pieces of a request. rows: rows of a verification of all sequences, padding included. from text: share of "
        "verified drafts that came from text. launches: llama_decode calls of target + head per round, prefills "
        "included. python: share of the engine's time that was not in native code."
    )

    def cells(self) -> list[Cell]:
        """Return the cells, sorted by acceptance, then by number of sequences, then in the order of ARMS."""
        acceptances = list(self.settings["acceptance"])
        by_cell = group_by(
            self.measurements,
            lambda m: (m.acceptance, m.n, m.arm),
            lambda key: (acceptances.index(key[0]), key[1], ARMS.index(key[2])),
        )
        return [_cell(*key, by_cell) for key in by_cell]

    def csv_lines(self) -> list[dict[str, Any]]:
        """Return a line per cell, with delays in seconds."""
        lines = super().csv_lines()
        for line in lines:
            for name in ("first_token", "gaps"):
                delays = line.pop(name)
                line |= {f"{name}_{n}_seconds": delays and getattr(delays, n) for n in ("median", "p99", "longest")}
        return lines

    def compare_texts(self) -> tuple[int, list[BatchMeasurement]]:
        """Compare each completion with the first measured completion of the same request and bench round.

        Return the number of comparisons, and the measurements in which a completion differs. Completions of synthetic
        acceptance are not compared.
        """
        first: dict[tuple[int, int], str] = {}
        compared, differing = 0, []
        for m in self.measurements:
            if m.acceptance not in (REAL, FORCED):
                continue
            same = True
            for i, text in enumerate(m.digests):
                compared += (m.round, i) in first
                same &= first.setdefault((m.round, i), text) == text
            if not same:
                differing.append(m)
        return compared, differing

    def tables(self) -> list[Table]:
        """Build the tables: speeds, delays and rounds by acceptance; then the arrival of a prompt, if measured."""
        settings, cells, tables = self.settings, self.cells(), list[Table]()
        arrive = "at once" if settings["rate"] is None else f"{settings['rate']:g} a second"
        length = f"{settings['prompt_tokens']} + {settings['tokens']} tokens"
        if settings.get("forced_text"):
            length = f"{', '.join(settings['kinds'])}, up to {settings['tokens']} tokens"
        title = (
            f"{settings['model']}, requests a sequence: {settings['requests']}, {arrive}, {length}, "
            f"{format_temperature(settings['temperature'])}, {describe_settings(settings)}"
        )
        keys = [Column("n", "n"), Column("drafts", "arm")]
        names = {"tokens/s": "speed", "of none": "of_none", "of best": "of_best", "of one": "of_one"}
        if any(cell.of_head for cell in cells):
            names["of head"] = "of_head"
        speeds = [*keys, *(Column(heading, name, SPREAD) for heading, name in names.items())]
        waits = [
            *keys,
            _milliseconds("first token", lambda c: c.first_token and c.first_token.median),
            _milliseconds("99th", lambda c: c.first_token and c.first_token.p99),
            _milliseconds("gap", lambda c: c.gaps and c.gaps.median),
            _milliseconds("99th", lambda c: c.gaps and c.gaps.p99),
            _milliseconds("longest", lambda c: c.gaps and c.gaps.longest),
        ]
        rounds = [
            *keys,
            Column("verified", "drafts", ".2f"),
            Column("accepted", lambda c: c.accepted if c.drafts else None, ".0%"),
            *source_columns(cells),
            Column("tokens", "tokens", ".2f"),
            Column("rows", "rows", ".1f"),
            Column("launches", lambda c: f"{c.target_launches:.2f}+{c.draft_launches:.2f}"),
            _milliseconds("step, ms", lambda c: c.step_seconds, ".2f"),
            Column("python", "python", ".1%"),
        ]
        for acceptance in settings["acceptance"]:
            here, shown = [c for c in cells if c.acceptance == acceptance], describe_acceptance(acceptance)
            if here:
                tables.append(Table(f"Requests, {shown}: {title}", speeds, here))
                tables.append(Table(f"Waiting, {shown}, ms", waits, here))
                tables.append(Table(f"A round, {shown}", rounds, here))
        if arrived := [cell for cell in cells if cell.arriving]:
            columns = [
                *keys,
                Column("acceptance", "acceptance"),
                _milliseconds("ubatch", lambda c: c.ubatch_seconds),
                _milliseconds("round", lambda c: c.round_seconds),
                _milliseconds("gap", lambda c: c.longest_gap),
                Column("ratio", "arriving", SPREAD),
            ]
            tables.append(Table(f"A prompt of {settings['arriving']} tokens arrives, ms: {title}", columns, arrived))
        return tables

    def findings(self) -> list[str]:
        """Return notes about synthetic acceptance, the texts that were compared, and an arriving prompt."""
        accepted = self.settings["acceptance"]
        notes = synthetic_note([float(acceptance) for acceptance in accepted if acceptance not in (REAL, FORCED)])
        notes += forced_note(self.settings, self.predicted)
        if REAL in accepted or FORCED in accepted:
            notes.append(_text_note(*self.compare_texts()))
        return [*notes, *([ARRIVING] if self.settings["arriving"] else [])]

    def plot(self, path: Path) -> None:
        """Draw a column of two panels for each acceptance, speeds and gaps, with a line for each number of drafts."""
        cells = self.cells()
        columns = [a for a in self.settings["acceptance"] if any(cell.acceptance == a for cell in cells)]
        heights, size = {"height_ratios": (3, 2)}, (1 + 4.5 * len(columns), 5.8)
        with saved_figure(path, 2, len(columns), sharey="row", figsize=size, gridspec_kw=heights) as panels:
            for i, acceptance in enumerate(columns):
                column = [cell for cell in cells if cell.acceptance == acceptance]
                for n, arm in enumerate(ARMS):
                    own = [cell for cell in column if cell.arm == arm]
                    error_bar_line(panels[0][i], [(cell.n, cell.speed) for cell in own], label=arm, color=f"C{n}")
                    gaps = [(cell.n, 1e3 * cell.gaps.p99) for cell in own if cell.gaps]
                    x, y = [x for x, _ in gaps], [y for _, y in gaps]
                    panels[1][i].plot(x, y, marker="o", markersize=4, color=f"C{n}")
                ticks = sorted({cell.n for cell in column})
                for axes in (panels[0][i], panels[1][i]):
                    axes.set_xscale("log", base=2)
                    axes.set_xticks(ticks, list(map(str, ticks)))
                    axes.set_xlabel("sequences")
                panels[0][i].set_title(describe_acceptance(acceptance))
            panels[0][0].set(ylabel="all requests, tokens/s", ylim=(0, None))
            panels[0][0].legend(fontsize="small", title="drafts")
            panels[1][0].set(ylabel="gap, 99th of 100, ms", ylim=(0, None))

    @staticmethod
    def describe_start(group: Group, arm: str) -> str:
        """Describe a measurement that is about to start, for the progress bar."""
        acceptance, n = group.cell
        return f"n = {n}, {describe_acceptance(acceptance)}, {arm}"

    @staticmethod
    def describe_result(m: BatchMeasurement) -> str:
        """Describe a finished measurement in one line."""
        arrived = f", longest gap {m.arriving.ratio:.2f} times an ubatch and a round" if m.arriving else ""
        result = f"n = {m.n}, {describe_acceptance(m.acceptance)}, {m.arm}: {m.tokens_per_second:.1f}/s"
        return f"round {m.round + 1}: {result}{arrived}"


def _cell(acceptance: str, n: int, arm: str, by_cell: dict[tuple[str, int, str], list[BatchMeasurement]]) -> Cell:
    own = by_cell[acceptance, n, arm]
    fixed = [a for (c, k, a) in by_cell if (c, k) == (acceptance, n) and a not in (HEAD, AUTO)]
    best = max(fixed, key=lambda a: median(m.tokens_per_second for m in by_cell[acceptance, n, a]), default=None)
    fewest = min(k for (c, k, a) in by_cell if (c, a) == (acceptance, arm))
    rounds = sum(m.rounds for m in own)

    def per_round(amount: Callable[[BatchMeasurement], float]) -> float:
        return sum(map(amount, own)) / rounds if rounds else 0.0

    def median_of(value: Callable[[Arrival], float]) -> float | None:
        return median(map(value, arrived)) if arrived else None

    arrived = [m.arriving for m in own if m.arriving is not None]
    drafted, steps = sum(m.drafted for m in own), sum(m.step_seconds for m in own)
    return Cell(
        acceptance=acceptance,
        n=n,
        arm=arm,
        measurements=len(own),
        speed=Spread.of([m.tokens_per_second for m in own]),
        of_none=None if arm == NONE else _speed_ratio(own, by_cell.get((acceptance, n, NONE), [])),
        of_head=None if arm == HEAD else _speed_ratio(own, by_cell.get((acceptance, n, HEAD), [])),
        of_best=None if best is None or arm == best else _speed_ratio(own, by_cell[acceptance, n, best]),
        of_one=None if n == fewest else _speed_ratio(own, by_cell[acceptance, fewest, arm]),
        first_token=_median_delays([m.first_token for m in own]),
        gaps=_median_delays([m.gaps for m in own if m.gaps is not None]),
        # without the first token of each request: the prefill yields it
        tokens=per_round(lambda m: m.tokens - len(m.digests)),
        rows=per_round(lambda m: m.rows),
        target_launches=per_round(lambda m: m.target_launches),
        draft_launches=per_round(lambda m: m.draft_launches),
        drafts=per_round(lambda m: sum(depth * times for depth, times in m.depths.items())),
        accepted=sum(m.accepted for m in own) / drafted if drafted else 0.0,
        **drafts_by_source(*(sum(getattr(m, name) for m in own) for name in DRAFTS)),
        step_seconds=per_round(lambda m: m.step_seconds),
        python=sum(m.python_seconds for m in own) / steps if steps else 0.0,
        arriving=Spread.of([a.ratio for a in arrived]),
        ubatch_seconds=median_of(lambda a: a.ubatch_seconds),
        round_seconds=median_of(lambda a: a.round_seconds),
        longest_gap=median_of(lambda a: a.longest_gap),
    )


def _speed_ratio(own: Sequence[BatchMeasurement], others: Sequence[BatchMeasurement]) -> Spread | None:
    return paired_ratios(own, others, attrgetter("tokens_per_second"), attrgetter("round"))


def _median_delays(delays: Sequence[Delays]) -> Delays | None:
    """Return the median of each field of Delays; None for an empty list."""
    if not delays:
        return None
    return Delays(median(d.median for d in delays), median(d.p99 for d in delays), median(d.longest for d in delays))


def _milliseconds(heading: str, seconds: Callable[[Cell], float | None], form: str = ",.2f") -> Column:
    def value(cell: Cell) -> float | None:
        found = seconds(cell)
        return None if found is None else 1e3 * found

    return Column(heading, value, form)


def describe_acceptance(acceptance: str) -> str:
    """Describe an acceptance: "0.5" → "acceptance 0.5", REAL → "real acceptance", FORCED → "forced text"."""
    words = {REAL: "real acceptance", FORCED: "forced text"}
    return words.get(acceptance, f"acceptance {acceptance}")


def _text_note(compared: int, differing: Sequence[BatchMeasurement]) -> str:
    if not compared:
        return "same text: nothing to compare"
    if not differing:
        return f"same text: yes, {compared} texts compared over numbers of drafts and numbers of sequences"
    where = ", ".join(f"{m.arm} with n = {m.n} in round {m.round + 1}" for m in differing)
    return f"same text: no, {compared} texts compared, these measurements generated other texts: {where}"
