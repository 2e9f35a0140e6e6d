"""Tests of the rows bench and its report, on a context with made-up times and operations, without a model."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.damage import count_refused_and_printed
from rich.console import Console

from pymtp import InvalidRequestError
from pymtp.bench.paired import Group, PairedBench
from pymtp.bench.rows import (
    DRAFT,
    PART,
    READS,
    REPEATS,
    ROWS,
    RowsMeasurement,
    RowsSettings,
    describe,
    groups,
    rows_bench,
)
from pymtp.bench.rows_report import RowsReport
from pymtp.context.inspect import Operation
from pymtp.errors import NativeError

SETTINGS = RowsSettings(
    model="m.gguf", rows=(1, 2, 4), steps=(1, 3), rounds=3, memory=1000, threads=2, gpu_layers=0, cache_type="f16"
)
MB = 10**6


class ScriptedContext:
    """A fake context: one row takes 10 ms, each further row 2 ms, and a draft 1 ms.

    While operations are timed, a decode takes a tenth longer, and this time is outside of the graph.
    """

    def __init__(self) -> None:
        self.n_past, self.timed = 0, False
        self.counters = SimpleNamespace(verify_seconds=0.0, draft_seconds=0.0)
        self.decodes: Counter[tuple[str, int, bool]] = Counter()
        self.last: tuple[float, int] = 0.0, 0
        self.head_is_current = False  # whether the head has processed all tokens of the target
        self.verified: set[int] = set()
        self.prefilled: list[int] = []

    @property
    def inspect(self) -> ScriptedContext:
        """Return the part of the context that times operations."""
        return self

    def set_sampling(self, sampler: object) -> None: ...

    def prefill(self, tokens: Sequence[int]) -> None:
        assert self.n_past % PART == 0, "cleared, or after a part of the prompt"
        self.n_past += len(tokens)
        self.prefilled.append(len(tokens))

    def _decode(self, what: str, n: int, seconds: float) -> float:
        self.decodes[what, n, self.timed] += 1
        self.last = seconds, n
        return seconds * (1.1 if self.timed else 1)

    def verify_chain(self, tokens: Sequence[int]) -> None:
        self.counters.verify_seconds += self._decode(ROWS, len(tokens), 0.008 + 0.002 * len(tokens))
        self.n_past += len(tokens)
        self.head_is_current = len(tokens) > 1
        self.verified |= set(tokens)

    def draft_chain(self, token: int, n: int) -> None:
        assert self.head_is_current, "the head must be up to date, so that catching up is not timed"
        self.counters.draft_seconds += self._decode(DRAFT, n, 0.001 * n)

    def rewind(self, n_keep: int) -> None:
        self.n_past = n_keep

    def clear(self) -> None:
        self.n_past = 0

    def time_operations(self, on: bool = True) -> None:
        self.timed = on

    def operations(self) -> list[Operation]:
        seconds, n = self.last
        return [
            Operation("MUL_MAT", "q4_0", 10, 0.8 * seconds, 0.1 * seconds, 100 * MB),
            Operation("RMS_NORM", "", 5 * n, 0.2 * seconds, 0.0, 0),
        ]


def run(settings: RowsSettings = SETTINGS, read: Any = None) -> tuple[PairedBench[RowsMeasurement], ScriptedContext]:
    context = ScriptedContext()
    read = read or (lambda n_bytes, n_threads, times: [9.0, *[n_bytes / 20e9] * (times - 1)])
    bench = rows_bench(settings, context, range(100), read)  # type: ignore[arg-type]
    bench.run()
    return bench, context


@pytest.fixture(scope="module")
def report() -> RowsReport:
    bench, _ = run()
    build = {
        "pymtp": "0", "llama_cpp_commit": "0", "compiler": "gcc", "devices": [], "cpu_features": ["FMA", "AVX512_VNNI"],
    }  # fmt: skip
    machine = {"cpu": "a processor", "cores": 2, "gpus": [], "system": "linux"}
    return RowsReport(asdict(SETTINGS), {}, machine, build, [], bench.measurements, bench.fields["reads"])


@pytest.mark.parametrize("alike", [False, True])
def test_alike_rows_have_the_same_token_and_other_rows_different_tokens(alike: bool) -> None:
    context = ScriptedContext()
    rows_bench(replace(SETTINGS, alike=alike), context, range(256), lambda *_: [0.1]).run()  # type: ignore[arg-type]
    assert (len(context.verified) == 1) == alike


@pytest.mark.parametrize("n", [1, 300])
def test_rows_come_after_so_many_tokens(n: int) -> None:
    context = ScriptedContext()
    settings = replace(SETTINGS, prompt_tokens=n)
    rows_bench(settings, context, range(300), lambda *_: [0.1]).run()  # type: ignore[arg-type]
    assert context.prefilled == [n] * settings.rounds


def test_each_round_measures_every_number_once_in_another_order() -> None:
    bench, _ = run()
    asked = sorted([(ROWS, 1), (ROWS, 2), (ROWS, 4), (DRAFT, 1), (DRAFT, 3)])
    orders = [[(m.what, m.n) for m in bench.measurements if m.round == turn] for turn in range(3)]
    assert [sorted(order) for order in orders] == [asked] * 3
    assert len({tuple(order) for order in orders}) == 3
    assert [[describe(*item) for item in order] for order in orders] == [list(group.arms) for group in groups(SETTINGS)]


def test_rows_are_decoded_for_warm_up_then_timed_whole_then_timed_by_operation() -> None:
    _, context = run(replace(SETTINGS, rounds=1))
    assert context.decodes[ROWS, 4, False] == context.decodes[DRAFT, 3, False] == 1 + REPEATS
    assert context.decodes[ROWS, 4, True] == context.decodes[DRAFT, 3, True] == REPEATS
    assert not context.timed


def test_rows_cells_have_medians_relative_to_one_row_of_the_same_round(report: RowsReport) -> None:
    cells = {(cell.what, cell.n): cell for cell in report.cells()}
    assert list(cells) == [(ROWS, 1), (ROWS, 2), (ROWS, 4), (DRAFT, 1), (DRAFT, 3)]
    four = cells[ROWS, 4]
    assert four.seconds
    assert four.ratio
    assert four.seconds.median == pytest.approx(0.016)
    assert four.ratio.median == pytest.approx(1.6)
    assert four.operations == pytest.approx({"MUL_MAT q4_0": 0.0128, "RMS_NORM": 0.0032})
    assert four.outside == pytest.approx(0.0016)
    assert four.waiting == pytest.approx(0.0016)
    assert four.observed == pytest.approx(1.1)
    chain = cells[DRAFT, 3]
    assert chain.ratio
    assert chain.ratio.median == pytest.approx(0.3)


def test_single_slow_decode_does_not_change_the_medians() -> None:
    class Disturbed(ScriptedContext):
        def operations(self) -> list[Operation]:
            found = super().operations()
            if self.decodes[ROWS, 1, True] == 2:
                found[1] = replace(found[1], seconds=1.0)
            return found

    bench = rows_bench(replace(SETTINGS, rounds=1), Disturbed(), range(100), lambda *_: [1.0] * READS)  # type: ignore[arg-type]
    bench.run()
    (one,) = (m for m in bench.measurements if (m.what, m.n) == (ROWS, 1))
    assert {o.op: o.seconds for o in one.operations} == pytest.approx({"MUL_MAT": 0.008, "RMS_NORM": 0.002})
    assert one.outside_seconds == pytest.approx(0.001)


def test_long_prompt_is_read_in_parts_and_each_is_told() -> None:
    context, steps = ScriptedContext(), list[str]()
    settings = replace(SETTINGS, rounds=1, prompt_tokens=PART + 5)
    bench = rows_bench(settings, context, range(2 * PART), lambda *_: [1.0] * READS)  # type: ignore[arg-type]
    bench.on_step = steps.append
    bench.run()
    assert steps == ["prompt: 0 of 2,053 tokens", "prompt: 2,048 of 2,053 tokens"]
    assert context.prefilled == [PART, 5]


def test_memory_share_is_the_read_speed_of_one_row_s_weights_relative_to_the_memory(report: RowsReport) -> None:
    speed = report.memory_speed()
    assert speed
    assert speed.median == pytest.approx(20e9)  # the first read of each round, which finds cold pages, is not counted
    assert report.memory_share() == pytest.approx(100 * MB / 0.010 / 20e9)
    assert replace(report, reads=[]).memory_share() is None


def test_seconds_left_are_estimated_from_finished_measurements() -> None:
    now, told = 0.0, list[tuple[float, float | None]]()

    class Slow(ScriptedContext):
        def operations(self) -> list[Operation]:
            nonlocal now
            now += 1.0
            return super().operations()

    def note(group: Group, arm: str, left: float | None) -> None:
        told.append((now, left))

    bench = rows_bench(SETTINGS, Slow(), range(100), lambda *_: [0.1], on_start=note, clock=lambda: now)  # type: ignore[arg-type]
    bench.run()
    assert told[0] == (0, None)
    assert all(left == pytest.approx(now - at) for at, left in told[1:])


def test_description_of_a_measurement_uses_singular_and_plural() -> None:
    told = [describe(what, n) for what in (ROWS, DRAFT) for n in (1, 3)]
    assert told == ["1 row", "3 rows", "1 draft", "3 drafts"]


def test_failed_memory_read_is_reported_and_rows_are_measured() -> None:
    def read(*_: int) -> list[float]:
        raise NativeError("out of memory")

    bench, _ = run(read=read)
    assert bench.left_out == ["reading memory: out of memory (1 times)"]
    assert len(bench.measurements) == 15
    assert bench.fields == {"reads": []}
    assert run(replace(SETTINGS, memory=0), read=read)[0].left_out == []


def test_json_report_loads_and_prints_the_same_tables(report: RowsReport, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report.as_json())
    again = RowsReport.load(file)
    assert (again.measurements, again.reads, again.as_markdown()) == (
        report.measurements,
        report.reads,
        report.as_markdown(),
    )
    file.write_text('{"bench": "decode"}')
    with pytest.raises(InvalidRequestError, match="as the report of a rows bench"):
        RowsReport.load(file)


def test_rows_tables_show_times_operations_memory_and_the_processor(report: RowsReport) -> None:
    text = report.as_markdown()
    assert "| rows | 4 | 16.0 |" in text
    assert "| graph | MUL_MAT q4_0 | 8.000 | 9.600 | 12.800 | 0.800 | 2.400 |" in text
    assert "|  | one row, weights of products | 100.0 | 10.0 | 0.50 |" in text
    assert "| a processor | AVX512_VNNI | 2 | 10.0 | 1.20 | 1.60 | 0.10 | 0.50 |" in text
    console = Console(width=160, record=True, file=StringIO())
    console.print(*report.as_tables(), sep="\n")
    assert "1.10 to 1.10 times as long" in console.export_text()


def test_report_without_measurements_is_shown(report: RowsReport) -> None:
    assert "**" not in replace(report, measurements=[], left_out=["all"]).as_markdown()


def test_csv_has_a_line_for_each_operation(report: RowsReport) -> None:
    lines = list(csv.DictReader(StringIO(report.as_csv())))
    (line,) = (x for x in lines if (x["what"], x["n"], x["operation"]) == ("rows", "2", "RMS_NORM"))
    assert float(line["seconds"]) == pytest.approx(0.0024)
    assert len(lines) == 5 * 4


def test_plot_is_a_valid_svg(report: RowsReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "rows.svg")
    assert ElementTree.parse(tmp_path / "rows.svg").getroot().tag.endswith("svg")


def test_damaged_json_report_is_refused_or_printed(report: RowsReport, tmp_path: Path) -> None:
    refused, printed = count_refused_and_printed(RowsReport, json.loads(report.as_json()), tmp_path / "x.json")
    assert min(refused, printed) > 20
