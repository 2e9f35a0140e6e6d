"""What a decode bench came to: medians and paired ratios, as tables, Markdown, CSV and JSON, and back from JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.decode import ARMS, NONE, PHASES, Group, Measurement, at, described
from pymtp.bench.prompts import KINDS
from pymtp.bench.report import Lines, Record, Spread, figures, run_with

ALL = "all"  # kinds together
MOST_DIFFERENCES = 10  # named under the tables
EXPLAINED = (
    "tokens/s: without the prompt and the first token. of none: ratio to the measurement without drafts beside it. "
    "accepted: of the first, second, … drafts that were verified. launches: batches for target + head. "
    "python: all that is not in a native call; sample: within draft and verify."
)


@dataclass(frozen=True)
class Cell:
    """All measurements of one arm, on one kind of prompt or on ALL, at one temperature.

    decode: tokens a second. decode_ratio: to `none`. accepted_per_position: of the drafts verified there.
    seconds: of decoding, a round, by phase; "round" is the whole. The others are means, a round.
    """

    temperature: float
    kind: str
    arm: str
    measurements: int
    decode: Spread | None
    decode_ratio: Spread | None
    mean_accepted_length: float
    accepted_per_position: list[float]
    drafts: float
    target_launches: float
    draft_launches: float
    seconds: dict[str, float]


@dataclass(frozen=True)
class Difference:
    """Where an arm's text is not what it is compared with; at: the first token that differs, from 0."""

    round: int
    kind: str
    temperature: float
    arm: str
    compared_with: str
    at: int


@dataclass(frozen=True)
class Report(Record[Measurement]):
    """A run, its cells, and whether all arms wrote the same: how many texts were compared, and where they differ."""

    texts_compared: int
    differences: list[Difference]

    @classmethod
    def of(cls, measurements: list[Measurement], settings: dict[str, Any], **more: Any) -> Report:
        """more: the other fields of a Record. Nothing is compared of synthetic acceptance."""
        compared = compare(measurements) if settings["synthetic"] is None else (0, [])
        return cls(settings, measurements=measurements, texts_compared=compared[0], differences=compared[1], **more)

    def cells(self) -> list[Cell]:
        """By temperature, then by kind, ALL last, then in the order of the arms."""
        beside = {m.group: m for m in self.measurements if m.arm == NONE}
        kinds = [kind for kind in KINDS if any(m.kind == kind for m in self.measurements)]
        by_cell: dict[tuple[float, str, str], list[Measurement]] = {}
        for m in self.measurements:
            for kind in (m.kind, ALL) if len(kinds) > 1 else (m.kind,):
                by_cell.setdefault((m.temperature, kind, m.arm), []).append(m)
        order = sorted(by_cell, key=lambda cell: (cell[0], [*kinds, ALL].index(cell[1]), ARMS.index(cell[2])))
        return [_cell(key, by_cell[key], beside) for key in order]


def compare(measurements: Sequence[Measurement]) -> tuple[int, list[Difference]]:
    """How many texts were compared with that of `none`, or else of the first arm, in their group, and where they
    differ."""
    by_group: dict[tuple[int, str, float], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: ARMS.index(m.arm)):
        by_group.setdefault(m.group, []).append(m)
    pairs = [(m, first) for first, *others in by_group.values() for m in others]
    differing = [(m, first) for m, first in pairs if m.digest != first.digest]
    return len(pairs), [
        Difference(*m.group, m.arm, first.arm, _first_difference(m.token_ids, first.token_ids))
        for m, first in differing
    ]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    same = (a == b for a, b in zip(one, other, strict=False))
    return next((i for i, alike in enumerate(same) if not alike), min(len(one), len(other)))


def _cell(
    key: tuple[float, str, str],
    measurements: Sequence[Measurement],
    beside: dict[tuple[int, str, float], Measurement],
) -> Cell:
    def rate(m: Measurement) -> float:
        return m.stats.decode_tokens_per_second

    def a_round(amount: Callable[[Measurement], float]) -> float:
        return sum(map(amount, measurements)) / rounds if rounds else 0.0

    rounds = sum(m.stats.rounds for m in measurements)
    ratios = [rate(m) / rate(beside[m.group]) for m in measurements if m.arm != NONE and m.group in beside]
    return Cell(
        *key,
        measurements=len(measurements),
        decode=Spread.of([rate(m) for m in measurements]),
        decode_ratio=Spread.of(ratios),
        mean_accepted_length=1 + a_round(lambda m: m.stats.accepted),
        accepted_per_position=shared.accepted_per_position([m.stats for m in measurements]),
        drafts=a_round(lambda m: m.stats.drafted),
        target_launches=a_round(lambda m: m.target_launches),
        draft_launches=a_round(lambda m: m.draft_launches),
        seconds={
            "round": a_round(lambda m: m.stats.decode_seconds),
            **{name: a_round(lambda m, name=name: m.phase_seconds[name]) for name in (*PHASES, "sample")},  # type: ignore[misc]
        },
    )


