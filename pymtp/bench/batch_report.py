"""What a batch bench came to: medians and paired ratios, as tables, Markdown, CSV and JSON, and back from JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.batch import ARMS, REAL, Arriving, Delays, Group, Measurement
from pymtp.bench.decode import AUTO, NONE, at
from pymtp.bench.report import Lines, Record, Spread, figures, run_with

EXPLAINED = (
    "tokens/s: of all requests together, from the first arrival to the last token, prompts included. of none: ratio to "
    "the measurement without drafts beside it. of best: to the fixed number of drafts, or none, with the best median. "
    "of one: to the same arm with the fewest sequences. first token: from a request's arrival. gap: between two pieces "
    "of a request. rows: of a verification, of all sequences, padding included. launches: batches for target + head, "
    "prompts included. python: share of the steps that was not in a native phase."
)
ARRIVING = (
    "a prompt arrives: ubatch: a piece of it, alone. round: of those who write, alone. gap: the longest between two "
    "pieces of theirs until the prompt is read, and its ratio to one ubatch and one round."
)


@dataclass(frozen=True)
class Cell:
    """All measurements of one arm with so many sequences at one acceptance.

    speed: tokens a second. of_none, of_best, of_one: ratios of speeds, see EXPLAINED; None where there is nothing to
    compare with. first_token, gaps: medians of what the measurements have; seconds. tokens: of a round, and so rows,
    launches, drafts (of a sequence) and step_seconds: means. accepted: of the drafts. python: of the steps' seconds.
    ubatch_seconds, round_seconds, longest_gap: medians; arriving: the ratio.
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
class Report(Record[Measurement]):
    """A run, its cells, and whether each text is the same in all arms and numbers of sequences."""

    def cells(self) -> list[Cell]:
        """By acceptance, then by sequences, then in the order of the arms."""
        places = list(self.settings["acceptance"])
        by_cell: dict[tuple[str, int, str], list[Measurement]] = {}
        for m in self.measurements:
            by_cell.setdefault((m.acceptance, m.n, m.arm), []).append(m)
        order = sorted(by_cell, key=lambda cell: (places.index(cell[0]), cell[1], ARMS.index(cell[2])))
        return [self._cell(*key, by_cell) for key in order]

    def _cell(self, acceptance: str, n: int, arm: str, by_cell: dict[tuple[str, int, str], list[Measurement]]) -> Cell:
        here = by_cell[acceptance, n, arm]
        fixed = [a for (c, k, a) in by_cell if (c, k) == (acceptance, n) and a != AUTO]
        best = max(fixed, key=lambda a: median(m.tokens_per_second for m in by_cell[acceptance, n, a]), default=None)
        fewest = min(k for (c, k, a) in by_cell if (c, a) == (acceptance, arm))
        rounds = sum(m.rounds for m in here)

        def a_round(amount: Callable[[Measurement], float]) -> float:
            return sum(map(amount, here)) / rounds if rounds else 0.0

        arrived = [m.arriving for m in here if m.arriving is not None]
        drafted, steps = sum(m.drafted for m in here), sum(m.step_seconds for m in here)
        return Cell(
            acceptance,
            n,
            arm,
            measurements=len(here),
            speed=Spread.of([m.tokens_per_second for m in here]),
            of_none=None if arm == NONE else _ratio(here, by_cell.get((acceptance, n, NONE), [])),
            of_best=None if best is None or arm == best else _ratio(here, by_cell[acceptance, n, best]),
            of_one=None if n == fewest else _ratio(here, by_cell[acceptance, fewest, arm]),
            first_token=_middle([m.first_token for m in here]),
            gaps=_middle([m.gaps for m in here if m.gaps is not None]),
            tokens=a_round(lambda m: m.tokens - len(m.digests)),  # the first of each comes with its prompt
            rows=a_round(lambda m: m.rows),
            target_launches=a_round(lambda m: m.target_launches),
            draft_launches=a_round(lambda m: m.draft_launches),
            drafts=a_round(lambda m: sum(depth * times for depth, times in m.depths.items())),
            accepted=sum(m.accepted for m in here) / drafted if drafted else 0.0,
            step_seconds=a_round(lambda m: m.step_seconds),
            python=sum(m.python_seconds for m in here) / steps if steps else 0.0,
            arriving=Spread.of([a.ratio for a in arrived]),
            ubatch_seconds=median(a.ubatch_seconds for a in arrived) if arrived else None,
            round_seconds=median(a.round_seconds for a in arrived) if arrived else None,
            longest_gap=median(a.longest_gap for a in arrived) if arrived else None,
        )

    def sameness(self) -> tuple[int, list[Measurement]]:
        """How many texts were compared with the first of their request and round, and where one differs from it. Texts
        of acceptance that is made up mean nothing."""
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


def _ratio(here: Sequence[Measurement], others: Sequence[Measurement]) -> Spread | None:
    """Of the speeds within each round."""
    speeds = {m.round: m.tokens_per_second for m in others}
    return Spread.of([m.tokens_per_second / speeds[m.round] for m in here if m.round in speeds])


def _middle(several: Sequence[Delays]) -> Delays | None:
    """Of each figure the median."""
    if not several:
        return None
    return Delays(median(d.median for d in several), median(d.p99 for d in several), median(d.longest for d in several))


