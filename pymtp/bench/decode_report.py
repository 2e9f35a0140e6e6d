"""Report of a decode bench: medians and paired ratios, as tables, Markdown, CSV and JSON, and loaded from JSON.

An arm is one of the compared variants, see ARMS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group as Stack

from pymtp.bench import report as shared
from pymtp.bench.decode import ARMS, NONE, PHASES, DecodeGroup, DecodeMeasurement, describe_prompts, format_temperature
from pymtp.bench.prompts import KINDS
from pymtp.bench.report import Record, Spread, TextTable, describe_settings, format_spread

ALL = "all"  # in place of a kind of prompt: all kinds together
MAX_NAMED_DIFFERENCES = 10  # number of differing texts that the notes under the tables name
EXPLAINED = (
    "tokens/s: speed of decoding, without the prefill and the first token. of none: speed relative to the measurement "
    "without drafts on the same prompt in the same round. accepted: share of the first, second, … drafts that were "
    "accepted, out of those that were verified. launches: llama_decode calls of target + head. "
    "python: time that was not in native code. sample: time of sampling, which is a part of draft and verify."
)


@dataclass(frozen=True)
class DecodeCell:
    """All measurements of one arm at one temperature, on one kind of prompt or on ALL.

    measurements: number of measurements.
    decode: speed of decoding in tokens/s.
    decode_ratio: speed of decoding relative to `none`.
    mean_accepted_length: mean number of tokens that a round generates.
    accepted_per_position: share of the first, second, … verified drafts that were accepted.
    drafts: mean number of verified drafts per round.
    target_launches, draft_launches: llama_decode calls of the target and of the head per round.
    seconds: time of each phase of decoding per round; "round" is the total.
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
    """A completion that differs from the completion of another arm in its group.

    arm: the arm that generated the completion.
    compared_with: the other arm.
    at: index of the first different token.
    """

    round: int
    kind: str
    temperature: float
    arm: str
    compared_with: str
    at: int


@dataclass(frozen=True)
class DecodeReport(Record[DecodeMeasurement]):
    """All measurements of a decode bench, their summary in cells, and a comparison of the completions of all arms.

    texts_compared: number of comparisons.
    differences: the comparisons of completions that differ.
    """

    texts_compared: int
    differences: list[Difference]

    @classmethod
    def of(cls, measurements: list[DecodeMeasurement], settings: dict[str, Any], **more: Any) -> DecodeReport:
        """Make a report, and compare the completions unless their acceptance is synthetic.

        more: the other fields of a Record.
        """
        n_compared, differences = compare_texts(measurements) if settings["synthetic"] is None else (0, [])
        return cls(settings, measurements=measurements, texts_compared=n_compared, differences=differences, **more)

    def cells(self) -> list[DecodeCell]:
        """Return the cells, sorted by temperature, then by kind (ALL last), then in the order of ARMS."""
        baselines = {m.group: m for m in self.measurements if m.arm == NONE}
        kinds = [kind for kind in KINDS if any(m.kind == kind for m in self.measurements)]
        by_cell: dict[tuple[float, str, str], list[DecodeMeasurement]] = {}
        for m in self.measurements:
            for kind in (m.kind, ALL) if len(kinds) > 1 else (m.kind,):
                by_cell.setdefault((m.temperature, kind, m.arm), []).append(m)
        order = sorted(by_cell, key=lambda cell: (cell[0], [*kinds, ALL].index(cell[1]), ARMS.index(cell[2])))
        return [_cell(key, by_cell[key], baselines) for key in order]


def compare_texts(measurements: Sequence[DecodeMeasurement]) -> tuple[int, list[Difference]]:
    """Compare each completion with the completion of `none` in its group, or of the first arm if `none` is missing.

    Return the number of comparisons, and the differences.
    """
    by_group: dict[tuple[int, str, float], list[DecodeMeasurement]] = {}
    for m in sorted(measurements, key=lambda m: ARMS.index(m.arm)):
        by_group.setdefault(m.group, []).append(m)
    pairs = [(m, first) for first, *others in by_group.values() for m in others]
    differing = [(m, first) for m, first in pairs if m.digest != first.digest]
    return len(pairs), [
        Difference(*m.group, m.arm, first.arm, _first_difference(m.token_ids, first.token_ids))
        for m, first in differing
    ]


def _first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _cell(
    key: tuple[float, str, str],
    measurements: Sequence[DecodeMeasurement],
    baselines: dict[tuple[int, str, float], DecodeMeasurement],
) -> DecodeCell:
    def rate(m: DecodeMeasurement) -> float:
        return m.stats.decode_tokens_per_second

    def per_round(amount: Callable[[DecodeMeasurement], float]) -> float:
        return sum(map(amount, measurements)) / rounds if rounds else 0.0

    rounds = sum(m.stats.rounds for m in measurements)
    ratios = [rate(m) / rate(baselines[m.group]) for m in measurements if m.arm != NONE and m.group in baselines]
    return DecodeCell(
        *key,
        measurements=len(measurements),
        decode=Spread.of([rate(m) for m in measurements]),
        decode_ratio=Spread.of(ratios),
        mean_accepted_length=1 + per_round(lambda m: m.stats.accepted),
        accepted_per_position=shared.accepted_per_position([m.stats for m in measurements]),
        drafts=per_round(lambda m: m.stats.drafted),
        target_launches=per_round(lambda m: m.target_launches),
        draft_launches=per_round(lambda m: m.draft_launches),
        seconds={
            "round": per_round(lambda m: m.stats.decode_seconds),
            **{name: per_round(lambda m, name=name: m.phase_seconds[name]) for name in (*PHASES, "sample")},  # type: ignore[misc]
        },
    )