def as_json(report: Report) -> str:
    """Every measurement but its text, the cells made of them, and what they were made with and on. `load` reads it."""
    return shared.as_json("decode", report, leave_out=("token_ids",), cells=[asdict(cell) for cell in report.cells()])


def load(path: Path) -> Report:
    """A report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "decode",
        lambda whole: Report(
            **shared.header(whole),
            measurements=[_measurement(m) for m in whole["measurements"]],
            texts_compared=whole["texts_compared"],
            differences=[Difference(**difference) for difference in whole["differences"]],
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> Measurement:
    return Measurement(**record | {"stats": shared.stats_of(record["stats"]), "token_ids": []})


def as_csv(report: Report) -> str:
    """A line for each cell. Rates in tokens a second, ratios to `none`, a round's phases in seconds."""
    return shared.as_csv([_flat(cell) for cell in report.cells()])


def _flat(cell: Cell) -> dict[str, Any]:
    line = shared.flat(asdict(cell), ("decode", "decode_ratio"))
    line["accepted_per_position"] = " ".join(f"{share:.4f}" for share in cell.accepted_per_position)
    seconds = line.pop("seconds")
    return line | {f"{name}_seconds": value for name, value in seconds.items()}


def tables(report: Report) -> Iterator[Lines]:
    """For each temperature what came out and what a round took; none when nothing was measured."""
    cells, settings = report.cells(), report.settings
    for temperature in sorted({cell.temperature for cell in cells}):
        here = [cell for cell in cells if cell.temperature == temperature]
        rounds = f"{settings['tokens']} tokens a prompt, {run_with(settings)}"
        made_up = ", synthetic acceptance" if settings["synthetic"] is not None else ""
        yield Lines(
            f"Decoding, {at(temperature)}{made_up}: {settings['model']}, {rounds}",
            (
                "prompts",
                "drafts",
                "tokens/s",
                "spread",
                "of none",
                "spread",
                "tokens per round",
                "accepted, by position",
            ),
            [
                (
                    cell.kind,
                    cell.arm,
                    *figures(cell.decode),
                    *figures(cell.decode_ratio),
                    f"{cell.mean_accepted_length:.2f}",
                    " ".join(f"{share:.0%}" for share in cell.accepted_per_position) or "-",
                )
                for cell in here
            ],
        )
        yield Lines(
            f"A round, {at(temperature)}{made_up}, µs",
            ("prompts", "drafts", "verified", "launches", "whole", *PHASES, "sample"),
            [
                (
                    cell.kind,
                    cell.arm,
                    f"{cell.drafts:.2f}",
                    f"{cell.target_launches:.2f}+{cell.draft_launches:.2f}",
                    *(f"{1e6 * cell.seconds[name]:,.0f}" for name in ("round", *PHASES, "sample")),
                )
                for cell in here
            ],
        )


def _notes(report: Report) -> list[str]:
    """What a reader of the tables must know."""
    settings = report.settings
    notes = [f"left out: {line}" for line in report.left_out]
    if settings["synthetic"] is not None:
        notes.append(shared.synthetic(settings["synthetic"]))
    else:
        notes += _sameness(report.texts_compared, report.differences)
    return [*notes, f"{shared.SPREAD}. {EXPLAINED}", *shared.where_and_what(report)]


def _sameness(compared: int, differences: Sequence[Difference]) -> list[str]:
    if not compared:
        return ["same text: nothing to compare"]
    if not differences:
        return [f"same text: yes, {compared} texts compared with those beside them"]
    lines = [
        f"first difference at token {d.at + 1}: {described(d)}, round {d.round + 1}, {d.arm} and {d.compared_with}"
        for d in differences[:MOST_DIFFERENCES]
    ]
    more = len(differences) - len(lines)
    return [
        f"same text: no, {len(differences)} of {compared} texts differ from those beside them",
        *lines,
        *([f"and {more} more, in the JSON"] if more else []),
    ]


def as_markdown(report: Report) -> str:
    """All tables for a document."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: Report) -> Stack:
    """All tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def going_on(group: Group, arm: str) -> str:
    """What is measured now, in a few words."""
    return f"{described(group)}, {arm}"


def done(m: Measurement) -> str:
    """A line on one measurement."""
    drafts = f", {m.stats.mean_accepted_length:.2f} tokens per round" if m.stats.drafted else ""
    return f"round {m.round + 1}: {described(m)}, {m.arm}: {m.stats.decode_tokens_per_second:.1f}/s{drafts}"
