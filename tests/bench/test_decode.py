"""Tests of the decode bench and its report, on made-up completions without a model."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.damage import count_refused_and_printed
from helpers.scripted import ScriptedContext
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pymtp import InvalidRequestError, Stats
from pymtp.bench.decode import (
    ARMS,
    DecodeMeasurement,
    DecodeSettings,
    draft_options,
    groups,
    phase_seconds,
    prefill_mode,
)
from pymtp.bench.decode_report import ALL, DecodeReport
from pymtp.bench.paired import Group, PairedBench, balanced_order
from pymtp.bench.synthetic import SyntheticContext
from pymtp.context.inspect import Counters
from pymtp.drafting.depth import FixedDepth
from pymtp.engine.rounds import generate_single
from pymtp.errors import NativeError
from pymtp.stats import DraftStats

SETTINGS = DecodeSettings(
    model="m.gguf",
    arms=("none", "1", "3", "auto"),
    kinds=("code", "random"),
    temperatures=(0.0, 0.7),
    tokens=13,
    rounds=4,
    synthetic=None,
    threads=1,
    gpu_layers=0,
    cache_type="f16",
)
SPEED = {"none": 10.0, "1": 15.0, "3": 20.0, "auto:head": 20.0, "auto": 25.0}  # tokens/s
TEXT = list(range(13))


def measurement(
    arm: str,
    round: int = 0,
    kind: str = "code",
    temperature: float = 0.0,
    slowness: float = 1.0,
    text: Sequence[int] = TEXT,
) -> DecodeMeasurement:
    """Make a measurement of 13 tokens: one from the prefill, and depth + 1 from each round."""
    depth = 2 if arm[:4] == "auto" else draft_options(arm)["draft_tokens"]
    rounds = 12 // (depth + 1)
    seconds = 12 / SPEED[arm] * slowness
    stats = Stats(
        prompt_tokens=5,
        completion_tokens=13,
        decode_seconds=seconds,
        rounds=rounds,
        drafted=depth * rounds,
        accepted=depth * rounds,
        depths=(depth,) * rounds,
        accepted_per_position=(rounds,) * depth,
    )
    return DecodeMeasurement(
        token_ids=list(text),
        stats=stats,
        phase_seconds={"draft": seconds / 4, "verify": seconds / 2, "rewind": 0, "python": seconds / 4, "sample": 0},
        target_launches=rounds,
        draft_launches=rounds * depth,
        round=round,
        kind=kind,
        temperature=temperature,
        arm=arm,
    )


def measure(group: Group, arm: str, **more: Any) -> DecodeMeasurement:
    return measurement(arm, group.round, *group.cell, **more)


def report_of(
    measurements: Sequence[DecodeMeasurement], settings: DecodeSettings = SETTINGS, left_out: str = ""
) -> DecodeReport:
    build = {"devices": [{"description": "a CPU"}], "pymtp": "0", "llama_cpp_commit": "0", "compiler": "cc"}
    machine = {"cpu": "c", "cores": 1, "system": "s", "gpus": []}
    where = {"model": {}, "machine": machine, "build": build}
    return DecodeReport.of(list(measurements), asdict(settings), left_out=[left_out] if left_out else [], **where)


@pytest.fixture(scope="module")
def report() -> DecodeReport:
    bench = PairedBench(groups(SETTINGS), measure)
    bench.run()
    return report_of(bench.measurements)


def test_balanced_order_puts_each_item_at_each_position_and_after_each_other_item_once() -> None:
    orders = [balanced_order("abcd", turn) for turn in range(4)]
    assert all(sorted(place) == list("abcd") for place in zip(*orders, strict=True))
    neighbours = [pair for order in orders for pair in itertools.pairwise(order)]
    assert sorted(neighbours) == sorted(itertools.permutations("abcd", 2))


def test_each_group_measures_all_arms_in_changing_order() -> None:
    ran: list[tuple[Group, str]] = []
    bench = PairedBench(groups(SETTINGS), lambda group, arm: ran.append((group, arm)) or measure(group, arm))
    bench.run()
    n = len(SETTINGS.arms)
    assert len(ran) == n * len(groups(SETTINGS)) == n * 4 * 2 * 2
    for i in range(0, len(ran), n):
        assert len({id(group) for group, _ in ran[i : i + n]}) == 1
        assert sorted(arm for _, arm in ran[i : i + n]) == sorted(SETTINGS.arms)
    for kind, temperature in itertools.product(SETTINGS.kinds, SETTINGS.temperatures):
        orders = [g.arms for g in groups(SETTINGS) if g.cell == (kind, temperature)]
        assert all(sorted(place) == sorted(SETTINGS.arms) for place in zip(*orders, strict=True))


def test_ratios_are_unaffected_if_the_machine_slows_down_between_groups() -> None:
    planned = groups(SETTINGS)
    bench = PairedBench(groups(SETTINGS), lambda group, arm: measure(group, arm, slowness=1.5 ** planned.index(group)))
    bench.run()
    for cell in report_of(bench.measurements).cells():
        assert cell.decode is not None
        assert cell.decode.high > 2 * cell.decode.low
        if cell.arm != "none":
            assert cell.decode_ratio is not None
            assert cell.decode_ratio.low == pytest.approx(cell.decode_ratio.high) == SPEED[cell.arm] / SPEED["none"]


def test_decode_cell_has_median_speeds_and_means_per_round() -> None:
    runs = [measurement(arm, i, slowness=slowness) for i, slowness in enumerate((1, 2, 4)) for arm in ("none", "3")]
    runs[-1] = replace(runs[-1], stats=replace(runs[-1].stats, decode_seconds=12 / 2.5))
    none, three = report_of(runs).cells()
    assert none.decode is not None
    assert (none.decode.median, none.decode.low, none.decode.high) == (5, 2.5, 10)
    assert none.decode_ratio is None
    assert three.decode_ratio is not None
    assert three.decode_ratio.median == pytest.approx(2)
    assert three.decode_ratio.low == pytest.approx(1)
    assert (three.measurements, three.mean_accepted_length, three.drafts) == (3, 4, 3)
    assert (three.target_launches, three.draft_launches) == (1, 3)
    assert three.seconds["round"] == pytest.approx((0.6 + 1.2 + 4.8) / 9)
    assert three.seconds["draft"] == pytest.approx((0.6 + 1.2 + 2.4) / 9 / 4)


def test_acceptance_per_position_is_the_share_of_verified_drafts() -> None:
    stats = replace(measurement("auto").stats, rounds=4, depths=(1, 3, 0, 2), accepted_per_position=(3, 1, 1))
    deeper = replace(stats, rounds=2, depths=(3, 4), accepted_per_position=(1, 1, 0, 0))
    runs = [replace(measurement("auto", i), stats=s) for i, s in enumerate((stats, deeper))]
    (cell,) = report_of(runs).cells()
    assert cell.accepted_per_position == [4 / 5, 2 / 4, 1 / 3, 0]


def test_report_has_a_cell_for_all_kinds_if_there_are_several_kinds(report: DecodeReport) -> None:
    kinds = [(cell.temperature, cell.kind) for cell in report.cells() if cell.arm == "none"]
    assert kinds == [(t, kind) for t in (0.0, 0.7) for kind in ("code", "random", ALL)]
    assert {cell.kind for cell in report_of([measurement("none")]).cells()} == {"code"}


def test_phases_add_up_to_the_decoding_time_with_python_as_the_time_outside_native_calls() -> None:
    zeros: dict[str, Any] = dict.fromkeys(Counters.__dataclass_fields__, 0)
    before = Counters(**zeros | {"draft_seconds": 1.0, "verify_seconds": 2.0, "prefill_seconds": 9.0})
    after = Counters(
        **zeros
        | {"draft_seconds": 1.5, "verify_seconds": 3.0, "rewind_seconds": 0.125, "sample_seconds": 0.25}
        | {"prefill_seconds": 9.0}
    )
    phases = phase_seconds(2.0, before, after)
    assert phases == {"draft": 0.5, "verify": 1.0, "rewind": 0.125, "sample": 0.25, "python": 0.375}


def test_report_says_that_all_arms_generated_the_same_text() -> None:
    shown = report_of([measurement(arm) for arm in SETTINGS.arms]).as_markdown()
    assert "same text: yes, 3 texts compared" in shown


def test_report_names_the_first_different_token() -> None:
    other = [*TEXT[:7], 99, *TEXT[8:]]
    runs = [measurement("3", 2, text=other), measurement("none", 2), measurement("1", 2), measurement("none", 1)]
    shown = report_of(runs).as_markdown()
    assert "same text: no, 1 of 2 texts differ" in shown
    assert "first difference at token 8: code, greedy, round 3, 3 and none" in shown
    told = json.loads(report_of(runs).as_json())
    assert (told["texts_compared"], [d["at"] for d in told["differences"]]) == (2, [7])


@pytest.mark.parametrize("cut", [0, 12])
def test_first_difference_of_a_longer_text_is_where_the_shorter_text_ends(cut: int) -> None:
    (difference,) = report_of([measurement("none"), measurement("1", text=TEXT[:cut])]).differences
    assert difference.at == cut


def test_texts_are_compared_with_the_first_arm_if_arm_none_was_not_measured() -> None:
    report = report_of([measurement("3", text=[5]), measurement("1"), measurement("auto")])
    assert report.texts_compared == 2
    assert [(d.arm, d.compared_with) for d in report.differences] == [("3", "1")]


def test_report_counts_all_differing_texts_and_names_ten_of_them() -> None:
    runs = [measurement(arm, i, text=[int(arm != "none")]) for i in range(14) for arm in ("none", "1")]
    shown = report_of(runs).as_markdown()
    assert shown.count("first difference") == 10
    assert "and 4 more" in shown


def test_report_of_synthetic_acceptance_says_so_and_compares_no_texts() -> None:
    runs = [measurement("none"), measurement("1", text=[5])]
    report = report_of(runs, replace(SETTINGS, synthetic=(0.8, 0.5)))
    assert (report.texts_compared, report.differences) == (0, [])
    shown = report.as_markdown()
    assert "SYNTHETIC: drafts were accepted at given rates (0.8, 0.5)" in shown
    assert "Decoding, greedy, synthetic acceptance: m.gguf" in shown
    assert "same text" not in shown


def test_report_of_forced_text_compares_texts_and_has_ratios_to_the_head_and_shares_of_look_ups() -> None:
    runs = [measurement(arm, kind="tools") for arm in ("none", "auto:head", "auto")]
    settings = replace(SETTINGS, synthetic=(0.8, 0.5), forced_text="library", kinds=("tools",))
    report = replace(report_of(runs, settings), predicted={"tools": 0.625})
    assert [cell.head_ratio and cell.head_ratio.median for cell in report.cells()] == [0.5, None, 1.25]
    shown = report.as_markdown()
    assert "Decoding, greedy, forced text: m.gguf, up to 13 tokens a prompt" in shown
    assert "The head's drafts were right at given rates (0.8, 0.5)" in shown
    assert "a look-up of the 8 tokens before them predicts: tools 62%" in shown
    assert "same text: yes, 2 texts compared" in shown
    by_text = [replace(m, stats=replace(m.stats, drafted_by_text=8, accepted_by_text=2)) for m in runs[2:]]
    cell = replace(report, measurements=[*runs[:2], *by_text]).cells()[-1]
    assert (cell.text_share, cell.text_accepted, cell.head_accepted) == (8 / 8, 2 / 8, None)
    assert cell.accepted_per_position == [1.0, 1.0]  # of the head alone
    assert "of head" not in report_of([measurement("none"), measurement("1")]).as_markdown().split("spread:")[0]


@pytest.mark.parametrize("n", [0, 5])
def test_interrupted_bench_keeps_its_measurements(n: int) -> None:
    def interrupt(group: Group, arm: str, left: float | None) -> None:
        if len(bench.measurements) == n:
            raise KeyboardInterrupt

    bench = PairedBench(groups(SETTINGS), measure, on_start=interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    shown = report_of(bench.measurements, left_out="the rest")
    assert sum(cell.measurements for cell in shown.cells() if cell.kind != ALL) == n
    assert "left out: the rest" in shown.as_markdown()
    shown.as_csv()


def test_failing_arm_is_reported_once_and_other_arms_are_measured() -> None:
    def run(group: Group, arm: str) -> DecodeMeasurement:
        if arm == "3":
            raise NativeError("out of memory")
        return measure(group, arm)

    bench = PairedBench(groups(SETTINGS), run)
    bench.run()
    assert {m.arm for m in bench.measurements} == {"none", "1", "auto"}
    assert bench.left_out == ["3: out of memory (16 times)"]


def test_seconds_left_are_estimated_from_finished_measurements() -> None:
    now = 0.0

    def run(group: Group, arm: str) -> DecodeMeasurement:
        nonlocal now
        now += 2.0
        return measure(group, arm)

    told: list[tuple[float, float | None]] = []
    bench = PairedBench(
        groups(SETTINGS), run, on_start=lambda group, arm, left: told.append((now, left)), clock=lambda: now
    )
    bench.run()
    assert told[0][1] is None
    assert all(left == now - at for at, left in told[1:])


def test_each_arm_sets_draft_tokens_and_the_prefill_mode() -> None:
    tokens = [draft_options(arm)["draft_tokens"] for arm in ARMS]
    assert tokens == [0, *range(1, 9), *range(1, 9), "auto", "auto", 0, *range(1, 9), "auto"]
    assert {arm: draft_options(arm) for arm in ARMS if len(draft_options(arm)) > 1} == {
        "auto:head": {"draft_tokens": "auto", "draft_text": 0}
    }
    assert [arm for arm in ARMS if prefill_mode(arm) != "fused"] == [f"{n}:host-copy" for n in range(1, 9)]


def test_json_report_loads_and_prints_the_same_tables(report: DecodeReport, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report.as_json())
    again = DecodeReport.load(file)
    assert again.measurements == report.measurements
    assert again.as_markdown() == report.as_markdown()


def test_json_report_keeps_the_comparison_of_texts_but_not_the_texts(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(
        report_of([measurement("none"), measurement("1", text=[*TEXT[:-1], 99]), measurement("3")]).as_json()
    )
    assert "token_ids" not in file.read_text()
    again = DecodeReport.load(file)
    none, one, three = again.measurements
    assert none.digest == three.digest != one.digest
    assert "same text: no, 1 of 2 texts differ" in again.as_markdown()
    assert "first difference at token 13" in again.as_markdown()


def test_file_that_is_not_a_report_of_this_bench_is_refused(report: DecodeReport, tmp_path: Path) -> None:
    another = report.as_json().replace('"bench": "decode"', '"bench": "prefill"')
    wrong = [
        ("", "it is not JSON, or was cut short, at line 1"),
        (report.as_json()[:-9], "it is not JSON, or was cut short"),
        ("[]", "it is no JSON object"),
        ("{}", "it has no field 'bench'"),
        ('{"bench": "decode", "measurements": [{}]}', "it has no field"),
        (json.dumps(json.loads(report.as_json()) | {"measurements": 5}), "a field has a value that no bench writes"),
        (another, "it is the report of a prefill bench"),
    ]
    for text, words in wrong:
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(InvalidRequestError, match=f"cannot be read as the report of a decode bench: {words}"):
            DecodeReport.load(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(report.as_json(), encoding="utf-8-sig")  # as editors of Windows write it
    assert DecodeReport.load(tmp_path / "x.json").as_json() == report.as_json()
    (tmp_path / "x.json").write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match="it is not text in UTF-8"):
        DecodeReport.load(tmp_path / "x.json")
    with pytest.raises(InvalidRequestError, match="No such file"):
        DecodeReport.load(tmp_path / "none.json")


def test_csv_and_tables_have_a_line_for_each_cell(report: DecodeReport) -> None:
    n_cells = 2 * 3 * 4  # two temperatures, two kinds and ALL, four arms
    lines = list(csv.DictReader(report.as_csv().splitlines()))
    assert len(lines) == n_cells
    assert float(lines[-1]["decode_ratio_median"]) == 2.5
    assert lines[-1]["accepted_per_position"] == "1.0000 1.0000"
    assert float(lines[2]["verify_seconds"]) == pytest.approx(0.1)
    shown = StringIO()
    Console(width=200, file=shown).print(*report.as_tables(), sep="\n")
    for text in (report.as_markdown(), shown.getvalue()):
        assert text.count("auto ") == 2 * n_cells // 4
        assert text.index("Decoding, greedy: m.gguf") < text.index("A round, greedy, µs")
        assert text.index("A round, greedy, µs") < text.index("Decoding, T=0.7")
        assert "100% 100% 100%" in text
        assert "1.00+3.00" in text


def test_decode_plot_has_a_line_for_each_kind_and_a_panel_for_the_depths_of_auto(
    report: DecodeReport, tmp_path: Path
) -> None:
    def drawn(report: DecodeReport, name: str) -> str:
        report.plot(tmp_path / name)
        return (tmp_path / name).read_text()

    text = drawn(report, "a.svg")
    assert text == drawn(report, "b.svg")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in ("code", "random", "greedy", "T=0.7", "decode, tokens/s", "auto's drafts"):
        assert f"<!-- {words} -->" in text
    without = report_of([m for m in report.measurements if m.arm != "auto"])
    assert "auto's drafts" not in drawn(without, "c.svg")


def rounds(
    rates: Sequence[float], depth: int, n: int, hits: Sequence[bool] = (True, False)
) -> tuple[DraftStats, list[int]]:
    """Generate with synthetic acceptance on a scripted context, which checks the state of its caches in each call."""
    context = ScriptedContext(range(40), hits, n_ctx=10 * n)
    synthetic = SyntheticContext(context, rates)
    draft_stats, out = DraftStats(), []
    for tokens in generate_single(synthetic, [1], lambda _: False, draft_stats, FixedDepth(depth), max_tokens=n):
        out += tokens
        assert context.tokens() == [1, *out[:-1]], "the caches must hold the accepted tokens"
    return draft_stats, out


def test_synthetic_acceptance_has_the_given_rates() -> None:
    rates = (0.8, 0.5, 0.1)
    draft_stats, _ = rounds(rates, 4, 5000)
    got = [n / draft_stats.rounds for n in draft_stats.accepted_per_position]
    assert got[:3] == pytest.approx(rates, abs=0.04)  # four standard deviations of 2,000 rounds
    assert got[3] == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(0, 6), st.lists(st.booleans(), min_size=1))
def test_synthetic_rounds_keep_the_caches_correct_whichever_drafts_the_target_accepts(
    rates: list[float], depth: int, hits: list[bool]
) -> None:
    _, out = rounds(sorted(rates, reverse=True), depth, 20, hits)
    assert len(out) == 20


@pytest.mark.parametrize("hits", [True, False])
@pytest.mark.parametrize("verified", [0, 1, 2])
def test_depth_control_gets_the_synthetic_acceptance_and_not_the_target_s(hits: bool, verified: int) -> None:
    context = ScriptedContext(range(40), [hits])
    synthetic = SyntheticContext(context, (1, 0))
    draft_stats, heard = DraftStats(), []
    depth = FixedDepth(2)
    depth.keep = lambda confidences: min(verified, len(confidences))  # type: ignore[method-assign]
    depth.observe = lambda drafted, verified, right, *_: heard.append((drafted, right))  # type: ignore[method-assign]
    for _ in generate_single(synthetic, [1], lambda _: False, draft_stats, depth, max_tokens=41):
        pass
    assert {right for drafted, right in heard if drafted} == {1}


def test_synthetic_acceptance_is_the_same_at_all_depths_but_differs_between_texts() -> None:
    def luck(depth: int, context: SyntheticContext) -> dict[int, bool]:
        """Return, for each position of a draft that was certainly verified, whether it was accepted."""
        context.clear(0)
        found: dict[int, bool] = {}
        at = 0
        for tokens in generate_single(context, [1], lambda _: False, DraftStats(), FixedDepth(depth), max_tokens=60):
            if at:  # the first token comes from the prefill, without drafts
                found |= dict.fromkeys(range(at, at + len(tokens) - 1), True)
                if len(tokens) <= depth and at + depth < 60:
                    found[at + len(tokens) - 1] = False
            at += len(tokens)
        return found

    def fresh(seed: int = 0) -> SyntheticContext:
        return SyntheticContext(ScriptedContext(range(40), [False]), [0.6, 0.36, 0.216], seed)

    context = fresh()
    first, second = luck(3, context), luck(3, context)
    assert first not in (second, luck(3, fresh(seed=1)))
    shallow = luck(1, fresh())
    both = [(first[i], shallow[i]) for i in first.keys() & shallow.keys()]
    assert {(True, True), (False, False)} == set(both)


def test_synthetic_rate_1_accepts_every_draft_and_rate_0_accepts_none() -> None:
    draft_stats, _ = rounds([1, 1, 1], 3, 101, [False])
    assert draft_stats.rounds == 25
    draft_stats, _ = rounds([0], 3, 101, [True])
    assert draft_stats.rounds == 100


def test_damaged_json_report_is_refused_or_printed(report: DecodeReport, tmp_path: Path) -> None:
    refused, printed = count_refused_and_printed(DecodeReport, json.loads(report.as_json()), tmp_path / "x.json")
    assert min(refused, printed) > 20
