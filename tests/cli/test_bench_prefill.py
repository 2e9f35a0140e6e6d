"""Tests of `pymtp bench prefill`: it refuses invalid arguments before any work, and measures the shipped model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import bench_command
from helpers.bench_command import INVALID_ARGUMENTS, run_interrupted

import pymtp
from pymtp.bench.paired import Group
from pymtp.bench.prefill import MODES, measure
from pymtp.cli.bench_values import check_modes
from pymtp.context.context import Context

SMALL = ("--sizes", "300,64", "--depths", "2", "--gen", "24", "--rounds", "2", "--threads", "1")


def run(*arguments: str | Path) -> int:
    return bench_command.run("prefill", *arguments)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure the shipped model; the report as a JSON file."""
    return bench_command.write_report("prefill", tmp_path_factory.mktemp("bench") / "report.json", *SMALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "1k,100k"], "100k: with 128 tokens after the prompt, more than the 8192 tokens"),
        (["--sizes", "8k", "--gen", "1000"], "8k: with 1000 tokens after"),
        (["--sizes", "many"], "whole numbers"),
        (["--sizes", ""], "whole numbers"),
        (["--depths", "0"], "whole numbers"),
        (["--depths", "65"], "from 1 to 64"),
        (["--modes", "none,fast"], "'fast' is not known, the names are none, all-outputs, host-copy, fused"),
        (["--gen", "16385"], "16384"),
        (["--synthetic-acceptance", "0.5,0.6"], "no rate can be higher than the rate before it"),
        (["--prompt-file", "nowhere.txt"], "nowhere.txt"),
        (["--prompt-file", os.devnull], "is empty"),
        *INVALID_ARGUMENTS,
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_refused_before_any_work("prefill", arguments, words, capsys)


def test_model_without_head_is_refused_with_a_hint(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", headless, "--quick") == 2
    assert "only be measured with --modes none" in " ".join(capsys.readouterr().err.split())
    assert run("-m", headless, *SMALL, "--modes", "none") == 0
    assert "fused" not in capsys.readouterr().out


def test_all_outputs_is_refused_for_a_pre_norm_head() -> None:
    with pymtp.Model(vocab_only=True) as model:
        check_modes(model, MODES)
        model.tap = "pre_norm"
        with pytest.raises(pymtp.InvalidRequestError, match="--modes none,host-copy,fused"):
            check_modes(model, MODES)


def test_check_of_the_plot_path_creates_no_file(tmp_path: Path) -> None:
    assert run("--plot", tmp_path / "x.svg", "--modes", "fast") == 2
    assert list(tmp_path.iterdir()) == []


def test_plot_without_matplotlib_names_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymtp.bench.plot.find_spec", lambda name: None)
    assert run("--quick", "--plot", tmp_path / "x.svg") == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_shipped_model_generates_the_same_text_in_all_prefill_modes(measured: Path, llm: pymtp.LLM) -> None:
    report = json.loads(measured.read_text())
    assert report["build"] == json.loads(json.dumps(pymtp.build_info()))
    measurements: list[dict[str, Any]] = report["measurements"]
    assert len(measurements) == 2 * 2 * len(MODES)
    widths = {"hidden": llm.model.n_embd, "logits": llm.model.n_vocab, "embeddings": llm.model.n_embd}  # floats per row
    for m in measurements:
        assert m["stats"]["prompt_tokens"] == m["size"]
        assert m["stats"]["completion_tokens"] == 24
        assert (m["stats"]["drafted"] > 0) == (m["mode"] != "none")
        has_head_sync = m["stats"]["phase_seconds"]["head_sync"] > 0
        assert has_head_sync == (m["mode"] in ("host-copy", "all-outputs"))
        rows = {name: m[f"{name}_bytes"] / 4 / widths[name] for name in widths}
        whole = m["size"]
        assert rows == {
            "hidden": whole if m["mode"] == "host-copy" else 0,
            "logits": whole if m["mode"] == "all-outputs" else 1,
            "embeddings": whole if m["mode"] == "all-outputs" else 0,
        }
    caches = {m["mode"]: m["memory"][0]["cache"] for m in measurements if m["size"] == 300}
    assert caches.pop("none") < min(caches.values())  # mode none has no context of the head
    for size in (64, 300):
        rounds = [{m["stats"]["rounds"] for m in measurements if (m["round"], m["size"]) == (i, size)} for i in (0, 1)]
        assert all(
            len(counts) == 2 for counts in rounds
        )  # one number for plain decoding, and one for all modes with drafts
    assert [c["mode"] for c in report["cells"]] == 2 * [*MODES]
    assert all(c["prefill_ratio"]["median"] > 0 for c in report["cells"] if c["mode"] != "none")


def test_each_mode_is_measured_in_a_new_llm_that_first_prefills_other_tokens_and_is_closed() -> None:
    made: list[pymtp.LLM] = []
    read: list[list[int]] = []
    prompt, warm_up = list(range(100, 140)), list(range(200, 300))
    prefill = Context.prefill_batch
    with pymtp.Model() as model, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Context, "prefill_batch", lambda c, prompts, *_: read.append(list(prompts[0])) or prefill(c, prompts)
        )

        def make(mode: str, draft_tokens: int, n_ctx: int) -> pymtp.LLM:
            made.append(pymtp.LLM(model, n_ctx=n_ctx, draft_tokens=draft_tokens, prefill=mode, cache_prompt=False))
            return made[-1]

        for mode in ("host-copy", "fused"):
            measured = measure(make, Group(0, (40, 3), MODES), mode, prompt, warm_up, 2)
            assert (measured.stats.prompt_tokens, measured.stats.completion_tokens) == (40, 2)
        for llm in made:
            with pytest.raises(pymtp.ClosedError):
                llm.generate("x")
    assert read == [warm_up[:40], prompt] * 2
    assert len(made) == 2


def test_saved_report_is_shown_and_plotted_without_measuring(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_saved_report_is_shown_and_plotted(
        "prefill", measured, tmp_path, "**Code output: 24 tokens after each prompt**", capsys
    )


def test_default_sizes_that_are_too_long_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--modes", "none", "--rounds", "1", "--gen", "2", "-t", "1") == 0
    assert "left out: prompts of 8k, 32k, 64k, 128k, 192k" in " ".join(capsys.readouterr().out.split())


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_ctrl_c_shows_finished_measurements_and_exits_with_130() -> None:
    endless = ["prefill", "--sizes", "64,256", "--depths", "2", "--rounds", "10000", "-t", "1"]
    code, out, err = run_interrupted(endless, "round 1: 64 fused")
    assert code == 130
    assert "Traceback" not in err
    assert "Prefill: demo.gguf" in out
    assert "fused" in out
    assert "left out: the measurements after the interruption" in out


def test_decoding_after_a_prompt_can_use_synthetic_acceptance(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sizes", "64", "--depths", "2", "--gen", "24", "--rounds", "1", "--threads", "1")
    assert run(*options, "--modes", "none,fused", "--synthetic-acceptance", "1,0", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    none, fused = report["cells"]
    assert none["acceptance_rate"] is None
    assert fused["acceptance_rate"] == 0.5
