"""Tests of `pymtp tap`: it finds the tap of a head, or reports noise or a head that does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from makers import unfit_heads
from makers.gguf_variants import rewrite
from makers.new_texts import new_prompts

from pymtp import LLM, InvalidRequestError, Model, SamplingParams, Stats
from pymtp.bench import tap
from pymtp.bench.prompts import KINDS
from pymtp.bench.tap import Judgement, judge, verdict
from pymtp.cli import app_main


def run(*arguments: str | Path) -> int:
    """Run `pymtp tap` and return its exit code."""
    with pytest.raises(SystemExit) as end:
        app_main(["tap", *map(str, arguments)])
    return int(end.value.code or 0)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command generate after texts like those that the shipped model was trained on."""
    texts = new_prompts(16 * len(KINDS), 150)
    places = {kind: 16 * i for i, kind in enumerate(KINDS)}
    monkeypatch.setattr(tap, "prompt", lambda model, kind, variant: model.tokenize(texts[places[kind] + variant]))


def judgement(
    post: Sequence[int],
    pre: Sequence[int],
    current_tap: str = "post_norm",
    guessed: Sequence[int] = (),
    norm: float = 1.0,
) -> Judgement:
    """Make a judgement of prompts with 20 rounds of one draft each.

    post, pre: accepted drafts of each prompt, by tap.
    guessed: right guesses of each prompt, out of 10.
    """

    def stats(accepted: int) -> Stats:
        depths = (1,) * 20
        return Stats(rounds=20, drafted=20, accepted=accepted, depths=depths, accepted_per_position=(accepted,))

    taps = {"post_norm": [stats(n) for n in post], "pre_norm": [stats(n) for n in pre]}
    return Judgement(
        "m.gguf", current_tap, "qwen35.nextn_tap", taps, [(10, n) for n in guessed], {"blk.1.nextn.hnorm": norm}
    )


def test_tap_with_more_tokens_per_round_on_every_prompt_is_the_trained_tap() -> None:
    high, low = [15, 12, 18, 14, 16, 9], [12, 10, 13, 11, 13, 6]
    assert judgement(high, low).trained_tap == "post_norm"
    assert judgement(low, high).trained_tap == "pre_norm"


def test_no_tap_is_found_if_the_taps_differ_only_on_one_prompt() -> None:
    assert judgement([10, 10, 11, 9, 10, 20], [10, 11, 10, 9, 10, 5]).trained_tap is None
    assert judgement([0] * 6, [0] * 6).trained_tap is None


def test_confidence_interval_includes_the_difference_and_narrows_with_more_prompts() -> None:
    post, pre = [15, 12, 18, 14, 16, 9], [12, 13, 13, 11, 17, 6]
    few, many = judgement(post, pre), judgement(8 * post, 8 * pre)
    difference = few.length("post_norm") - few.length("pre_norm")
    assert difference == pytest.approx(sum(map(int.__sub__, post, pre)) / 120)
    assert few.interval()[0] < many.interval()[0] < difference < many.interval()[1] < few.interval()[1]


def test_verdict_says_which_step_is_next() -> None:
    high, low = [15, 12, 18, 14, 16, 9], [12, 10, 13, 11, 13, 6]

    def words(*accepted: Sequence[int], current_tap: str) -> str:
        return " ".join(verdict(judgement(*accepted, current_tap=current_tap)))

    assert "nothing to do" in words(high, low, current_tap="post_norm")
    other = words(high, low, current_tap="pre_norm")
    assert "--tap post_norm" in other
    assert 'qwen35.nextn_tap = "post_norm"' in other
    assert "within the noise: keep pre_norm" in words(high, high, current_tap="pre_norm")


def test_head_whose_drafts_are_worse_than_guesses_does_not_fit() -> None:
    high, low = [8, 7, 9, 7, 8, 6], [4, 3, 5, 3, 4, 2]
    assert judgement(high, low).trained_tap == "post_norm"
    for found in (judgement(high, low, guessed=[6] * 6), judgement(low, high, guessed=[6] * 6)):
        assert (found.fits, found.trained_tap) == (False, None)
        said = " ".join(verdict(found))
        assert "the head of m.gguf does not fit" in said
        assert all(figure in said for figure in ("38% with", "18% with", "guesses 60%"))
        assert "--draft-tokens 0" in said
        assert "--tap" not in said


def test_head_fits_if_its_drafts_are_not_significantly_worse_than_guesses() -> None:
    high, low = [8, 7, 9, 7, 8, 6], [4, 3, 5, 3, 4, 2]
    assert judgement(high, low, guessed=[2] * 6).trained_tap == "post_norm"
    assert judgement(high, low, guessed=[9, 1, 9, 1, 9, 2]).trained_tap == "post_norm"


def test_norms_stored_without_1_are_named_if_few_drafts_are_accepted() -> None:
    high, low = [18, 17, 19, 17, 18, 16], [14, 13, 15, 13, 14, 12]
    poor, poorer = [8, 7, 9, 7, 8, 6], [4, 3, 5, 3, 4, 2]
    named = "stored without the 1 that the model's RMSNorm adds: blk.1.nextn.hnorm (0.03)"
    assert named in " ".join(verdict(judgement(poor, poorer, norm=0.03)))
    assert named in " ".join(verdict(judgement(poor, poorer, norm=0.03, guessed=[9] * 6)))
    assert "stored" not in " ".join(verdict(judgement(high, low, norm=0.03)))
    assert "stored" not in " ".join(verdict(judgement(poor, poorer, norm=0.8, guessed=[9] * 6)))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("kind", ["hnorm", "norms", "random", "nan in a norm"])
