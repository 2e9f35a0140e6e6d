"""Tests of `pymtp tap`: it finds the tap of a head, or reports noise or a head that does not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from makers.gguf_variants import rewrite
from makers.unfit_heads import KINDS, NO_NUMBERS, with_head

from pymtp import Stats
from pymtp.bench.tap import Judgement, verdict
from pymtp.cli import app_main


def run(*arguments: str | Path) -> int:
    """Run `pymtp tap` and return its exit code."""
    with pytest.raises(SystemExit) as end:
        app_main(["tap", *map(str, arguments)])
    return int(end.value.code or 0)


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


@pytest.mark.parametrize("kind", ["hnorm", "norms", "random", "nan in a norm"])
def test_report_of_an_unfit_head_has_figures_but_no_trained_tap(
    demo: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymtp.bench.tap.VARIANTS", 1)  # prompts of a kind
    path = with_head(demo, tmp_path / "unfit.gguf", (KINDS | NO_NUMBERS)[kind])
    assert run(path, "--threads", "1", "--tokens", "16") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the head of unfit.gguf does not fit: of its first drafts" in said
    assert "was trained on" not in said
    assert ("not finite numbers" in said) == (kind in NO_NUMBERS)
    norms = {"hnorm": "hnorm.weight (0.03)", "norms": "blk.8.attn_norm.weight (0.03)"}
    assert (norms.get(kind, "stored without the 1") in said) == (kind in norms)


def test_shipped_head_uses_the_tap_that_it_was_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--threads", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["wants"], told["says"], told["fits"]) == ("post_norm", "post_norm", True)
    assert 0.3 < told["guesses"]["right"] < told["taps"]["post_norm"]["first_draft"] < 1
    assert told["norms_without_one"] == []
    assert told["taps"]["post_norm"]["mean_accepted_length"] > told["taps"]["pre_norm"]["mean_accepted_length"]
    assert len(told["taps"]["pre_norm"]["accepted_per_position"]) == 3


def test_tap_named_in_the_file_does_not_change_the_test_of_the_tap(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(demo, tmp_path / "pre.gguf", metadata={"qwen35.nextn_tap": "pre_norm"})
    assert run(tmp_path / "pre.gguf", "--threads", "1", "--tokens", "8") == 0
    before = capsys.readouterr().out
    assert run("--threads", "1", "--tokens", "8") == 0
    same = capsys.readouterr().out
    table = "tokens per round over"
    assert before[: before.index(table)] == same[: same.index(table)]
    assert "keep pre_norm" in before


def test_model_without_head_is_refused(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(headless) == 2
    shown = capsys.readouterr()
    assert "headless.gguf has no multi-token-prediction head" in " ".join(shown.err.split())
    assert shown.out == ""


def test_file_that_is_not_a_model_is_refused() -> None:
    assert run("nowhere.gguf") == 3
