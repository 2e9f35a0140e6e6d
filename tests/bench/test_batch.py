"""Claims about the batch bench, on measurements that are made up: no model."""

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
from helpers.damage import refused_or_printed
from helpers.engines import Bed
from rich.console import Console

from pymtp.bench import batch_report
from pymtp.bench.batch import ALONE, REAL, Arriving, Delays, Measurement, Settings, arrive, groups, rates, room_to_write
from pymtp.bench.batch_plot import plot
from pymtp.bench.batch_report import Cell, Report, as_csv, as_json, as_markdown, as_tables, load
from pymtp.bench.order import in_turn
from pymtp.engine.request import Request
from pymtp.sampling import SamplingParams

SETTINGS = Settings(
    "m.gguf", (1, 4), ("none", "2", "auto"), (REAL, "0.5"), 8, 11, 4, 1, None, 4096, 0.0, 3, 2, 0, "f16"
)
SPEED = {"none": 10.0, "2": 20.0, "auto": 25.0}  # tokens a second, of one request


def measurement(arm: str, n: int = 1, round: int = 0, acceptance: str = REAL, **more: Any) -> Measurement:
    """n requests of 11 tokens: the first comes with the prompt, a round brings one more of each than it drafts."""
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
        "arriving": Arriving(0.4, 0.1, 0.6),
    }
    return Measurement(**fields | {"round": round, "acceptance": acceptance, "n": n, "arm": arm} | more)


def report_of(measurements: Sequence[Measurement], settings: Settings = SETTINGS, left_out: str = "") -> Report:
    build = {"devices": [{"description": "a CPU"}], "pymtp": "0", "llama_cpp_commit": "0", "compiler": "cc"}
    machine = {"cpu": "c", "cores": 1, "system": "s", "gpus": []}
    where = {"model": {}, "machine": machine, "build": build}
    return Report(asdict(settings), measurements=list(measurements), left_out=[left_out] if left_out else [], **where)


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of([measurement(arm, g.n, g.round, g.acceptance) for g in groups(SETTINGS) for arm in g.arms])


def cell(report: Report, arm: str, n: int = 1, acceptance: str = REAL) -> Cell:
    (found,) = (c for c in report.cells() if (c.arm, c.n, c.acceptance) == (arm, n, acceptance))
    return found


def test_a_group_is_a_number_of_sequences_at_one_acceptance_and_its_order_changes() -> None:
    found = groups(SETTINGS)
    assert len(found) == 3 * 2 * 2
    assert [(g.acceptance, g.n) for g in found[:4]] == [(REAL, 1), (REAL, 4), ("0.5", 1), ("0.5", 4)]
    assert [g.arms for g in found[:3]] == [in_turn(SETTINGS.arms, turn) for turn in range(3)]


def test_synthetic_drafts_are_right_with_one_probability_where_those_before_them_are() -> None:
    assert rates("0.5")[:3] == [0.5, 0.25, 0.125]
    assert set(rates("0")) == {0.0}
    assert set(rates("1")) == {1.0}


def scripted(bed: Bed) -> Any:
    """What the bench asks of an LLM, over a scripted context."""

    def requests(prompts: list[list[int]], params: SamplingParams, caller: object) -> list[Request]:
        return [bed.submit(prompts[0], params.max_tokens, ignore_eos=True)]

    return SimpleNamespace(engine=bed.engine, context=bed.context, requests=requests)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(("arriving", "before"), [(50, 1), (8, 200)])
def test_a_prompt_that_arrives_costs_those_who_write_one_piece_and_one_round_at_a_time(
    depth: int, arriving: int, before: int
) -> None:
    bed = Bed(depth=depth, n_seq_max=4, n_ctx=600)
    writers = [[n] * before for n in range(3)]
    found = arrive(scripted(bed), list(range(arriving)), writers, SamplingParams(None), bed.context.clock)
    assert found.ubatch_seconds == pytest.approx(1.0 + min(arriving, 16) * 0.1)  # a launch, and n_ubatch tokens
    draft = 1.0 + 3 * depth * 0.1 if depth else 0
    assert found.round_seconds == pytest.approx(draft + 1.0 + 3 * (1 + depth) * 0.2)
    assert found.longest_gap == pytest.approx(found.ubatch_seconds + found.round_seconds)
    assert all(request.ended for request in bed.requests)


def test_a_text_has_room_to_go_on_until_the_prompt_is_read() -> None:
    settings = replace(SETTINGS, prompt_tokens=600, arriving=1500)
    assert room_to_write(settings, 4) == (4 * 2 + ALONE + 3 + 1) * 9


