"""Claims about `pymtp tap`: it finds the tap that a head was trained on, or says that it cannot tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from makers.gguf_variants import rewrite

from pymtp import Stats
from pymtp.bench.tap import Judgement, in_words
from pymtp.cli import app_main


def run(*arguments: str | Path) -> int:
    """Exit code of `pymtp tap`."""
    with pytest.raises(SystemExit) as end:
        app_main(["tap", *map(str, arguments)])
    return int(end.value.code or 0)


def judgement(post: Sequence[int], pre: Sequence[int], says: str = "post_norm") -> Judgement:
    """20 rounds of one draft after each prompt, of which so many were accepted."""

    def stats(accepted: int) -> Stats:
        depths = (1,) * 20
        return Stats(rounds=20, drafted=20, accepted=accepted, depths=depths, accepted_per_position=(accepted,))

    taps = {"post_norm": [stats(n) for n in post], "pre_norm": [stats(n) for n in pre]}
    return Judgement("m.gguf", says, "qwen35.nextn_tap", taps)


def test_the_tap_that_brings_more_after_every_prompt_is_wanted() -> None:
    high, low = [15, 12, 18, 14, 16, 9], [12, 10, 13, 11, 13, 6]
    assert judgement(high, low).wants == "post_norm"
    assert judgement(low, high).wants == "pre_norm"


def test_a_difference_that_one_prompt_makes_is_noise() -> None:
    assert judgement([10, 10, 11, 9, 10, 20], [10, 11, 10, 9, 10, 5]).wants is None
    assert judgement([0] * 6, [0] * 6).wants is None


def test_the_interval_holds_the_difference_and_narrows_with_more_prompts() -> None:
    post, pre = [15, 12, 18, 14, 16, 9], [12, 13, 13, 11, 17, 6]
    few, many = judgement(post, pre), judgement(8 * post, 8 * pre)
    difference = few.length("post_norm") - few.length("pre_norm")
    assert difference == pytest.approx(sum(map(int.__sub__, post, pre)) / 120)
    assert few.interval()[0] < many.interval()[0] < difference < many.interval()[1] < few.interval()[1]


def test_the_verdict_says_what_to_do() -> None:
    high, low = [15, 12, 18, 14, 16, 9], [12, 10, 13, 11, 13, 6]

    def words(*of: Sequence[int], says: str) -> str:
        return " ".join(in_words(judgement(*of, says=says)))

    assert "nothing to do" in words(high, low, says="post_norm")
    other = words(high, low, says="pre_norm")
    assert "--tap post_norm" in other
    assert 'qwen35.nextn_tap = "post_norm"' in other
    assert "within the noise: keep pre_norm" in words(high, high, says="pre_norm")


def test_the_shipped_head_wants_the_tap_it_was_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--threads", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["wants"], told["says"]) == ("post_norm", "post_norm")
    assert told["taps"]["post_norm"]["mean_accepted_length"] > told["taps"]["pre_norm"]["mean_accepted_length"]
    assert len(told["taps"]["pre_norm"]["accepted_per_position"]) == 3


def test_what_the_file_says_does_not_decide_what_is_measured(
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


def test_a_model_without_head_is_refused(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(headless) == 2
    shown = capsys.readouterr()
    assert "headless.gguf has no multi-token-prediction head" in " ".join(shown.err.split())
    assert shown.out == ""


def test_a_file_that_is_no_model_is_refused() -> None:
    assert run("nowhere.gguf") == 3
