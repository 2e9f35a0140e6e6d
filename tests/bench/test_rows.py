"""Claims about the rows bench, on a context whose clock and operations are made up: no model."""

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
from helpers.damage import refused_or_printed
from rich.console import Console

from pymtp import InvalidRequestError
from pymtp.bench import rows_report
from pymtp.bench.rows import DRAFT, LAUNCHES, READS, ROWS, RowsBench, Settings, planned
from pymtp.bench.rows_plot import plot
from pymtp.bench.rows_report import Report, as_csv, as_json, as_markdown, as_tables, going_on, load
from pymtp.context.inspect import Operation
from pymtp.errors import NativeError

SETTINGS = Settings("m.gguf", (1, 2, 4), (1, 3), 3, 1000, 2, 0, "f16")
MB = 10**6


class ScriptedContext:
    """A row takes 10 ms, each more 2 ms, a step 1 ms; a tenth of it is outside the graph, and timing adds as much."""

    def __init__(self) -> None:
        self.n_past, self.timed = 0, False
        self.counters = SimpleNamespace(verify_seconds=0.0, draft_seconds=0.0)
        self.launches: Counter[tuple[str, int, bool]] = Counter()
        self.last: tuple[float, int] = 0.0, 0
        self.level = False  # the head holds what the target holds
        self.verified: set[int] = set()

    def set_sampling(self, sampler: object) -> None: ...

    def prefill(self, tokens: Sequence[int]) -> None:
        assert self.n_past == 0
        self.n_past = len(tokens)

    def _launch(self, what: str, n: int, seconds: float) -> float:
        self.launches[what, n, self.timed] += 1
        self.last = seconds, n
        return seconds * (1.1 if self.timed else 1)

    def verify_chain(self, tokens: Sequence[int]) -> None:
        self.counters.verify_seconds += self._launch(ROWS, len(tokens), 0.008 + 0.002 * len(tokens))
        self.n_past += len(tokens)
        self.level = len(tokens) > 1
        self.verified |= set(tokens)

    def draft_chain(self, token: int, n: int) -> None:
        assert self.level, "the head takes what it has yet to take, and that is no part of a step"
        self.counters.draft_seconds += self._launch(DRAFT, n, 0.001 * n)

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


def run(settings: Settings = SETTINGS, read: Any = None) -> tuple[RowsBench, ScriptedContext]:
    context = ScriptedContext()
    read = read or (lambda n_bytes, n_threads, times: [9.0, *[n_bytes / 20e9] * (times - 1)])
    bench = RowsBench(settings, context, range(100), read=read)  # type: ignore[arg-type]
    bench.run()
    return bench, context


@pytest.fixture(scope="module")
def report() -> Report:
    bench, _ = run()
    build = {
        "pymtp": "0", "llama_cpp_commit": "0", "compiler": "gcc", "devices": [], "cpu_features": ["FMA", "AVX512_VNNI"],
    }  # fmt: skip
    machine = {"cpu": "a processor", "cores": 2, "gpus": [], "system": "linux"}
    return Report(asdict(SETTINGS), {}, machine, build, [], bench.measurements, bench.reads)


@pytest.mark.parametrize("alike", [False, True])
def test_rows_alike_are_of_one_token_and_others_of_many(alike: bool) -> None:
    context = ScriptedContext()
    RowsBench(replace(SETTINGS, alike=alike), context, range(256), read=lambda *_: [0.1]).run()
    assert (len(context.verified) == 1) == alike


def test_each_round_measures_every_number_once_and_in_another_order() -> None:
    bench, _ = run()
    asked = sorted([(ROWS, 1), (ROWS, 2), (ROWS, 4), (DRAFT, 1), (DRAFT, 3)])
    orders = [[(m.what, m.n) for m in bench.measurements if m.round == turn] for turn in range(3)]
    assert [sorted(order) for order in orders] == [asked] * 3
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [list(planned(SETTINGS, turn)) for turn in range(3)]


def test_launches_are_warmed_up_once_then_timed_then_timed_by_operation() -> None:
    _, context = run(replace(SETTINGS, rounds=1))
    assert context.launches[ROWS, 4, False] == context.launches[DRAFT, 3, False] == 1 + LAUNCHES
    assert context.launches[ROWS, 4, True] == context.launches[DRAFT, 3, True] == LAUNCHES
    assert not context.timed


def test_cells_are_medians_against_one_row_of_the_round(report: Report) -> None:
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


