"""Report of a batch bench: medians and paired ratios, as tables, Markdown, CSV and JSON, and loaded from JSON.

An arm is one of the compared variants, see ARMS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.batch import ARMS, REAL, Arrival, BatchGroup, BatchMeasurement, Delays
from pymtp.bench.decode import AUTO, NONE, format_temperature
from pymtp.bench.report import Record, Spread, TextTable, describe_settings, format_spread

EXPLAINED = (
    "tokens/s: generated tokens of all requests, per second from the first arrival to the last token, prefills "
    "included. of none: speed relative to the measurement without drafts in the same round. of best: speed relative to "
    "the fixed number of drafts, or none, that has the highest median speed. of one: speed relative to the same number "
    "of drafts with the fewest sequences. first token: time from a request's arrival to its first token. gap: time "
    "between two pieces of a request. rows: rows of a verification of all sequences, padding included. launches: "
    "llama_decode calls of target + head per round, prefills included. python: share of the engine's time that was not "
    "in native code."
)
ARRIVING = (
    "a prompt arrives: ubatch: time of one ubatch of the prompt alone. round: time of one round of the running "
    "requests alone. gap: the longest time between two pieces of a running request while the prompt is prefilled. "
    "ratio: gap relative to the time of one ubatch and one round together."
)


@dataclass(frozen=True)
class BatchCell:
    """All measurements of one arm with n sequences at one acceptance.

    measurements: number of measurements.
    speed: generated tokens/s of all requests together.
    of_none, of_best, of_one: ratios of speeds, see EXPLAINED; None if there is no measurement to compare with.
    first_token, gaps: medians over the measurements of the figures in Delays, in seconds.
    tokens, rows, target_launches, draft_launches, step_seconds: means per decoding round.
    drafts: mean number of drafts per round and sequence.
    accepted: share of the verified drafts that were accepted.
    python: share of the time of engine steps that was not in native code.
    ubatch_seconds, round_seconds, longest_gap: medians of the fields of Arrival; None if no prompt arrived.
    arriving: spread of Arrival.ratio.
    """

    acceptance: str
    n: int
    arm: str
    measurements: int
    speed: Spread | None
    of_none: Spread | None
    of_best: Spread | None
    of_one: Spread | None
    first_token: Delays | None
    gaps: Delays | None
    tokens: float
    rows: float
    target_launches: float
    draft_launches: float
    drafts: float
    accepted: float
    step_seconds: float
    python: float
    arriving: Spread | None
    ubatch_seconds: float | None
    round_seconds: float | None
    longest_gap: float | None


@dataclass(frozen=True)
class BatchReport(Record[BatchMeasurement]):
    """All measurements of a batch bench, their summary in cells, and a comparison of the generated texts."""

    def cells(self) -> list[BatchCell]:
        """Return the cells, sorted by acceptance, then by number of sequences, then in the order of ARMS."""
        acceptances = list(self.settings["acceptance"])
        by_cell: dict[tuple[str, int, str], list[BatchMeasurement]] = {}
        for m in self.measurements:
            by_cell.setdefault((m.acceptance, m.n, m.arm), []).append(m)
        order = sorted(by_cell, key=lambda cell: (acceptances.index(cell[0]), cell[1], ARMS.index(cell[2])))
        return [self._cell(*key, by_cell) for key in order]

    def _cell(
        self, acceptance: str, n: int, arm: str, by_cell: dict[tuple[str, int, str], list[BatchMeasurement]]
    ) -> BatchCell:
        own = by_cell[acceptance, n, arm]
        fixed = [a for (c, k, a) in by_cell if (c, k) == (acceptance, n) and a != AUTO]
        best = max(fixed, key=lambda a: median(m.tokens_per_second for m in by_cell[acceptance, n, a]), default=None)
        fewest = min(k for (c, k, a) in by_cell if (c, a) == (acceptance, arm))
        rounds = sum(m.rounds for m in own)

        def per_round(amount: Callable[[BatchMeasurement], float]) -> float:
            return sum(map(amount, own)) / rounds if rounds else 0.0

        arrived = [m.arriving for m in own if m.arriving is not None]
        drafted, steps = sum(m.drafted for m in own), sum(m.step_seconds for m in own)
        return BatchCell(
            acceptance,
            n,
            arm,
            measurements=len(own),
            speed=Spread.of([m.tokens_per_second for m in own]),
            of_none=None if arm == NONE else _speed_ratio(own, by_cell.get((acceptance, n, NONE), [])),
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
            step_seconds=per_round(lambda m: m.step_seconds),
            python=sum(m.python_seconds for m in own) / steps if steps else 0.0,
            arriving=Spread.of([a.ratio for a in arrived]),
            ubatch_seconds=median(a.ubatch_seconds for a in arrived) if arrived else None,
            round_seconds=median(a.round_seconds for a in arrived) if arrived else None,
            longest_gap=median(a.longest_gap for a in arrived) if arrived else None,
        )

    def compare_texts(self) -> tuple[int, list[BatchMeasurement]]:
        """Compare each completion with the first measured completion of the same request and bench round.

        Return the number of comparisons, and the measurements in which a completion differs. Completions of synthetic
        acceptance are not compared.
        """
        first: dict[tuple[int, int], str] = {}
        compared, differing = 0, []
        for m in self.measurements:
            if m.acceptance != REAL:
                continue
            same = True
            for i, text in enumerate(m.digests):
                compared += (m.round, i) in first
                same &= first.setdefault((m.round, i), text) == text
            if not same:
                differing.append(m)
        return compared, differing


def _speed_ratio(own: Sequence[BatchMeasurement], others: Sequence[BatchMeasurement]) -> Spread | None:
    """Compute the ratio of the speeds in each bench round that has both measurements."""
    speeds = {m.round: m.tokens_per_second for m in others}
    return Spread.of([m.tokens_per_second / speeds[m.round] for m in own if m.round in speeds])


def _median_delays(delays: Sequence[Delays]) -> Delays | None:
    """Return the median of each field of Delays; None for an empty list."""
    if not delays:
        return None
    return Delays(median(d.median for d in delays), median(d.p99 for d in delays), median(d.longest for d in delays))


def as_json(report: BatchReport) -> str:
    """Format all measurements, their cells, the settings and the environment as JSON, for `load`."""
    return shared.as_json("batch", report, cells=[asdict(cell) for cell in report.cells()])


def load(path: Path) -> BatchReport:
    """Load a report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "batch",
        lambda whole: BatchReport(
            **shared.header(whole), measurements=[_measurement(m) for m in whole["measurements"]]
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> BatchMeasurement:
    built = {
        "first_token": Delays(**record["first_token"]),
        "gaps": None if record["gaps"] is None else Delays(**record["gaps"]),
        "arriving": None if record["arriving"] is None else Arrival(**record["arriving"]),
        "depths": {int(depth): times for depth, times in record["depths"].items()},
    }
    return BatchMeasurement(**record | built)


def as_csv(report: BatchReport) -> str:
    """Format the table as CSV, a line per cell, with speeds in tokens/s and delays in seconds."""
    return shared.as_csv([_flat(cell) for cell in report.cells()])


def _flat(cell: BatchCell) -> dict[str, Any]:
    line = shared.flatten(asdict(cell), ("speed", "of_none", "of_best", "of_one", "arriving"))
    for name in ("first_token", "gaps"):
        delays = line.pop(name) or dict.fromkeys(("median", "p99", "longest"))
        line |= {f"{name}_{which}_seconds": seconds for which, seconds in delays.items()}
    return line


def tables(report: BatchReport) -> Iterator[TextTable]:
    """Build the tables: speeds, delays and rounds for each acceptance; then the arrival of a prompt, if measured."""
    cells, settings = report.cells(), report.settings
    arrive = "at once" if settings["rate"] is None else f"{settings['rate']:g} a second"
    title = (
        f"{settings['model']}, requests a sequence: {settings['requests']}, {arrive}, {settings['prompt_tokens']} + "
        f"{settings['tokens']} tokens, {format_temperature(settings['temperature'])}, {describe_settings(settings)}"
    )
    for acceptance in settings["acceptance"]:
        cells_here = [cell for cell in cells if cell.acceptance == acceptance]
        if not cells_here:
            continue
        yield TextTable(
            f"Requests, {describe_acceptance(acceptance)}: {title}",
            ("n", "drafts", "tokens/s", "spread", "of none", "spread", "of best", "spread", "of one", "spread"),
            [
                _row(cell, *map(format_spread, (cell.speed, cell.of_none, cell.of_best, cell.of_one)))
                for cell in cells_here
            ],
        )
        waits = ("first token", "99th", "gap", "99th", "longest")
        yield TextTable(
            f"Waiting, {describe_acceptance(acceptance)}, ms",
            ("n", "drafts", *waits),
            [_row(cell, _delays(cell.first_token)[:2], _delays(cell.gaps)) for cell in cells_here],
        )
        yield TextTable(
            f"A round, {describe_acceptance(acceptance)}",
            ("n", "drafts", "verified", "accepted", "tokens", "rows", "launches", "step, ms", "python"),
            [
                _row(
                    cell,
                    (
                        f"{cell.drafts:.2f}",
                        f"{cell.accepted:.0%}" if cell.drafts else "-",
                        f"{cell.tokens:.2f}",
                        f"{cell.rows:.1f}",
                        f"{cell.target_launches:.2f}+{cell.draft_launches:.2f}",
                        f"{1e3 * cell.step_seconds:.2f}",
                        f"{cell.python:.1%}",
                    ),
                )
                for cell in cells_here
            ],
        )
    arrived = [cell for cell in cells if cell.arriving]
    if arrived:
        yield TextTable(
            f"A prompt of {settings['arriving']} tokens arrives, ms: {title}",
            ("n", "drafts", "acceptance", "ubatch", "round", "gap", "ratio", "spread"),
            [
                _row(
                    cell,
                    (cell.acceptance,),
                    tuple(_ms(s) for s in (cell.ubatch_seconds, cell.round_seconds, cell.longest_gap)),
                    format_spread(cell.arriving),
                )
                for cell in arrived
            ],
        )


def _row(cell: BatchCell, *parts: Sequence[str]) -> tuple[str, ...]:
    return (str(cell.n), cell.arm, *(text for part in parts for text in part))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _delays(delays: Delays | None) -> tuple[str, ...]:
    return ("-",) * 3 if delays is None else (_ms(delays.median), _ms(delays.p99), _ms(delays.longest))


def describe_acceptance(acceptance: str) -> str:
    """Describe an acceptance: "0.5" → "acceptance 0.5", REAL → "real acceptance"."""
    return f"{'real ' if acceptance == REAL else ''}acceptance{'' if acceptance == REAL else f' {acceptance}'}"


def _notes(report: BatchReport) -> list[str]:
    """Return the notes to print below the tables: missing measurements, compared texts, explanations, environment."""
    settings = report.settings
    notes = [f"left out: {line}" for line in report.left_out]
    if synthetic := [acceptance for acceptance in settings["acceptance"] if acceptance != REAL]:
        notes.append(shared.synthetic_note(list(map(float, synthetic))))
    if REAL in settings["acceptance"]:
        notes += _text_notes(*report.compare_texts())
    arriving = [ARRIVING] if settings["arriving"] else []
    return [*notes, f"{shared.SPREAD}. {EXPLAINED}", *arriving, *shared.describe_environment(report)]


def _text_notes(compared: int, differing: Sequence[BatchMeasurement]) -> list[str]:
    if not compared:
        return ["same text: nothing to compare"]
    if not differing:
        return [f"same text: yes, {compared} texts compared over numbers of drafts and numbers of sequences"]
    where = ", ".join(f"{m.arm} with n = {m.n} in round {m.round + 1}" for m in differing)
    return [f"same text: no, {compared} texts compared, these measurements generated other texts: {where}"]


def as_markdown(report: BatchReport) -> str:
    """Format all tables as Markdown."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: BatchReport) -> Stack:
    """Format all tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def describe_start(group: BatchGroup, arm: str) -> str:
    """Describe a measurement that is about to start, for the progress bar."""
    return f"n = {group.n}, {describe_acceptance(group.acceptance)}, {arm}"


def describe_result(m: BatchMeasurement) -> str:
    """Describe a finished measurement in one line."""
    arrived = f", longest gap {m.arriving.ratio:.2f} times an ubatch and a round" if m.arriving else ""
    result = f"n = {m.n}, {describe_acceptance(m.acceptance)}, {m.arm}: {m.tokens_per_second:.1f}/s"
    return f"round {m.round + 1}: {result}{arrived}"