def as_json(report: DecodeReport) -> str:
    """Format all measurements without their tokens, the cells, settings and environment as JSON, for `load`."""
    return shared.as_json("decode", report, leave_out=("token_ids",), cells=[asdict(cell) for cell in report.cells()])


def load(path: Path) -> DecodeReport:
    """Load a report that was printed as JSON. Raises InvalidRequestError for any other file."""
    return shared.load(
        path,
        "decode",
        lambda whole: DecodeReport(
            **shared.header(whole),
            measurements=[_measurement(m) for m in whole["measurements"]],
            texts_compared=whole["texts_compared"],
            differences=[Difference(**difference) for difference in whole["differences"]],
        ),
        (as_json, as_csv, as_markdown),
    )


def _measurement(record: dict[str, Any]) -> DecodeMeasurement:
    return DecodeMeasurement(**record | {"stats": shared.read_stats(record["stats"]), "token_ids": []})


def as_csv(report: DecodeReport) -> str:
    """Format the table as CSV, a line per cell: speeds in tokens/s, ratios to `none`, phases of a round in seconds."""
    return shared.as_csv([_flat(cell) for cell in report.cells()])


def _flat(cell: DecodeCell) -> dict[str, Any]:
    line = shared.flatten(asdict(cell), ("decode", "decode_ratio"))
    line["accepted_per_position"] = " ".join(f"{share:.4f}" for share in cell.accepted_per_position)
    seconds = line.pop("seconds")
    return line | {f"{name}_seconds": value for name, value in seconds.items()}


def tables(report: DecodeReport) -> Iterator[TextTable]:
    """Build two tables for each temperature: speeds, and the phases of a round."""
    cells, settings = report.cells(), report.settings
    for temperature in sorted({cell.temperature for cell in cells}):
        cells_here = [cell for cell in cells if cell.temperature == temperature]
        rounds = f"{settings['tokens']} tokens a prompt, {describe_settings(settings)}"
        synthetic = ", synthetic acceptance" if settings["synthetic"] is not None else ""
        yield TextTable(
            f"Decoding, {format_temperature(temperature)}{synthetic}: {settings['model']}, {rounds}",
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
                    *format_spread(cell.decode),
                    *format_spread(cell.decode_ratio),
                    f"{cell.mean_accepted_length:.2f}",
                    " ".join(f"{share:.0%}" for share in cell.accepted_per_position) or "-",
                )
                for cell in cells_here
            ],
        )
        yield TextTable(
            f"A round, {format_temperature(temperature)}{synthetic}, µs",
            ("prompts", "drafts", "verified", "launches", "whole", *PHASES, "sample"),
            [
                (
                    cell.kind,
                    cell.arm,
                    f"{cell.drafts:.2f}",
                    f"{cell.target_launches:.2f}+{cell.draft_launches:.2f}",
                    *(f"{1e6 * cell.seconds[name]:,.0f}" for name in ("round", *PHASES, "sample")),
                )
                for cell in cells_here
            ],
        )


def _notes(report: DecodeReport) -> list[str]:
    """Return the notes to print below the tables: missing measurements, compared texts, explanations, environment."""
    settings = report.settings
    notes = [f"left out: {line}" for line in report.left_out]
    if settings["synthetic"] is not None:
        notes.append(shared.synthetic_note(settings["synthetic"]))
    else:
        notes += _text_notes(report.texts_compared, report.differences)
    return [*notes, f"{shared.SPREAD}. {EXPLAINED}", *shared.describe_environment(report)]


def _text_notes(compared: int, differences: Sequence[Difference]) -> list[str]:
    if not compared:
        return ["same text: nothing to compare"]
    if not differences:
        return [f"same text: yes, {compared} texts compared over numbers of drafts"]
    lines = [
        f"first difference at token {d.at + 1}: {describe_prompts(d)}, round {d.round + 1}, "
        f"{d.arm} and {d.compared_with}"
        for d in differences[:MAX_NAMED_DIFFERENCES]
    ]
    n_more = len(differences) - len(lines)
    return [
        f"same text: no, {len(differences)} of {compared} texts differ between numbers of drafts",
        *lines,
        *([f"and {n_more} more, in the JSON"] if n_more else []),
    ]


def as_markdown(report: DecodeReport) -> str:
    """Format all tables as Markdown."""
    return shared.as_markdown(tables(report), _notes(report))


def as_tables(report: DecodeReport) -> Stack:
    """Format all tables for a terminal."""
    return shared.as_tables(tables(report), _notes(report))


def describe_start(group: DecodeGroup, arm: str) -> str:
    """Describe a measurement that is about to start, for the progress bar."""
    return f"{describe_prompts(group)}, {arm}"


def describe_result(m: DecodeMeasurement) -> str:
    """Describe a finished measurement in one line."""
    drafts = f", {m.stats.mean_accepted_length:.2f} tokens per round" if m.stats.drafted else ""
    return f"round {m.round + 1}: {describe_prompts(m)}, {m.arm}: {m.stats.decode_tokens_per_second:.1f}/s{drafts}"
