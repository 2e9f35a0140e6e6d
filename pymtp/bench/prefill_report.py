"""Report of a prefill bench: medians and paired ratios by prompt size, mode and number of drafts, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from pymtp.bench.paired import Group
from pymtp.bench.plot import error_bar_line, saved_figure
from pymtp.bench.prefill import MODES, NONE, PrefillMeasurement, format_size
from pymtp.bench.report import Report, describe_settings, group_by, paired_ratios, synthetic_note
from pymtp.bench.table import SPREAD, Cell, Column, Spread, Table


@dataclass(frozen=True)
class PrefillReport(Report):
    """All measurements of a prefill bench.

    A cell is one mode, size and number of drafts (0 for mode `none`). Ratios are to mode `none` in the same group.
    First token and elapsed are median seconds; figures in bytes are the largest.
    """

    measurements: list[PrefillMeasurement]

    bench = "prefill"
    spreads = ("prefill", "prefill_ratio", "decode", "decode_ratio")
    explained = (
        "of none: speed relative to the measurement without MTP on the same prompt in the same round. host: the "
        "largest resident memory of the process, mapped pages of the weights included. grown: the part of host that "
        "was added after the measurement started. device: memory of weights (with those of the head in every mode), "
        "caches and compute buffers."
    )

    def cells(self) -> list[Cell]:
        """Return the cells, sorted by size, then in the order of MODES, then by depth."""
        without = [m for m in self.measurements if m.mode == NONE]
        by_cell = group_by(
            self.measurements,
            lambda m: (m.size, m.mode, 0 if m.mode == NONE else m.depth),
            lambda key: (key[0], MODES.index(key[1]), key[2]),
        )
        return [_cell(*key, own, without) for key, own in by_cell.items()]

    def tables(self) -> list[Table]:
        """Build two tables, of the prefill and of the generation after it; an empty list without measurements."""
        cells, settings = self.cells(), self.settings
        if not cells:
            return []

        def speeds(name: str) -> list[Column]:
            return [
                Column("prompt", lambda c: format_size(c.size)),
                Column("mode", "mode"),
                Column("drafts", lambda c: c.depth or None),
                Column("tokens/s", name, SPREAD),
                Column("of none", f"{name}_ratio", SPREAD),
            ]

        prefill = [
            *speeds("prefill"),
            Column("first token, s", "first_token_seconds", ".2f"),
            Column("elapsed, s", "elapsed_seconds", ".1f"),
            Column("host", lambda c: _bytes(c.host_peak_bytes)),
            Column("grown", lambda c: _bytes(c.host_grown_bytes)),
            Column("device", lambda c: _bytes(c.device_bytes)),
        ]
        decode = [
            *speeds("decode"),
            Column("accepted", "acceptance_rate", ".0%"),
            Column("tokens per round", "mean_accepted_length", ".2f"),
        ]
        synthetic = ", synthetic acceptance" if settings["synthetic"] is not None else ""
        return [
            Table(f"Prefill: {settings['model']}, {describe_settings(settings)}", prefill, cells),
            Table(f"Code output: {settings['gen']} tokens after each prompt{synthetic}", decode, cells),
        ]

    def findings(self) -> list[str]:
        """Return notes about synthetic acceptance and the source of the prompts."""
        return [*synthetic_note(self.settings["synthetic"]), f"prompts: {self.settings['prompt']}"]

    def plot(self, path: Path) -> None:
        """Draw prefill speeds over prompt sizes: a panel for each number of drafts, a line for each mode."""
        cells = self.cells()
        depths = sorted({cell.depth for cell in cells if cell.mode != NONE}) or [0]
        sizes = sorted({cell.size for cell in cells})
        with saved_figure(path, 1, len(depths), sharey=True, figsize=(1 + 4 * len(depths), 3.6)) as panels:
            for depth, axes in zip(depths, panels[0], strict=True):
                for i, mode in enumerate(MODES):
                    points = [(c.size, c.prefill) for c in cells if c.mode == mode and c.depth in (0, depth)]
                    error_bar_line(axes, points, label=mode, color=f"C{i}")
                axes.set_xscale("log", base=2)
                axes.set_xticks(sizes, [format_size(size) for size in sizes], minor=False)
                axes.minorticks_off()
                axes.set_title(f"{depth} drafts per round" if depth else "no drafts")
                axes.set_xlabel("prompt, tokens")
            panels[0][0].set(ylabel="prefill, tokens/s", ylim=(0, None))
            panels[0][0].legend()

    @staticmethod
    def describe_start(group: Group, mode: str) -> str:
        """Describe a measurement that is about to start, for the progress bar."""
        size, depth = group.cell
        return f"{format_size(size)} {mode}{'' if mode == NONE else f', {depth} drafts'}"

    @staticmethod
    def describe_result(m: PrefillMeasurement) -> str:
        """Describe a finished measurement in one line."""
        drafts = "" if m.mode == NONE else f", {m.depth} drafts, {m.stats.acceptance_rate:.0%} accepted"
        return (
            f"round {m.round + 1}: {format_size(m.size)} {m.mode}{drafts}: "
            f"prefill {m.stats.prefill_tokens_per_second:.1f}/s, decode {m.stats.decode_tokens_per_second:.1f}/s"
        )


def _cell(
    size: int, mode: str, depth: int, measurements: Sequence[PrefillMeasurement], without: Sequence[PrefillMeasurement]
) -> Cell:
    def ratios(value: Callable[[PrefillMeasurement], float]) -> Spread | None:
        return (
            None if mode == NONE else paired_ratios(measurements, without, value, attrgetter("round", "size", "depth"))
        )

    def largest(values: Sequence[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    drafted, accepted, rounds = (
        sum(getattr(m.stats, name) for m in measurements) for name in ("drafted", "accepted", "rounds")
    )
    return Cell(
        size=size,
        mode=mode,
        depth=depth,
        measurements=len(measurements),
        prefill=Spread.of([m.stats.prefill_tokens_per_second for m in measurements]),
        prefill_ratio=ratios(attrgetter("stats.prefill_tokens_per_second")),
        decode=Spread.of([m.stats.decode_tokens_per_second for m in measurements]),
        decode_ratio=ratios(attrgetter("stats.decode_tokens_per_second")),
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=1 + accepted / rounds if drafted else None,
        first_token_seconds=statistics.median(m.first_token_seconds for m in measurements),
        elapsed_seconds=statistics.median(m.elapsed_seconds for m in measurements),
        host_peak_bytes=largest([m.host_peak_bytes for m in measurements]),
        host_grown_bytes=largest([m.host_grown_bytes for m in measurements]),
        device_bytes=largest([m.device_bytes for m in measurements]),
    )


def _bytes(n: int | None) -> str | None:
    if n is None:
        return None
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"
