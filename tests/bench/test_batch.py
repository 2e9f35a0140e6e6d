"""Tests of the batch bench and its report, on made-up measurements without a model."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.damage import count_refused_and_printed
from helpers.engines import EngineHarness
from rich.console import Console

from pymtp.bench.batch import (
    REAL,
    ROUNDS_BEFORE_ARRIVAL,
    Arrival,
    BatchMeasurement,
    BatchSettings,
    Delays,
    groups,
    measure_arrival,
    rates,
    writer_token_limit,
)
from pymtp.bench.batch_report import BatchReport
from pymtp.bench.paired import balanced_order
from pymtp.bench.table import Cell
from pymtp.engine.request import Request
from pymtp.sampling import SamplingParams

SETTINGS = BatchSettings(
    model="m.gguf",
    sequences=(1, 4),
    arms=("none", "2", "auto"),
    acceptance=(REAL, "0.5"),
    prompt_tokens=8,
    tokens=11,
    warm_up=4,
    requests=1,
    rate=None,
    arriving=4096,
    temperature=0.0,
    rounds=3,
    threads=2,
    gpu_layers=0,
    cache_type="f16",
)
SPEED = {"none": 10.0, "2": 20.0, "auto": 25.0}  # tokens/s of one request


def measurement(arm: str, n: int = 1, round: int = 0, acceptance: str = REAL, **more: Any) -> BatchMeasurement:
    """Make a measurement of n requests with 11 tokens each: one from the prefill, and depth + 1 from each round."""
    depth = {"none": 0, "2": 2, "auto": 1}[arm]
    rounds = 10 // (depth + 1)
    fields: dict[str, Any] = {
        "tokens": 11 * n,
        "seconds": 11 * n / (SPEED[arm] * (1 if n == 1 else 2.5) * (1 + round / 10)),
        "first_token": Delays(0.5, 0.75, 0.75),
        "gaps": Delays(0.1, 0.2, 0.3),
        "rounds": rounds,
        "rows": rounds * n * (depth + 1),
        "drafted": rounds * n * depth,
        "accepted": rounds * n * depth // 2,
        "depths": {depth: rounds},
        "target_launches": rounds + n,
        "draft_launches": rounds if depth else 0,
        "steps": rounds + 1,
        "step_seconds": 2.0,
        "python_seconds": 0.05,
        "digests": [f"text {i} of round {round}" for i in range(n)],
        "arriving": Arrival(0.4, 0.1, 0.6),
    }
    return BatchMeasurement(**fields | {"round": round, "acceptance": acceptance, "n": n, "arm": arm} | more)


def report_of(
    measurements: Sequence[BatchMeasurement], settings: BatchSettings = SETTINGS, left_out: str = ""
) -> BatchReport:
    build = {"devices": [{"description": "a CPU"}], "pymtp": "0", "llama_cpp_commit": "0", "compiler": "cc"}
    machine = {"cpu": "c", "cores": 1, "system": "s", "gpus": []}
    where = {"model": {}, "machine": machine, "build": build}
    return BatchReport(
        asdict(settings), measurements=list(measurements), left_out=[left_out] if left_out else [], **where
    )


@pytest.fixture(scope="module")
def report() -> BatchReport:
    return report_of([measurement(arm, g.cell[1], g.round, g.cell[0]) for g in groups(SETTINGS) for arm in g.arms])


def cell(report: BatchReport, arm: str, n: int = 1, acceptance: str = REAL) -> Cell:
    (found,) = (c for c in report.cells() if (c.arm, c.n, c.acceptance) == (arm, n, acceptance))
    return found


def test_groups_cover_all_numbers_of_sequences_with_arms_in_changing_order() -> None:
    found = groups(SETTINGS)
    assert len(found) == 3 * 2 * 2
    assert [g.cell for g in found[:4]] == [(REAL, 1), (REAL, 4), ("0.5", 1), ("0.5", 4)]
    assert [g.arms for g in found[:3]] == [balanced_order(SETTINGS.arms, turn) for turn in range(3)]


def test_synthetic_rates_are_powers_of_the_acceptance() -> None:
    assert rates("0.5")[:3] == [0.5, 0.25, 0.125]
    assert set(rates("0")) == {0.0}
    assert set(rates("1")) == {1.0}


def scripted(harness: EngineHarness) -> Any:
    """Return an object with the attributes of LLM that the bench needs, on a scripted context."""

    def requests(prompts: list[list[int]], params: SamplingParams, waiter: object) -> list[Request]:
        return [harness.make(prompts[0], params.max_tokens, ignore_eos=True)]

    thread = SimpleNamespace(call=lambda function: function())
    return SimpleNamespace(
        _engine=harness.engine, context=harness.context, _make_requests=requests, _engine_thread=thread
    )


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(("arriving", "before"), [(50, 1), (8, 200)])
def test_arriving_prompt_delays_running_requests_by_one_ubatch_and_one_round(
    depth: int, arriving: int, before: int
) -> None:
    harness = EngineHarness(depth=depth, n_seq_max=4, n_ctx=600)
    writers = [[n] * before for n in range(3)]
    found = measure_arrival(
        scripted(harness), list(range(arriving)), writers, SamplingParams(None), harness.context.clock
    )
    assert found.ubatch_seconds == pytest.approx(
        1.0 + min(arriving, 16) * 0.1
    )  # a fixed time per decode, and n_ubatch tokens
    draft = 1.0 + 3 * depth * 0.1 if depth else 0
    assert found.round_seconds == pytest.approx(draft + 1.0 + 3 * (1 + depth) * 0.2)
    assert found.longest_gap == pytest.approx(found.ubatch_seconds + found.round_seconds)
    assert all(request.ended for request in harness.requests)


def test_writer_token_limit_lasts_until_the_prompt_is_prefilled() -> None:
    settings = replace(SETTINGS, prompt_tokens=600, arriving=1500)
    assert writer_token_limit(settings, 4) == (4 * 2 + ROUNDS_BEFORE_ARRIVAL + 3 + 1) * 9


def test_delays_have_the_median_the_99th_percentile_and_the_longest_value() -> None:
    assert Delays.of([]) is None
    assert Delays.of([3.0]) == Delays(3, 3, 3)
    assert Delays.of([float(n) for n in range(200, 0, -1)]) == Delays(100.5, 198, 200)


def test_ratios_are_computed_within_a_round_against_the_arm_with_the_best_median(report: BatchReport) -> None:
    auto = cell(report, "auto", 4)
    assert auto.speed is not None
    assert auto.speed.median == pytest.approx(25 * 2.5 * 1.1)
    for spread, ratio in ((auto.of_none, 2.5), (auto.of_best, 1.25), (auto.of_one, 2.5)):
        assert spread is not None
        assert spread.low == pytest.approx(spread.high) == pytest.approx(ratio)
    best = cell(report, "2", 4)
    assert best.of_best is None
    assert cell(report, "none").of_none is cell(report, "none").of_one is None


def test_batch_cell_has_means_per_round(report: BatchReport) -> None:
    two = cell(report, "2", 4)
    assert (two.rows, two.drafts, two.accepted) == (12, 2, 0.5)
    assert two.tokens == pytest.approx((44 - 4) / 3)
    assert (two.target_launches, two.draft_launches) == (pytest.approx(7 / 3), 1)
    assert two.python == pytest.approx(0.025)
    assert two.step_seconds == pytest.approx(2 / 3)


def test_arrival_ratio_relates_the_longest_gap_to_one_ubatch_and_one_round(report: BatchReport) -> None:
    arriving = cell(report, "auto").arriving
    assert arriving is not None
    assert arriving.median == pytest.approx(0.6 / (0.4 + 0.1))
    assert "A prompt of 4096 tokens arrives" in report.as_markdown()
    none = report_of([measurement("none", arriving=None)], replace(SETTINGS, arriving=None))
    assert "arrives" not in none.as_markdown()


def test_batch_report_compares_texts_over_arms_and_numbers_of_sequences(report: BatchReport) -> None:
    # in each of three rounds: request 1 is in both groups of three arms, requests 2 to 4 are in one group
    compared = 3 * (2 * 3 - 1) + 3 * 3 * (3 - 1)
    assert f"same text: yes, {compared} texts compared" in report.as_markdown()
    other = measurement("auto", 4, round=1, digests=["text 0 of round 1", "else", "a", "b"])
    shown = report_of([measurement("none", 1, 1), measurement("none", 4, 1), other]).as_markdown()
    assert (
        "same text: no, 5 texts compared, these measurements generated other texts: auto with n = 4 in round 2" in shown
    )
    made_up = [measurement("none", acceptance="0.5"), measurement("2", acceptance="0.5", digests=["else"])]
    shown = report_of(made_up, replace(SETTINGS, acceptance=("0.5",))).as_markdown()
    assert "same text" not in shown
    assert "SYNTHETIC: drafts were accepted at given rates (0.5)" in shown


def test_report_of_an_interrupted_bench_is_shown() -> None:
    shown = report_of([measurement("auto", gaps=None)], left_out="the rest")
    assert "left out: the rest" in shown.as_markdown()
    assert cell(shown, "auto").of_best is None
    assert "same text: nothing to compare" in report_of([]).as_markdown()
    assert report_of([]).as_csv() == ""


def test_json_report_loads_and_prints_the_same_tables(report: BatchReport, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report.as_json())
    again = BatchReport.load(file)
    assert again.measurements == report.measurements
    assert again.as_markdown() == report.as_markdown()


def test_csv_and_tables_have_a_line_for_each_cell(report: BatchReport) -> None:
    lines = list(csv.DictReader(report.as_csv().splitlines()))
    assert len(lines) == 2 * 2 * 3
    assert float(lines[2]["of_best_median"]) == pytest.approx(1.25)
    assert float(lines[0]["gaps_p99_seconds"]) == 0.2
    shown = StringIO()
    Console(width=200, file=shown).print(*report.as_tables(), sep="\n")
    for text in (report.as_markdown(), shown.getvalue()):
        assert text.count("auto ") >= 4 * 4
        assert text.index("Requests, real acceptance: m.gguf") < text.index("Waiting, real acceptance, ms")
        assert text.index("A round, real acceptance") < text.index("Requests, acceptance 0.5")


def test_plot_has_a_column_for_each_acceptance_and_a_line_for_each_depth(report: BatchReport, tmp_path: Path) -> None:
    report.plot(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in ("real acceptance", "acceptance 0.5", "none", "auto", "all requests, tokens/s", "sequences"):
        assert f"<!-- {words} -->" in text


def test_damaged_json_report_is_refused_or_printed(tmp_path: Path) -> None:
    small = report_of([measurement("none"), measurement("2", 4)])
    refused, printed = count_refused_and_printed(BatchReport, json.loads(small.as_json()), tmp_path / "x.json")
    assert min(refused, printed) > 20
