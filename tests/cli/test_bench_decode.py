"""Claims about `pymtp bench decode`: mistakes are told before any work; the shipped model goes through its arms."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, make_llm
from helpers import bench_command
from helpers.bench_command import MISTAKES, interrupted
from makers.gguf_variants import rewrite

import pymtp
from pymtp.bench.decode import Arms, Group, Settings
from pymtp.bench.prompts import KINDS, VARIANTS, prompt
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.cli.screen import screen
from pymtp.context.context import Context
from pymtp.drafting.depth import MAX_AUTO

SETTINGS = Settings("demo.gguf", ("none",), ("code",), (0.7,), 24, 1, None, 1, 0, "f16")
SMALL = ("--depths", "3,none,1,auto", "--kinds", "random,code", "--tokens", "16", "--rounds", "1", "--threads", "1")


def run(*arguments: str | Path) -> int:
    return bench_command.run("decode", *arguments)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the shipped model, as JSON."""
    return bench_command.written("decode", tmp_path_factory.mktemp("bench") / "report.json", *SMALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--depths", "none,9"], "'9' is not known, there are none, 1, 2, 3, 4, 5, 6, 7, 8, 1:host-copy"),
        (["--depths", ""], "--depths '' is not known"),
        (["--kinds", "code,poems"], "'poems' is not known, there are code, prose"),
        (["--temperatures", "0,warm"], "must be numbers 0 or more"),
        (["--temperatures", "-1"], "must be numbers 0 or more"),
        (["--temperatures", "nan"], "must be numbers 0 or more"),
        (["--synthetic-acceptance", "0.5,1.5"], "must be numbers from 0 to 1"),
        (["--synthetic-acceptance", "0.5,0.6"], "must not rise"),
        (["--tokens", "1"], "--tokens"),
        *MISTAKES,
    ],
    ids=str,
)
def test_mistakes_are_told_before_any_work(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_told_before_any_work("decode", arguments, words, capsys)


def test_a_model_without_head_is_told_what_it_can_do(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_command.check_told_of_no_head("decode", headless, SMALL, ("--depths", "none"), "Decoding, greedy", capsys)


def test_the_shipped_model_goes_through_all_arms_and_says_the_same_in_each(measured: Path) -> None:
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
        # one for a chain, be it discarded whole; one after rounds without drafts, for what the head was left behind by
        without = stats["depths"].count(0)
        drafting = stats["rounds"] - without
        assert drafting <= m["draft_launches"] <= drafting + without + min(without, stats["discarded"])
        assert stats["drafted"] == sum(stats["depths"])
        assert max(stats["depths"]) <= {"none": 0, "1": 1, "3": 3, "auto": MAX_AUTO}[m["arm"]]
    assert report["texts_compared"] == 3 * 2 * 2
    assert report["differences"] == []
    texts = {m["digest"] for m in measurements}
    assert len(texts) == 4  # kinds and temperatures


def test_a_report_is_shown_and_drawn_again_without_measuring(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_command.check_shown_and_drawn_again("decode", measured, tmp_path, "same text: yes, 12 texts compared", capsys)


def test_synthetic_acceptance_of_the_shipped_model_is_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--temperatures", "0", "--synthetic-acceptance", "1,1,0", "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    (cell,) = (c for c in report["cells"] if (c["arm"], c["kind"]) == ("3", "all"))
    assert cell["accepted_per_position"] == [1, 1, 0]
    assert report["texts_compared"] == 0


def test_drafts_accepted_synthetically_are_in_the_caches(demo_f32: Path) -> None:
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_prompts_of_a_kind_are_three_short_ones_and_the_same_each_time(kind: str, llm: pymtp.LLM) -> None:
    prompts = [prompt(llm.model, kind, i) for i in range(2 * VARIANTS)]
    assert prompts[:VARIANTS] == prompts[VARIANTS:]
    assert len(set(map(tuple, prompts))) == VARIANTS
    assert all(0 < len(tokens) < 200 for tokens in prompts)
    llm.model.check_tokens([token for tokens in prompts for token in tokens])


def test_chat_prompts_go_through_the_models_template_where_it_has_one(
    llm: pymtp.LLM, demo: Path, tmp_path: Path
) -> None:
    said = "Can you explain in simple words why the sky is blue in the day and red in the evening?"
    rendered = llm.chat_template.render([{"role": "user", "content": said}])
    assert prompt(llm.model, "chat", 0) == llm.model.tokenize(rendered)
    rewrite(demo, tmp_path / "bare.gguf", metadata={"tokenizer.chat_template": None})
    with pymtp.Model(tmp_path / "bare.gguf", vocab_only=True) as bare:
        assert bare.detokenize(prompt(bare, "chat", 0)) == f"User: {said}\nAssistant:"


def test_a_later_round_draws_another_text_after_the_same_prompt() -> None:
    with pymtp.Model() as model, closing(Arms(model, SETTINGS)) as arms:
        first, again, later = (arms.run(Group(i, "code", 0.7, ("none",)), "none").token_ids for i in (0, 0, VARIANTS))
    assert first == again != later


def test_the_name_of_a_new_arm_is_not_taken_for_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print("round 1: prose, greedy, auto:new: 12/s")
    assert "auto:new: 12/s" in capsys.readouterr().err


def test_what_is_measured_was_not_written_to_warm_up() -> None:
    settings = replace(SETTINGS, kinds=KINDS, tokens=2)
    read: list[list[int]] = []
    with pymtp.Model() as model, closing(Arms(model, settings)) as arms, pytest.MonkeyPatch.context() as patch:
        prefill = Context.prefill_batch
        patch.setattr(Context, "prefill_batch", lambda c, prompts: read.append(list(prompts[0])) or prefill(c, prompts))
        for kind in KINDS:
            arms.run(Group(0, kind, 0.7, ()), "3")
        warming, *measured = read
        assert measured == [prompt(model, kind, 0) for kind in KINDS]
        prompts = [prompt(model, kind, i) for kind in KINDS for i in range(VARIANTS)]
    assert all(warming[:4] != tokens[:4] for tokens in prompts)


def test_a_new_arm_is_a_new_llm_for_each_completion_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[pymtp.LLM] = []

    def make(*arguments: Any, **keywords: Any) -> pymtp.LLM:
        made.append(pymtp.LLM(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr("pymtp.bench.decode.LLM", make)
    with pymtp.Model() as model, closing(Arms(model, SETTINGS)) as arms:
        texts = [arms.run(Group(0, "code", 0.7, ()), arm).token_ids for arm in ("auto:new", "auto:new", "auto", "auto")]
        assert len(made) == 3
        for llm in made[:2]:
            with pytest.raises(pymtp.ClosedError):
                llm.generate("x")
    assert texts == [texts[0]] * 4


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_ctrl_c_shows_what_is_done_and_ends_with_130() -> None:
    script = [sys.executable, str(ROOT / "tools/bench_decode.py"), *SMALL, "--rounds", "100000"]
    code, out, err = interrupted(script, "round 2: code, greedy")
    assert code == 130
    assert "Traceback" not in err
    assert "Decoding, greedy: demo.gguf" in out
    assert "left out: the measurements after the interruption" in out
