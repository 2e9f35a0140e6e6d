"""Tests of `pymtp bench decode`: it refuses invalid arguments before any work, and measures the shipped model."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers import bench_command
from helpers.bench_command import INVALID_ARGUMENTS, run_interrupted
from makers.gguf_variants import rewrite

import pymtp
from pymtp.bench.decode import DecodeArms, DecodeSettings, digest
from pymtp.bench.paired import Group
from pymtp.bench.prompts import KINDS, VARIANTS, prompt
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.cli.screen import screen
from pymtp.context.context import Context
from pymtp.drafting.depth import MAX_AUTO

SETTINGS = DecodeSettings(
    model="demo.gguf",
    arms=("none",),
    kinds=("code",),
    temperatures=(0.7,),
    tokens=24,
    rounds=1,
    synthetic=None,
    threads=1,
    gpu_layers=0,
    cache_type="f16",
)
SMALL = ("--depths", "3,none,1,auto", "--kinds", "random,code", "--tokens", "16", "--rounds", "1", "--threads", "1")
SMALL = (*SMALL, "--temperatures", "0,1.5")


def run(*arguments: str | Path) -> int:
    return bench_command.run("decode", *arguments)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure the shipped model; the report as a JSON file."""
    return bench_command.write_report("decode", tmp_path_factory.mktemp("bench") / "report.json", *SMALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--depths", "none,9"], "'9' is not known, the names are none, 1, 2, 3, 4, 5, 6, 7, 8, 1:host-copy"),
        (["--depths", ""], "--depths '' is not known"),
        (["--kinds", "code,poems"], "'poems' is not known, the names are code, prose"),
        (["--temperatures", "0,warm"], "must be numbers 0 or more"),
        (["--temperatures", "-1"], "must be numbers 0 or more"),
        (["--temperatures", "nan"], "must be numbers 0 or more"),
        (["--synthetic-acceptance", "0.5,1.5"], "must be numbers from 0 to 1"),
        (["--synthetic-acceptance", "0.5,0.6"], "no rate can be higher than the rate before it"),
        (["--tokens", "1"], "--tokens"),
        (["--forced-text", "nowhere.jsonl"], "cannot read texts from nowhere.jsonl: No such file"),
        *INVALID_ARGUMENTS,
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_refused_before_any_work("decode", arguments, words, capsys)


def test_model_without_head_is_refused_with_a_hint(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_command.check_refused_without_head(
        "decode", headless, SMALL, ("--depths", "none"), "Decoding, greedy", capsys
    )


def test_shipped_model_generates_the_same_text_in_all_arms(measured: Path) -> None:
    report = json.loads(measured.read_text())
    assert report["build"] == json.loads(json.dumps(pymtp.build_info()))
    measurements: list[dict[str, Any]] = report["measurements"]
    assert len(measurements) == 4 * 2 * 2
    for m in measurements:
        stats, phases = m["stats"], m["phase_seconds"]
        assert stats["completion_tokens"] == 16
        assert sum(phases[name] for name in ("draft", "verify", "rewind", "python")) == pytest.approx(
            stats["decode_seconds"]
        )
        assert min(phases.values()) >= 0
        assert m["target_launches"] == stats["rounds"]
        # one call for each draft chain, even if it is discarded, and one for the head after rounds without drafts
        without = stats["depths"].count(0)
        drafting = stats["rounds"] - without
        assert drafting <= m["draft_launches"] <= drafting + without + min(without, stats["discarded"])
        assert stats["drafted"] == sum(stats["depths"])
        assert max(stats["depths"]) <= {"none": 0, "1": 1, "3": 3, "auto": MAX_AUTO}[m["arm"]]
    assert report["texts_compared"] == 3 * 2 * 2
    assert report["differences"] == []
    texts = {m["digest"] for m in measurements}
    assert len(texts) == 4  # two kinds at two temperatures


def test_saved_report_is_shown_and_plotted_without_measuring(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_saved_report_is_shown_and_plotted(
        "decode", measured, tmp_path, "same text: yes, 12 texts compared", capsys
    )


def test_synthetic_acceptance_has_the_given_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--temperatures", "0", "--synthetic-acceptance", "1,1,0", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    (cell,) = (c for c in report["cells"] if (c["arm"], c["kind"]) == ("3", "all"))
    assert cell["accepted_per_position"] == [1, 1, 0]
    assert report["texts_compared"] == 0


def test_drafts_accepted_at_synthetic_rates_are_in_the_caches(demo_f32: Path) -> None:
    with pymtp.Model(demo_f32) as model:
        tokens = prompt(model, "prose", 0)
        keywords: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "draft_tokens": 3}
        params = pymtp.SamplingParams(40, ignore_eos=True)
        with SyntheticLLM(model, (0.9, 0.6, 0.3), **keywords) as llm:
            written = llm.generate(tokens, params).token_ids
            assert llm.context.tokens() == tokens + written[:-1]
            after = [llm.context.draft(written[-1]), llm.context.verify([written[-1]])[0]]
        with make_llm(demo_f32, draft_tokens=3) as fresh:
            assert fresh.generate(tokens, params).token_ids != written
            fresh.context.clear()
            fresh.context.prefill(tokens + written[:-1])
            expected = [fresh.context.draft(written[-1]), fresh.context.verify([written[-1]])[0]]
    for logits, right in zip(after, expected, strict=True):
        np.testing.assert_allclose(logits, right, atol=2e-3)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Write a file with two forced texts of 20 to 60 tokens."""
    text = "".join(f"    names.append({name!r})\n" for name in ("left", "right", "upper"))
    lines = ({"kind": kind, "prompt": f"{text}# {kind}\n", "text": text} for kind in ("first", "second"))
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "texts.jsonl"


def test_forced_texts_of_a_file_are_generated_in_all_arms(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--forced-text", texts, "--kinds", "code") == 2
    assert "'code' is not known, the names are first, second" in " ".join(capsys.readouterr().err.split())
    assert run("--forced-text", texts, "--rounds", "1", "--threads", "1", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["texts_compared"], report["differences"]) == (2 * 3, [])
    assert {(m["kind"], m["arm"], m["temperature"]) for m in report["measurements"]} == {
        (kind, arm, 0) for kind in ("first", "second") for arm in ("none", "2", "auto:head", "auto")
    }
    with pymtp.Model() as model:
        tokens = model.tokenize(json.loads(texts.read_text().splitlines()[0])["text"], add_special=False)
    assert {m["digest"] for m in report["measurements"]} == {digest(tokens)}
    assert {m["stats"]["drafted_by_text"] for m in report["measurements"] if m["arm"] != "auto"} == {0}
    assert report["predicted"]["first"] > 0.5
    (cell,) = (c for c in report["cells"] if (c["arm"], c["kind"]) == ("2", "all"))
    assert cell["head_ratio"]["median"] > 0
    assert 0 < cell["accepted_per_position"][0] < 1


def test_model_without_head_generates_forced_texts_without_drafts_and_with_auto(
    texts: Path, headless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forced = ("-m", headless, "--forced-text", texts, "--rounds", "1", "--threads", "1")
    assert run(*forced, "--depths", "none,2") == 2
    assert "only be measured with --depths none,auto" in " ".join(capsys.readouterr().err.split())
    assert run(*forced, "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {m["arm"] for m in report["measurements"]} == {"none", "auto"}
    assert (report["texts_compared"], report["differences"]) == (2, [])


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_three_short_reproducible_prompts(kind: str, llm: pymtp.LLM) -> None:
    prompts = [prompt(llm.model, kind, i) for i in range(2 * VARIANTS)]
    assert prompts[:VARIANTS] == prompts[VARIANTS:]
    assert len(set(map(tuple, prompts))) == VARIANTS
    assert all(0 < len(tokens) < 200 for tokens in prompts)
    llm.model.check_tokens([token for tokens in prompts for token in tokens])


def test_chat_prompts_use_the_model_s_template_if_it_has_one(llm: pymtp.LLM, demo: Path, tmp_path: Path) -> None:
    said = "Can you explain in simple words why the sky is blue in the day and red in the evening?"
    rendered = llm.chat_template.render([{"role": "user", "content": said}])
    assert prompt(llm.model, "chat", 0) == llm.model.tokenize(rendered)
    rewrite(demo, tmp_path / "bare.gguf", metadata={"tokenizer.chat_template": None})
    with pymtp.Model(tmp_path / "bare.gguf", vocab_only=True) as bare:
        assert bare.detokenize(prompt(bare, "chat", 0)) == f"User: {said}\nAssistant:"


def test_later_round_with_the_same_prompt_samples_another_text() -> None:
    with pymtp.Model() as model, closing(DecodeArms(model, SETTINGS)) as arms:
        first, again, later = (
            arms.measure(Group(i, ("code", 1.5), ("none",)), "none").token_ids for i in (0, 0, VARIANTS)
        )
    assert first == again != later


def test_new_in_the_name_of_an_arm_is_not_printed_as_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print("round 1: prose, greedy, auto:new: 12/s")
    assert "auto:new: 12/s" in capsys.readouterr().err


def test_warm_up_uses_another_prompt_than_the_measurements() -> None:
    settings = replace(SETTINGS, kinds=KINDS, tokens=2)
    read: list[list[int]] = []
    with pymtp.Model() as model, closing(DecodeArms(model, settings)) as arms, pytest.MonkeyPatch.context() as patch:
        prefill = Context.prefill_batch
        patch.setattr(
            Context, "prefill_batch", lambda c, prompts, *_: read.append(list(prompts[0])) or prefill(c, prompts)
        )
        for kind in KINDS:
            arms.measure(Group(0, (kind, 0.7), ()), "3")
        warming, *measured = read
        assert measured == [prompt(model, kind, 0) for kind in KINDS]
        prompts = [prompt(model, kind, i) for kind in KINDS for i in range(VARIANTS)]
    assert all(warming[:4] != tokens[:4] for tokens in prompts)


def test_arm_with_new_makes_an_llm_for_each_completion_and_other_arms_reuse_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[pymtp.LLM] = []

    def make(*arguments: Any, **keywords: Any) -> pymtp.LLM:
        made.append(pymtp.LLM(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr("pymtp.bench.decode.LLM", make)
    with pymtp.Model() as model, closing(DecodeArms(model, SETTINGS)) as arms:
        texts = [
            arms.measure(Group(0, ("code", 0.7), ()), arm).token_ids for arm in ("auto:new", "auto:new", "auto", "auto")
        ]
        assert len(made) == 3
        for llm in made[:2]:
            with pytest.raises(pymtp.ClosedError):
                llm.generate("x")
    assert texts == [texts[0]] * 4


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_ctrl_c_shows_finished_measurements_and_exits_with_130() -> None:
    endless = ["decode", *SMALL, "--kinds", "code", "--temperatures", "0", "--rounds", "100000"]
    code, out, err = run_interrupted(endless, "round 2: code, greedy")
    assert code == 130
    assert "Traceback" not in err
    assert "Decoding, greedy: demo.gguf" in out
    assert "left out: the measurements after the interruption" in out
