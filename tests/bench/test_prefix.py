"""Tests of the prefix bench and its report: order of the traces, cells, rows and formats."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.damage import count_refused_and_printed
from rich.console import Console

from pymtp import InvalidRequestError
from pymtp.bench.prefix import PrefixArms, PrefixMeasurement, PrefixSettings, Saved, half_of_prefix_bytes
from pymtp.bench.prefix_report import PrefixReport
from pymtp.bench.traces import ALONE, CHAT, DISK, FOUR, PREFIXES, TraceVocabulary, make
from pymtp.model.model import Model

SETTINGS = PrefixSettings(
    model="m.gguf",
    traces=(FOUR, PREFIXES, DISK),
    rounds=2,
    n_ctx=None,
    n_seq_max=4,
    cache_bytes=None,
    scale=1.0,
    requests=None,
    threads=2,
    gpu_layers=0,
    cache_type="f16",
)


def four(turn: int, differing: tuple[int, ...] = ()) -> PrefixMeasurement:
    return PrefixMeasurement(
        round=turn,
        trace=FOUR,
        waves=[1] * 4,
        prompt=[2048] * 4,
        unseen=[2048, 48, 48, 48],
        read=[2048, 512, 60, 48 + turn],
        first_token=[4.0, 1.0, 0.2, 0.1 + 0.1 * turn],
        first_token_none=[4.0] * 4,
        differing=list(differing),
        cache_bytes=None,
        nbytes=(50 + turn) * 2**20,
        figures={"evicted": 3 * turn, "nbytes": 0},
    )


def on_disk(turn: int) -> PrefixMeasurement:
    measurement = replace(four(turn), trace=DISK, waves=[1], prompt=[8208], unseen=[8208], read=[16])
    return replace(measurement, first_token=[0.1], first_token_none=[20.0], saved=Saved(2**27, 21.0, 0.5 + turn))


def over_prefixes(turn: int) -> PrefixMeasurement:
    measurement = replace(four(turn), trace=PREFIXES, waves=[1] * 40, prompt=[100] * 40, unseen=[100] + [10] * 39)
    seconds = {"first_token": [0.1] * 40, "first_token_none": [0.4] * 40}
    return replace(measurement, read=[100] * 10 + [10] * 30, cache_bytes=10 * 2**20, **seconds)


@pytest.fixture(scope="module")
def report() -> PrefixReport:
    build = {"pymtp": "0", "llama_cpp_commit": "0", "compiler": "gcc", "devices": []}
    machine = {"cpu": "a processor", "cores": 2, "gpus": [], "system": "linux"}
    measurements = [make(turn) for turn in range(2) for make in (on_disk, four, over_prefixes)]
    return PrefixReport(asdict(SETTINGS), {}, machine, build, [], measurements)


def test_each_round_measures_all_traces_in_another_order() -> None:
    first, second = SETTINGS.plan(SETTINGS.traces)
    assert sorted(first.arms) == sorted(second.arms) == sorted(SETTINGS.traces)
    assert first.arms != second.arms


def test_half_of_prefix_bytes_counts_k_and_v_and_one_state_per_prefix() -> None:
    vocab = TraceVocabulary(range(100, 4000), (1, 2, 3), (1, 4, 3), (5, 3))
    assert half_of_prefix_bytes(make(PREFIXES, vocab), 10, 500) == 6 * (2000 * 10 + 500)
    assert half_of_prefix_bytes(make(FOUR, vocab), 10, 500) is None
    assert half_of_prefix_bytes(make(DISK, vocab), 10, 500) is None


def test_prefix_cells_have_prefilled_tokens_and_times_to_the_first_token(report: PrefixReport) -> None:
    first, prefixes, disk = report.cells()
    assert [cell.trace for cell in (first, prefixes, disk)] == [FOUR, PREFIXES, DISK]
    assert (first.prompt, first.unseen, first.requests) == (8192, 2192, 4)
    assert first.read is not None
    assert (first.read.low, first.read.high, first.beyond) == (2668, 2669, 512 - 48)
    assert first.of_none is not None
    assert first.of_none.low == pytest.approx(0.025)
    assert first.of_all is not None
    assert first.of_all.median == pytest.approx((5.3 / 16 + 5.4 / 16) / 2)
    assert (first.nbytes, first.cache_bytes, first.evicted) == (51 * 2**20, None, 3)
    assert (prefixes.beyond, prefixes.cache_bytes) == (90, 10 * 2**20)
    assert disk.saved == Saved(2**27, 21.0, 1.0)
    assert disk.from_disk is not None
    assert disk.from_disk.high == pytest.approx(1.6 / 20)


def test_short_traces_have_a_row_for_each_request(report: PrefixReport) -> None:
    rows = report.rows()
    assert [(row.trace, row.number) for row in rows] == [(FOUR, i) for i in (1, 2, 3, 4)]
    assert [row.read for row in rows] == [2048, 512, 60, 49]  # the largest values over the rounds
    assert rows[2].of_first == pytest.approx(0.05)
    assert rows[1].of_none == pytest.approx(0.25)


def test_report_counts_texts_that_differ(report: PrefixReport) -> None:
    assert "same text: yes, 90 texts compared" in report.as_markdown()
    other = replace(report, measurements=[*report.measurements, four(2, (1, 3))])
    assert sum(cell.differing for cell in other.cells()) == 2
    assert "same text: no, 2 differ, 94 texts compared" in other.as_markdown()


def test_json_report_loads_and_prints_the_same_tables(report: PrefixReport, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report.as_json())
    again = PrefixReport.load(file)
    assert (again.measurements, again.as_markdown()) == (report.measurements, report.as_markdown())
    whole = json.loads(file.read_text())
    assert [cell["trace"] for cell in whole["cells"]] == [FOUR, PREFIXES, DISK]
    assert len(whole["rows"]) == 4
    file.write_text('{"bench": "decode"}')
    with pytest.raises(InvalidRequestError, match="as the report of a prefix bench"):
        PrefixReport.load(file)


def test_prefix_tables_show_tokens_times_memory_and_the_prefix_file(report: PrefixReport) -> None:
    text = report.as_markdown()
    assert "| four | 4 | 8,192 | 2,192 | 2,668 | 0.326 | 464 | 51.0 | - | 3 |" in text
    assert "| prefixes | 40 | 4,000 | 490 | 1,300 | 0.325 | 90 | 51.0 | 10.0 | 3 |" in text
    assert "| disk | 8,208 | 128.0 | 21.000 | 1.000 | 0.055 |" in text
    assert "| four | 3 | 2,048 | 48 | 60 | 4.000 | 0.200 | 0.050 | 0.050 |" in text
    console = Console(width=160, record=True, file=StringIO())
    console.print(*report.as_tables(), sep="\n")
    assert "a processor" in console.export_text()
    assert PrefixReport.describe_result(report.measurements[1]) == (
        "round 1: four: 2,668 of 8,192 tokens read, first tokens in 0.331 of the time"
    )


def test_csv_has_a_line_for_each_trace(report: PrefixReport) -> None:
    lines = list(csv.DictReader(StringIO(report.as_csv())))
    assert [line["trace"] for line in lines] == [FOUR, PREFIXES, DISK]
    assert float(lines[2]["saved_load_seconds"]) == pytest.approx(1.0)
    assert lines[0]["saved_load_seconds"] == ""


def test_report_without_measurements_is_shown(report: PrefixReport) -> None:
    assert "**" not in replace(report, measurements=[], left_out=["all"]).as_markdown()


def test_plot_is_a_valid_svg(report: PrefixReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "prefix.svg")
    assert ElementTree.parse(tmp_path / "prefix.svg").getroot().tag.endswith("svg")


def test_damaged_json_report_is_refused_or_printed(report: PrefixReport, tmp_path: Path) -> None:
    refused, printed = count_refused_and_printed(PrefixReport, json.loads(report.as_json()), tmp_path / "x.json")
    assert min(refused, printed) > 20


def test_llm_with_a_cache_generates_the_same_and_prefills_less_than_one_without(demo: Path) -> None:
    settings = replace(SETTINGS, traces=(CHAT, ALONE), rounds=1, scale=0.2, requests=3, threads=1)
    with Model(demo) as model:
        arms = PrefixArms(model, settings)
        chat, alone = (arms.measure(group, name) for group in settings.plan(settings.traces) for name in (CHAT, ALONE))
    assert chat.differing == alone.differing == []
    assert alone.read == alone.prompt == alone.unseen
    assert len(chat.prompt) == len(chat.first_token) == len(chat.first_token_none) == 3
    assert chat.read[0] == chat.prompt[0]
    assert chat.read[2] < chat.prompt[2]
    assert chat.nbytes > 0
    assert chat.cache_bytes is None
    assert chat.figures["hits"] >= 1
