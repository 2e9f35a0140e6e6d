"""Tests of the prefill bench and its report, on made-up measurements with a fake clock, without a model."""

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
from rich.console import Console

from pymtp import InvalidRequestError
from pymtp.bench.corpus import TokenSource
from pymtp.bench.paired import Group, PairedBench
from pymtp.bench.prefill import (
    MODES,
    MemoryUse,
    PrefillMeasurement,
    PrefillSettings,
    estimate,
    groups,
    prefill_bench,
)
from pymtp.bench.prefill_report import PrefillReport
from pymtp.bench.table import Spread
from pymtp.errors import NativeError
from pymtp.stats import Stats

PREFILL = {"none": 1.0, "all-outputs": 4.0, "host-copy": 2.0, "fused": 1.25}  # seconds per token
VERIFY = 10.0  # seconds
SETTINGS = PrefillSettings(
    model="m.gguf",
    modes=MODES,
    sizes=(8, 64),
    depths=(2, 3),
    gen=7,
    rounds=4,
    prompt="numbers",
    synthetic=None,
    threads=1,
    gpu_layers=0,
    cache_type="f16",
)


class Machine:
    """A machine with a fake clock `now`: it runs the modes of a bench, with a head whose drafts are all accepted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slowness = 1.0
        self.attention = 0.0  # seconds that a token takes for each token of its prompt
        self.ran: list[tuple[Group, list[int], list[int]]] = []  # with the prompt and that of the warm-up
        self.fails: set[str] = set()

    def clock(self) -> float:
        return self.now

    def run(
        self, group: Group, mode: str, prompt: Sequence[int], warm_up: Sequence[int], gen: int
    ) -> PrefillMeasurement:
        if mode in self.fails:
            raise NativeError("out of memory")
        self.ran.append((group, list(prompt), list(warm_up)))
        per_token = self.slowness * (PREFILL[mode] + self.attention * len(prompt))
        prefill = per_token * len(prompt)
        size, depth = group.cell
        depth = 0 if mode == "none" else depth
        rounds = -(-(gen - 1) // (depth + 1))
        decode = self.slowness * VERIFY * rounds
        stats = Stats(
            prompt_tokens=len(prompt),
            completion_tokens=gen,
            prefill_seconds=prefill,
            decode_seconds=decode,
            rounds=rounds,
            drafted=rounds * depth,
            accepted=rounds * depth,
        )
        elapsed = prefill + decode + self.slowness * PREFILL[mode] * len(warm_up[:size])
        self.now += elapsed
        memory = [MemoryUse("CPU", True, 1, 2, 3), MemoryUse("GPU", False, 40, 50, 60)]
        seconds = prefill, elapsed
        where = group.round, *group.cell, mode
        return PrefillMeasurement(*where, stats, *seconds, 0, 0, 0, 2**20, 2**21, memory)


def new_bench(machine: Machine, settings: PrefillSettings = SETTINGS, **more: Any) -> PairedBench[PrefillMeasurement]:
    numbers = itertools.count()
    source = TokenSource(lambda text: [next(numbers) for _ in range(50)], lambda: ["x"])
    return prefill_bench(settings, machine.run, source, clock=machine.clock, **more)


def report_of(bench: PairedBench[PrefillMeasurement], settings: PrefillSettings = SETTINGS) -> PrefillReport:
    build = {"devices": [{"description": "a CPU"}], "pymtp": "0", "llama_cpp_commit": "0", "compiler": "cc"}
    machine = {"cpu": "c", "cores": 1, "system": "s", "gpus": []}
    return PrefillReport(asdict(settings), {}, machine, build, bench.left_out, bench.measurements)


@pytest.fixture(scope="module")
def report() -> PrefillReport:
    bench = new_bench(Machine())
    bench.run()
    return report_of(bench)


def test_each_mode_is_measured_at_each_position_and_after_each_other_mode_equally_often() -> None:
    for size, depth in itertools.product(SETTINGS.sizes, SETTINGS.depths):
        same = [group.arms for group in groups(SETTINGS) if group.cell == (size, depth)]
        for place in zip(*same, strict=True):
            assert sorted(place) == sorted(MODES)
        neighbours = [pair for modes in same for pair in itertools.pairwise(modes)]
        assert sorted(neighbours) == sorted(itertools.permutations(MODES, 2))


def test_all_modes_of_a_round_have_one_prompt_and_each_round_has_another() -> None:
    machine = Machine()
    new_bench(machine).run()
    prompts = [prompt for group, prompt, _ in machine.ran[1:] if group.cell[0] == 64]
    each = len(MODES) * len(SETTINGS.depths)
    rounds = [prompts[i : i + each] for i in range(0, len(prompts), each)]
    assert len(rounds) == SETTINGS.rounds
    assert all(prompt == own[0] for own in rounds for prompt in own)
    assert len({prompt[0] for own in rounds for prompt in own}) == SETTINGS.rounds
    warm_up = {token for _, _, tokens in machine.ran for token in tokens}
    assert warm_up.isdisjoint(token for prompt in prompts for token in prompt)


def test_memory_of_devices_is_that_of_all_that_are_not_the_host() -> None:
    done = Machine().run(Group(0, (8, 3), MODES), "fused", range(8), range(8), 7)
    assert (done.device_bytes, done.host_grown_bytes) == (150, 2**20)


def test_ratios_are_unaffected_if_the_machine_slows_down_between_groups() -> None:
    machine = Machine()
    n_done = itertools.count(1)

    def slow_down(done: PrefillMeasurement) -> None:
        if next(n_done) % len(MODES) == 0:
            machine.slowness *= 1.5

    bench = new_bench(machine, on_done=slow_down)
    bench.run()
    for cell in report_of(bench).cells():
        assert cell.prefill is not None
        assert cell.prefill.high > 2 * cell.prefill.low
        if cell.mode != "none":
            assert cell.prefill_ratio is not None
            assert cell.prefill_ratio.low == pytest.approx(PREFILL["none"] / PREFILL[cell.mode], abs=0.01)
            assert cell.prefill_ratio.high == pytest.approx(cell.prefill_ratio.low, abs=0.01)


def test_seconds_left_are_exact_after_the_first_round() -> None:
    machine = Machine()
    told: list[tuple[float, float | None]] = []
    bench = new_bench(machine, on_start=lambda group, mode, left: told.append((machine.now, left)))
    bench.run()
    assert told[0][1] is None
    in_later_rounds = told[len(told) // SETTINGS.rounds :]
    for at, left in in_later_rounds:
        assert left == pytest.approx(machine.now - at, rel=0.05)


def test_estimate_extrapolates_the_time_of_attention_from_the_two_nearest_sizes() -> None:
    machine = Machine()
    machine.attention = 0.25
    done = []
    # the slow measurement of the shortest prompt must not affect the estimate for a long one
    for size, machine.slowness in ((4, 9), (8, 1), (64, 1), (256, 1)):
        done.append(machine.run(Group(0, (size, 3), MODES), "fused", range(size), range(4), 7))
    assert estimate(done[:3], 256, "fused") == pytest.approx(done[3].elapsed_seconds, rel=0.01)


@pytest.mark.parametrize("n", [0, 5])
def test_interrupted_bench_keeps_its_measurements(n: int) -> None:
    def interrupt(group: Group, mode: str, left: float | None) -> None:
        if len(bench.measurements) == n:
            raise KeyboardInterrupt

    bench = new_bench(Machine(), on_start=interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert len(bench.measurements) == n
    assert report_of(bench).as_markdown().count("| 8 |") == 2 * n
    assert report_of(bench).as_csv().count("\n8,") == n


def test_failing_mode_is_reported_and_other_modes_are_measured() -> None:
    machine = Machine()
    machine.fails = {"fused"}
    bench = new_bench(machine, replace(SETTINGS, rounds=1, sizes=(8,), depths=(3,)))
    bench.run()
    assert {m.mode for m in bench.measurements} == {"none", "host-copy", "all-outputs"}
    assert bench.left_out == ["8 fused, 3 drafts: out of memory (1 times)"]


def test_spread_has_quartiles_from_four_measurements_on() -> None:
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3, None)
    assert Spread.of([1, 2, 3, 4, 5]) == Spread(3, 1, 5, (2, 4))
    assert Spread.of([]) is None


def test_json_report_loads_and_prints_the_same_tables(report: PrefillReport, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report.as_json())
    again = PrefillReport.load(file)
    assert again.measurements == report.measurements
    assert again.as_markdown() == report.as_markdown()
    assert json.loads(file.read_text())["cells"][0]["prefill"]["median"] == pytest.approx(1, rel=0.01)


def test_file_that_is_not_a_report_of_this_bench_is_refused(report: PrefillReport, tmp_path: Path) -> None:
    another = report.as_json().replace('"bench": "prefill"', '"bench": "decode"')
    for text in ("", "[]", "{}", '{"bench": "prefill", "measurements": [{}]}', another):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(InvalidRequestError, match="cannot be read as the report of a prefill bench"):
            PrefillReport.load(tmp_path / "x.json")


def test_csv_and_tables_have_a_line_for_each_cell(report: PrefillReport) -> None:
    n_cells = 2 * (1 + 3 * 2)  # two sizes, each with mode none and three other modes at two depths
    lines = list(csv.DictReader(report.as_csv().splitlines()))
    assert len(lines) == n_cells
    assert float(lines[-1]["prefill_ratio_median"]) == pytest.approx(0.8, abs=0.01)
    shown = StringIO()
    Console(width=200, file=shown).print(*report.as_tables(), sep="\n")
    for text in (report.as_markdown(), shown.getvalue()):
        assert text.count("fused") == 2 * 4
        assert text.index("Prefill: m.gguf") < text.index("Code output: 7 tokens after each prompt")
        assert "0.800" in text
        assert "100%" in text


def test_plot_has_a_panel_for_each_depth_and_a_line_for_each_mode(report: PrefillReport, tmp_path: Path) -> None:
    report.plot(tmp_path / "a.svg")
    report.plot(tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for words in (*MODES, "2 drafts per round", "3 drafts per round", "prefill, tokens/s"):
        assert f"<!-- {words} -->" in text


def test_damaged_json_report_is_refused_or_printed(report: PrefillReport, tmp_path: Path) -> None:
    refused, printed = count_refused_and_printed(PrefillReport, json.loads(report.as_json()), tmp_path / "x.json")
    assert min(refused, printed) > 20