def test_report_of_an_unfit_head_has_figures_but_no_trained_tap(
    demo: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "VARIANTS", 3)  # prompts of a kind
    path = unfit_heads.with_head(demo, tmp_path / "unfit.gguf", (unfit_heads.KINDS | unfit_heads.NO_NUMBERS)[kind])
    assert run(path, "--threads", "1", "--tokens", "16") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the head of unfit.gguf does not fit: of its first drafts" in said
    assert "was trained on" not in said
    assert ("not finite numbers" in said) == (kind in unfit_heads.NO_NUMBERS)
    norms = {"hnorm": r"hnorm\.weight \(-?0\.\d\d\)", "norms": r"\.attn_norm\.weight \(-?0\.\d\d\)"}
    assert bool(re.search(norms.get(kind, "stored without the 1"), said)) == (kind in norms)


@pytest.mark.usefixtures("known")
def test_shipped_head_uses_the_tap_that_it_was_trained_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "VARIANTS", 8)  # prompts of a kind
    assert run("--threads", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["wants"], told["says"], told["fits"]) == ("post_norm", "post_norm", True)
    assert 0.3 < told["guesses"]["right"] < 1
    assert 0.3 < told["taps"]["post_norm"]["first_draft"] < 1
    assert told["norms_without_one"] == []
    assert told["taps"]["post_norm"]["mean_accepted_length"] > told["taps"]["pre_norm"]["mean_accepted_length"]
    assert len(told["taps"]["pre_norm"]["accepted_per_position"]) == 3


def test_shipped_head_fits_on_the_prompts_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--threads", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["wants"], told["fits"], told["norms_without_one"]) == ("post_norm", True, [])
    # its short texts leave open whether the head is better than guesses
    low, high = told["guesses"]["difference"]["interval"]
    assert low < 0 < high


def test_tap_named_in_the_file_does_not_change_the_test_of_the_tap(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(demo, tmp_path / "pre.gguf", metadata={"qwen35.nextn_tap": "pre_norm"})
    told = []
    for file in (tmp_path / "pre.gguf", demo):
        assert run(file, "--threads", "1", "--tokens", "8", "--json") == 0
        told.append(json.loads(capsys.readouterr().out))
    before, same = told
    assert (before["says"], same["says"]) == ("pre_norm", "post_norm")
    for name in ("wants", "fits", "guesses", "difference", "norms_without_one"):
        assert before[name] == same[name]
    for name, found in before["taps"].items():
        assert found["accepted_per_position"] == same["taps"][name]["accepted_per_position"]


def test_text_ends_where_the_model_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["def fibonacci(n):", "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"]
    monkeypatch.setattr(tap, "VARIANTS", 1)
    with Model() as model, LLM(model, n_ctx=512, n_threads=1) as llm:
        texts = dict(zip(KINDS, [*said, *["def f(x):"] * 4], strict=True))
        monkeypatch.setattr(tap, "prompt", lambda model, kind, variant: model.tokenize(texts[kind]))
        wanted = [len(llm.generate(text, SamplingParams(128)).token_ids) for text in said]
        assert max(wanted) < 128
        stats = judge(model, tokens=128, n_threads=1).stats
        assert [[s.completion_tokens for s in each[:2]] for each in stats.values()] == [wanted, wanted]


def test_prompt_whose_text_ends_at_once_with_one_tap_is_left_out_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, n_calls = LLM.generate, 0

    def cut(self: LLM, prompts: list[list[int]], params: SamplingParams) -> Any:
        nonlocal n_calls
        each = [replace(params, max_tokens=1) if i == n_calls else params for i in range(len(prompts))]
        n_calls += 1
        return generate(self, prompts, each)

    monkeypatch.setattr(tap, "VARIANTS", 1)
    texts = dict(zip(KINDS, ["def f(x):", "import ", "Once upon a time", "What is", "Tell a story"], strict=False))
    monkeypatch.setattr(tap, "prompt", lambda model, kind, variant: model.tokenize(texts[kind]))
    with Model() as model:
        whole = judge(model, tokens=8, n_threads=1)
        monkeypatch.setattr(LLM, "generate", cut)
        # the first tap's first text and the second tap's second text end at once
        found = judge(model, tokens=8, n_threads=1)
    for each, stats in whole.stats.items():
        assert len(stats) == len(texts)
        assert [s.depths for s in found.stats[each]] == [s.depths for s in stats[2:]]
    assert found.guesses == whole.guesses[2:]


def test_model_that_ends_its_texts_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "ends_generation", lambda self, token: True)
    with Model() as model, pytest.raises(InvalidRequestError, match="ends its text at once"):
        judge(model, tokens=8, n_threads=1)


def test_model_without_head_is_refused(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(headless) == 2
    shown = capsys.readouterr()
    assert "headless.gguf has no multi-token-prediction head" in " ".join(shown.err.split())
    assert shown.out == ""


def test_file_that_is_not_a_model_is_refused() -> None:
    assert run("nowhere.gguf") == 3