def test_delays_are_the_median_the_99th_of_a_hundred_and_the_longest() -> None:
    assert Delays.of([]) is None
    assert Delays.of([3.0]) == Delays(3, 3, 3)
    assert Delays.of([float(n) for n in range(200, 0, -1)]) == Delays(100.5, 198, 200)


def test_ratios_are_taken_within_a_round_and_the_best_fixed_depth_is_that_of_the_best_median(report: Report) -> None:
    auto = cell(report, "auto", 4)
    assert auto.speed is not None
    assert auto.speed.median == pytest.approx(25 * 2.5 * 1.1)
    for spread, ratio in ((auto.of_none, 2.5), (auto.of_best, 1.25), (auto.of_one, 2.5)):
        assert spread is not None
        assert spread.low == pytest.approx(spread.high) == pytest.approx(ratio)
    best = cell(report, "2", 4)
    assert best.of_best is None
    assert cell(report, "none").of_none is cell(report, "none").of_one is None


def test_a_round_has_its_share_of_rows_launches_tokens_and_steps(report: Report) -> None:
    two = cell(report, "2", 4)
    assert (two.rows, two.drafts, two.accepted) == (12, 2, 0.5)
    assert two.tokens == pytest.approx((44 - 4) / 3)
    assert (two.target_launches, two.draft_launches) == (pytest.approx(7 / 3), 1)
    assert two.python == pytest.approx(0.025)
    assert two.step_seconds == pytest.approx(2 / 3)


def test_the_longest_gap_is_told_in_ubatches_and_rounds(report: Report) -> None:
    arriving = cell(report, "auto").arriving
    assert arriving is not None
    assert arriving.median == pytest.approx(0.6 / (0.4 + 0.1))
    assert "A prompt of 4096 tokens arrives" in as_markdown(report)
    none = report_of([measurement("none", arriving=None)], replace(SETTINGS, arriving=None))
    assert "arrives" not in as_markdown(none)


def test_a_text_is_the_same_in_every_arm_and_company_or_it_is_said_where_not(report: Report) -> None:
    compared = 3 * (2 * 3 - 1) + 3 * 3 * (
        3 - 1
    )  # rounds, texts: the first is in all groups, three others in one of two
    assert f"same text: yes, {compared} texts compared" in as_markdown(report)
    other = measurement("auto", 4, round=1, digests=["text 0 of round 1", "else", "a", "b"])
    shown = as_markdown(report_of([measurement("none", 1, 1), measurement("none", 4, 1), other]))
    assert "same text: no, 5 texts compared, others came in auto with n = 4 in round 2" in shown
    made_up = [measurement("none", acceptance="0.5"), measurement("2", acceptance="0.5", digests=["else"])]
    shown = as_markdown(report_of(made_up, replace(SETTINGS, acceptance=("0.5",))))
    assert "same text" not in shown
    assert "SYNTHETIC: drafts counted as accepted at given rates (0.5)" in shown


def test_a_report_of_part_of_a_run_is_shown() -> None:
    shown = report_of([measurement("auto", gaps=None)], left_out="the rest")
    assert "left out: the rest" in as_markdown(shown)
    assert cell(shown, "auto").of_best is None
    assert "same text: nothing to compare" in as_markdown(report_of([]))
    assert as_csv(report_of([])) == ""


def test_json_is_enough_to_show_everything_again(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(as_json(report))
    again = load(file)
    assert again.measurements == report.measurements
    assert as_markdown(again) == as_markdown(report)


def test_each_format_has_a_line_for_each_cell(report: Report) -> None:
    lines = list(csv.DictReader(as_csv(report).splitlines()))
    assert len(lines) == 2 * 2 * 3
    assert float(lines[2]["of_best_median"]) == pytest.approx(1.25)
    assert float(lines[0]["gaps_p99_seconds"]) == 0.2
    shown = StringIO()
    Console(width=200, file=shown).print(as_tables(report))
    for text in (as_markdown(report), shown.getvalue()):
        assert text.count("auto ") >= 4 * 4
        assert text.index("Requests, real acceptance: m.gguf") < text.index("Waiting, real acceptance, ms")
        assert text.index("A round, real acceptance") < text.index("Requests, acceptance 0.5")


def test_a_plot_has_a_column_for_each_acceptance_and_a_line_for_each_depth(report: Report, tmp_path: Path) -> None:
    plot(report, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in ("real acceptance", "acceptance 0.5", "none", "auto", "all requests, tokens/s", "sequences"):
        assert f"<!-- {words} -->" in text


def test_a_damaged_report_is_refused_or_printed(tmp_path: Path) -> None:
    small = report_of([measurement("none"), measurement("2", 4)])
    refused, printed = refused_or_printed(batch_report, json.loads(as_json(small)), tmp_path / "x.json")
    assert min(refused, printed) > 20