def test_a_launch_that_met_something_else_is_in_no_median() -> None:
    class Disturbed(ScriptedContext):
        def operations(self) -> list[Operation]:
            found = super().operations()
            if self.launches[ROWS, 1, True] == 2:
                found[1] = replace(found[1], seconds=1.0)
            return found

    bench = RowsBench(replace(SETTINGS, rounds=1), Disturbed(), range(100), read=lambda *_: [1.0] * READS)  # type: ignore[arg-type]
    bench.run()
    (one,) = (m for m in bench.measurements if (m.what, m.n) == (ROWS, 1))
    assert {o.op: o.seconds for o in one.operations} == pytest.approx({"MUL_MAT": 0.008, "RMS_NORM": 0.002})
    assert one.outside_seconds == pytest.approx(0.001)


def test_the_share_of_the_memorys_speed_is_that_of_the_bytes_one_row_reads(report: Report) -> None:
    speed = report.memory_speed()
    assert speed
    assert speed.median == pytest.approx(20e9)  # the first read, which finds cold pages, is not among them
    assert report.share() == pytest.approx(100 * MB / 0.010 / 20e9)
    assert replace(report, reads=[]).share() is None


def test_the_time_left_is_that_of_the_measurements_to_come() -> None:
    now, told = 0.0, list[tuple[float, float | None]]()

    class Slow(ScriptedContext):
        def operations(self) -> list[Operation]:
            nonlocal now
            now += 1.0
            return super().operations()

    def note(what: str, n: int, left: float | None) -> None:
        told.append((now, left))

    bench = RowsBench(SETTINGS, Slow(), range(100), note, read=lambda *_: [0.1], clock=lambda: now)  # type: ignore[arg-type]
    bench.run()
    assert told[0] == (0, None)
    assert all(left == pytest.approx(now - at) for at, left in told[1:])


def test_one_is_told_as_one_and_several_as_several() -> None:
    told = [going_on(what, n) for what in (ROWS, DRAFT) for n in (1, 3)]
    assert told == ["1 row", "3 rows", "1 draft", "3 drafts"]


def test_memory_that_is_not_there_is_told_and_rows_are_measured_all_the_same() -> None:
    def read(*_: int) -> list[float]:
        raise NativeError("out of memory")

    bench, _ = run(read=read)
    assert bench.failed == ["reading memory: out of memory"]
    assert len(bench.measurements) == 15
    assert bench.reads == []
    assert run(replace(SETTINGS, memory=0), read=read)[0].failed == []


def test_json_is_enough_to_show_everything_again(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(as_json(report))
    again = load(file)
    assert (again.measurements, again.reads, as_markdown(again)) == (
        report.measurements,
        report.reads,
        as_markdown(report),
    )
    file.write_text('{"bench": "decode"}')
    with pytest.raises(InvalidRequestError, match="as a rows bench"):
        load(file)


def test_the_tables_hold_times_operations_memory_and_a_line_for_the_processor(report: Report) -> None:
    text = as_markdown(report)
    assert "| rows | 4 | 16.0 |" in text
    assert "| graph | MUL_MAT q4_0 | 8.000 | 9.600 | 12.800 | 0.800 | 2.400 |" in text
    assert "|  | one row, weights of products | 100.0 | 10.0 | 0.50 |" in text
    assert "| a processor | AVX512_VNNI | 2 | 10.0 | 1.20 | 1.60 | 0.10 | 0.50 |" in text
    console = Console(width=160, record=True, file=StringIO())
    console.print(as_tables(report))
    assert "1.10 to 1.10 times as long" in console.export_text()


def test_a_report_without_measurements_is_shown(report: Report) -> None:
    assert "**" not in as_markdown(replace(report, measurements=[], left_out=["all"]))


def test_csv_has_a_line_for_each_operation(report: Report) -> None:
    lines = list(csv.DictReader(StringIO(as_csv(report))))
    (line,) = (x for x in lines if (x["what"], x["n"], x["operation"]) == ("rows", "2", "RMS_NORM"))
    assert float(line["seconds"]) == pytest.approx(0.0024)
    assert len(lines) == 5 * 4


def test_the_plot_is_a_picture(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(report, tmp_path / "rows.svg")
    assert ElementTree.parse(tmp_path / "rows.svg").getroot().tag.endswith("svg")


def test_a_damaged_report_is_refused_or_printed(report: Report, tmp_path: Path) -> None:
    refused, printed = refused_or_printed(rows_report, json.loads(as_json(report)), tmp_path / "x.json")
    assert min(refused, printed) > 20
