"""Report of a decode bench: medians and paired ratios by kind of prompt and arm, and a comparison of the texts.

An arm is one of the compared variants, see ARMS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from pymtp.bench.decode import (
    ARMS,
    AUTO,
    HEAD,
    NONE,
    PHASES,
    DecodeMeasurement,
    describe_prompts,
    format_temperature,
)
from pymtp.bench.paired import Group
from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.report import (
    DRAFTS,
    Report,
    accepted_per_position,
    describe_settings,
    drafts_by_source,
    forced_note,
    paired_ratios,
    source_columns,
    synthetic_note,
)
from pymtp.bench.table import SPREAD, Cell, Column, Spread, Table

ALL = "all"  # in place of a kind of prompt: all kinds together
MAX_NAMED_DIFFERENCES = 10  # number of differing texts that the notes under the tables name


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
class DecodeReport(Report):
    """All measurements of a decode bench, and a comparison of the completions of all arms.

    A cell is one arm at one temperature, on one kind of prompt or on ALL. Its speeds are tokens/s; phases are seconds
    per round, where "round" is the whole round.

    texts_compared: number of comparisons.
    differences: the comparisons of completions that differ.
    predicted: by kind of forced text, the share of its tokens that a look-up predicts, see predicted_share.
    """

    measurements: list[DecodeMeasurement]
    texts_compared: int
    differences: list[Difference]
    predicted: dict[str, float] = field(default_factory=dict)

    bench = "decode"
    spreads = ("decode", "decode_ratio", "head_ratio")
    explained = (
        "tokens/s: speed of decoding, without the prefill and the first token. of none: speed relative to the "
        "measurement without drafts on the same prompt in the same round; of head: relative to drafts of the head "
        "alone. accepted: share of the first, second, … drafts of the head that were accepted, out of those that were "
        "verified, without texts that had drafts from text. from text: share of verified drafts that came from text. "
        "launches: llama_decode calls of target + head. python: time that was not in native code. sample: time of "
        "sampling, which is a part of draft and verify."
    )

    @classmethod
    def of(cls, measurements: list[DecodeMeasurement], settings: dict[str, Any], **more: Any) -> DecodeReport:
        """Make a report, and compare the completions unless their acceptance is synthetic. more: all other fields."""
        n_compared, differences = (0, []) if _is_synthetic(settings) else compare_texts(measurements)
        return cls(settings, measurements=measurements, texts_compared=n_compared, differences=differences, **more)

    def cells(self) -> list[Cell]:
        """Return the cells, sorted by temperature, then by kind (ALL last), then in the order of ARMS."""
        kinds = self._kinds
        kinds += [ALL] if len(kinds) > 1 else []
        by_cell: dict[tuple[float, str, str], list[DecodeMeasurement]] = {}
        for m in self.measurements:
            for kind in (m.kind, ALL) if ALL in kinds else (m.kind,):
                by_cell.setdefault((m.temperature, kind, m.arm), []).append(m)
        order = sorted(by_cell, key=lambda key: (key[0], kinds.index(key[1]), ARMS.index(key[2])))
        compared = [[m for m in self.measurements if m.arm == arm] for arm in (NONE, HEAD)]
        return [_cell(*key, by_cell[key], *compared) for key in order]

    @property
    def _kinds(self) -> list[str]:
        """Return the measured kinds of prompts."""
        return [kind for kind in self.settings["kinds"] if any(m.kind == kind for m in self.measurements)]

    def csv_lines(self) -> list[dict[str, Any]]:
        """Return a line per cell, with the phases of a round in seconds."""
        lines = super().csv_lines()
        for line in lines:
            line["accepted_per_position"] = " ".join(f"{share:.4f}" for share in line["accepted_per_position"])
            line |= {f"{name}_seconds": value for name, value in line.pop("seconds").items()}
        return lines

    def tables(self) -> list[Table]:
        """Build two tables for each temperature: speeds, and the phases of a round."""
        cells, settings, tables = self.cells(), self.settings, list[Table]()
        synthetic = _acceptance(settings)
        keys = [Column("prompts", "kind"), Column("drafts", "arm")]
        speeds = [
            *keys,
            Column("tokens/s", "decode", SPREAD),
            Column("of none", "decode_ratio", SPREAD),
            *([Column("of head", "head_ratio", SPREAD)] if any(cell.head_ratio for cell in cells) else []),
            Column("tokens per round", "mean_accepted_length", ".2f"),
            *source_columns(cells),
            Column(
                "accepted, by position",
                lambda c: " ".join(f"{share:.0%}" for share in c.accepted_per_position) or None,
            ),
        ]
        phases = [
            *keys,
            Column("verified", "drafts", ".2f"),
            Column("launches", lambda c: f"{c.target_launches:.2f}+{c.draft_launches:.2f}"),
            *(
                Column(heading, lambda c, name=name: 1e6 * c.seconds[name], ",.0f")  # type: ignore[misc]
                for heading, name in (("whole", "round"), *((name, name) for name in (*PHASES, "sample")))
            ),
        ]
        for temperature in sorted({cell.temperature for cell in cells}):
            here = [cell for cell in cells if cell.temperature == temperature]
            shown = f"{format_temperature(temperature)}{synthetic}"
            title = f"{settings['model']}, {_length(settings)}, {describe_settings(settings)}"
            tables += [Table(f"Decoding, {shown}: {title}", speeds, here), Table(f"A round, {shown}, µs", phases, here)]
        return tables

    def findings(self) -> list[str]:
        """Return notes about synthetic acceptance or forced text, and about the texts that were compared."""
        if _is_synthetic(self.settings):
            return synthetic_note(self.settings["synthetic"])
        notes = forced_note(self.settings, self.predicted)
        if not self.texts_compared:
            return [*notes, "same text: nothing to compare"]
        if not self.differences:
            return [*notes, f"same text: yes, {self.texts_compared} texts compared over numbers of drafts"]
        named = self.differences[:MAX_NAMED_DIFFERENCES]
        n_more = len(self.differences) - len(named)
        return [
            *notes,
            f"same text: no, {len(self.differences)} of {self.texts_compared} texts differ between numbers of drafts",
            *(
                f"first difference at token {d.at + 1}: {describe_prompts(d.kind, d.temperature)}, "
                f"round {d.round + 1}, {d.arm} and {d.compared_with}"
                for d in named
            ),
            *([f"and {n_more} more, in the JSON"] if n_more else []),
        ]

    def plot(self, path: Path) -> None:
        """Draw a column of panels for each temperature: speeds by kind of prompt, and the depths that AUTO chose."""
        cells = [cell for cell in self.cells() if cell.kind != ALL]
        temperatures = sorted({cell.temperature for cell in cells})
        has_auto = any(cell.arm == AUTO for cell in cells)
        heights = {"height_ratios": (3, 1)} if has_auto else {}
        size = (1 + 4.5 * len(temperatures), 5.2 if has_auto else 3.8)
        synthetic = _acceptance(self.settings)
        with saved_figure(
            path, 1 + has_auto, len(temperatures), sharey="row", figsize=size, gridspec_kw=heights
        ) as panels:
            for i, temperature in enumerate(temperatures):
                _plot_speeds(panels[0][i], [cell for cell in cells if cell.temperature == temperature], self._kinds)
                panels[0][i].set_title(f"{format_temperature(temperature)}{synthetic}")
                if has_auto:
                    self._plot_depths(panels[1][i], temperature)
            panels[0][0].set(ylabel="decode, tokens/s", ylim=(0, None))
            panels[0][0].legend(fontsize="small")
            if has_auto:
                panels[1][0].set(ylabel="auto's drafts", ylim=(-0.3, None))
                panels[1][0].yaxis.get_major_locator().set_params(integer=True)

    def _plot_depths(self, axes: Any, temperature: float) -> None:
        """Draw the depths that AUTO chose in the last bench round, when it has adapted to all earlier rounds."""
        latest = {m.kind: m for m in self.measurements if (m.arm, m.temperature) == (AUTO, temperature)}
        for i, kind in enumerate(self._kinds):
            if kind in latest:
                depths = latest[kind].stats.depths
                axes.step(range(len(depths)), depths, where="post", linewidth=1, color=f"C{i}")
        axes.set_xlabel("round of one completion")

    @staticmethod
    def describe_start(group: Group, arm: str) -> str:
        """Describe a measurement that is about to start, for the progress bar."""
        return f"{describe_prompts(*group.cell)}, {arm}"

    @staticmethod
    def describe_result(m: DecodeMeasurement) -> str:
        """Describe a finished measurement in one line."""
        drafts = f", {m.stats.mean_accepted_length:.2f} tokens per round" if m.stats.drafted else ""
        speed = f"{m.stats.decode_tokens_per_second:.1f}/s"
        return f"round {m.round + 1}: {describe_prompts(m.kind, m.temperature)}, {m.arm}: {speed}{drafts}"


def compare_texts(measurements: Sequence[DecodeMeasurement]) -> tuple[int, list[Difference]]:
    """Compare each completion with the completion of `none` in its group, or of the first arm if `none` is missing.

    Return the number of comparisons, and the differences.
    """
    by_group: dict[tuple[int, str, float], list[DecodeMeasurement]] = {}
    for m in sorted(measurements, key=lambda m: ARMS.index(m.arm)):
        by_group.setdefault(m.group, []).append(m)
    pairs = [(m, first) for first, *others in by_group.values() for m in others]
    return len(pairs), [
        Difference(*m.group, m.arm, first.arm, _first_difference(m.token_ids, first.token_ids))
        for m, first in pairs
        if m.digest != first.digest
    ]


def _first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _cell(
    temperature: float,
    kind: str,
    arm: str,
    measurements: Sequence[DecodeMeasurement],
    without: Sequence[DecodeMeasurement],
    with_head: Sequence[DecodeMeasurement],
) -> Cell:
    def per_round(amount: Callable[[DecodeMeasurement], float]) -> float:
        return sum(map(amount, measurements)) / rounds if rounds else 0.0

    rate = attrgetter("stats.decode_tokens_per_second")
    rounds = sum(m.stats.rounds for m in measurements)
    return Cell(
        temperature=temperature,
        kind=kind,
        arm=arm,
        measurements=len(measurements),
        decode=Spread.of([rate(m) for m in measurements]),
        decode_ratio=None if arm == NONE else paired_ratios(measurements, without, rate, attrgetter("group")),
        head_ratio=None if arm == HEAD else paired_ratios(measurements, with_head, rate, attrgetter("group")),
        mean_accepted_length=1 + per_round(lambda m: m.stats.accepted),
        accepted_per_position=accepted_per_position([m.stats for m in measurements]),
        drafts=per_round(lambda m: m.stats.drafted),
        **drafts_by_source(*(sum(getattr(m.stats, name) for m in measurements) for name in DRAFTS)),
        target_launches=per_round(lambda m: m.target_launches),
        draft_launches=per_round(lambda m: m.draft_launches),
        seconds={
            "round": per_round(lambda m: m.stats.decode_seconds),
            **{name: per_round(lambda m, name=name: m.phase_seconds[name]) for name in (*PHASES, "sample")},  # type: ignore[misc]
        },
    )


def _is_synthetic(settings: Mapping[str, Any]) -> bool:
    """Return whether the text was generated with synthetic acceptance, so that it has no meaning."""
    return settings["synthetic"] is not None and not settings.get("forced_text")


def _acceptance(settings: Mapping[str, Any]) -> str:
    return ", synthetic acceptance" if _is_synthetic(settings) else ", forced text" if settings["synthetic"] else ""


def _length(settings: Mapping[str, Any]) -> str:
    return f"{'up to ' if settings.get('forced_text') else ''}{settings['tokens']} tokens a prompt"


def _plot_speeds(axes: Any, cells: list[Cell], kinds: Sequence[str]) -> None:
    arms = [arm for arm in ARMS if any(cell.arm == arm for cell in cells)]
    for i, kind in enumerate(kinds):
        points = [(arms.index(cell.arm), cell.decode) for cell in cells if cell.kind == kind]
        error_bar_line(axes, points, label=kind, color=f"C{i}")
    axes.set_xticks(range(len(arms)), arms)
    axes.set_xlabel("drafts per round")