def as_json(report: Report) -> str:
    """Every measurement, the cells made of them, and what they were made with and on. `load` reads it."""
    return shared.as_json("batch", report, cells=[asdict(cell) for cell in report.cells()])


def load(path: Path) -> Report:
    """A report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "batch",
        lambda whole: Report(**shared.header(whole), measurements=[_measurement(m) for m in whole["measurements"]]),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> Measurement:
    built = {
        "first_token": Delays(**record["first_token"]),
        "gaps": None if record["gaps"] is None else Delays(**record["gaps"]),
        "arriving": None if record["arriving"] is None else Arriving(**record["arriving"]),
        "depths": {int(depth): times for depth, times in record["depths"].items()},
    }
    return Measurement(**record | built)


def as_csv(report: Report) -> str:
    """A line for each cell. Rates in tokens a second, delays in seconds."""
    return shared.as_csv([_flat(cell) for cell in report.cells()])


def _flat(cell: Cell) -> dict[str, Any]:
    line = shared.flat(asdict(cell), ("speed", "of_none", "of_best", "of_one", "arriving"))
    for name in ("first_token", "gaps"):
        delays = line.pop(name) or dict.fromkeys(("median", "p99", "longest"))
        line |= {f"{name}_{which}_seconds": seconds for which, seconds in delays.items()}
    return line


def tables(report: Report) -> Iterator[Lines]:
    """For each acceptance: speeds, delays, and what a round is; then what a long prompt did, if one arrived."""
    cells, settings = report.cells(), report.settings
    arrive = "at once" if settings["rate"] is None else f"{settings['rate']:g} a second"
    title = (
        f"{settings['model']}, requests a sequence: {settings['requests']}, {arrive}, {settings['prompt_tokens']} + "
        f"{settings['tokens']} tokens, {at(settings['temperature'])}, {run_with(settings)}"
    )
    for acceptance in settings["acceptance"]:
        here = [cell for cell in cells if cell.acceptance == acceptance]
        if not here:
            continue
        yield Lines(
            f"Requests, {described(acceptance)}: {title}",
            ("n", "drafts", "tokens/s", "spread", "of none", "spread", "of best", "spread", "of one", "spread"),
            [_row(cell, *map(figures, (cell.speed, cell.of_none, cell.of_best, cell.of_one))) for cell in here],
        )
        waits = ("first token", "99th", "gap", "99th", "longest")
        yield Lines(
            f"Waiting, {described(acceptance)}, ms",
            ("n", "drafts", *waits),
            [_row(cell, _delays(cell.first_token)[:2], _delays(cell.gaps)) for cell in here],
        )
        yield Lines(
            f"A round, {described(acceptance)}",
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
                for cell in here
            ],
        )
    arrived = [cell for cell in cells if cell.arriving]
    if arrived:
        yield Lines(
            f"A prompt of {settings['arriving']} tokens arrives, ms: {title}",
            ("n", "drafts", "acceptance", "ubatch", "round", "gap", "ratio", "spread"),
            [
                _row(
                    cell,
                    (cell.acceptance,),
                    tuple(_ms(s) for s in (cell.ubatch_seconds, cell.round_seconds, cell.longest_gap)),
                    figures(cell.arriving),
                )
                for cell in arrived
            ],
        )


def _row(cell: Cell, *parts: Sequence[str]) -> tuple[str, ...]:
    return (str(cell.n), cell.arm, *(text for part in parts for text in part))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _delays(delays: Delays | None) -> tuple[str, ...]:
    return ("-",) * 3 if delays is None else (_ms(delays.median), _ms(delays.p99), _ms(delays.longest))


def described(acceptance: str) -> str:
    """ "0.5" → "acceptance 0.5"."""
    return f"{'real ' if acceptance == REAL else ''}acceptance{'' if acceptance == REAL else f' {acceptance}'}"


def _notes(report: Report) -> list[str]:
    """What a reader of the tables must know."""
    settings = report.settings
    notes = [f"left out: {line}" for line in report.left_out]
    if made_up := [acceptance for acceptance in settings["acceptance"] if acceptance != REAL]:
        notes.append(shared.synthetic(list(map(float, made_up))))
    if REAL in settings["acceptance"]:
        notes += _sameness(*report.sameness())
    arriving = [ARRIVING] if settings["arriving"] else []
    return [*notes, f"{shared.SPREAD}. {EXPLAINED}", *arriving, *shared.where_and_what(report)]


def _sameness(compared: int, differing: Sequence[Measurement]) -> list[str]:
    if not compared:
        return ["same text: nothing to compare"]
    if not differing:
        return [f"same text: yes, {compared} texts compared with those of other arms and other company"]
    where = ", ".join(f"{m.arm} with n = {m.n} in round {m.round + 1}" for m in differing)
    return [f"same text: no, {compared} texts compared, others came in {where}"]


def as_markdown(report: Report) -> str:
    """All tables for a document."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: Report) -> Stack:
    """All tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def going_on(group: Group, arm: str) -> str:
    """What is measured now, in a few words."""
    return f"n = {group.n}, {described(group.acceptance)}, {arm}"


def done(m: Measurement) -> str:
    """A line on one measurement."""
    arrived = f", longest gap {m.arriving.ratio:.2f} of an ubatch and a round" if m.arriving else ""
    said = f"n = {m.n}, {described(m.acceptance)}, {m.arm}: {m.tokens_per_second:.1f}/s"
    return f"round {m.round + 1}: {said}{arrived}"
