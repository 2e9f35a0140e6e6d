"""Tests of heads that do not fit their model: the text stays right, drafts are lost, and one warning is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from makers.head_file import read_tensor, write_pair
from makers.unfit_heads import KINDS, NO_NUMBERS, with_head

from pymtp import Completion, Model, SamplingParams
from pymtp.engine.rounds import FEW_DRAFTS, MANY_DRAFTS, MAX_TEXTS_WITHOUT_LOGITS, ROUNDS, HeadCheck

PROMPTS = ["import os\n\n\ndef main() -> None:\n", "class Stack:\n", "x = 1\nx = 1\nx = 1\n"]
ODD = "# zebra"
PARAMS = [
    SamplingParams(12, ignore_eos=True),
    SamplingParams(12, temperature=1.0, top_k=0, seed=3, ignore_eos=True),
    SamplingParams(12, temperature=0.8, top_k=20, seed=4, repetition_penalty=1.2, logprobs=2, ignore_eos=True),
]
GRAMMAR = SamplingParams(12, grammar='root ::= [a-z ]+ "\\n" [a-z]+', temperature=1.0)


@pytest.fixture(scope="module")
def unfit(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes the shipped model with an unfit head of the given kind."""
    folder = tmp_path_factory.mktemp("unfit")

    def file(kind: str) -> Path:
        path = folder / f"{kind}.gguf"
        return path if path.exists() else with_head(demo, path, (KINDS | NO_NUMBERS)[kind])

    return file


@pytest.fixture
def warnings_of_drafts(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return a function that lists the logged warnings about drafts."""
    with caplog.at_level(logging.INFO, "pymtp.drafts"):
        yield lambda: [r.getMessage() for r in caplog.records if r.name == "pymtp.drafts"]


def written(path: Path, **options: object) -> list[Completion]:
    with make_llm(path, **({"n_ctx": 256, "n_seq_max": 3} | options)) as llm:
        alone = [llm.generate(PROMPTS[0], params) for params in [*PARAMS, GRAMMAR]]
        return alone + llm.generate(PROMPTS, PARAMS)


@pytest.fixture(scope="module")
def without_drafts(unfit: Callable[[str], Path]) -> Callable[[str], list[Completion]]:
    """Return a function that generates the texts of a model with an unfit head without drafts, once for each kind."""
    return cache(lambda kind: written(unfit(kind), draft_tokens=0))


@pytest.mark.parametrize(
    ("kind", "drafts", "draws"),
    [
        *((kind, 3, draws) for kind in NO_NUMBERS for draws in ("host", "device")),
        ("nan in a norm", "auto", "host"),
    ],
)
def test_head_without_finite_logits_makes_no_drafts_and_logs_one_warning(
    unfit: Callable[[str], Path],
    without_drafts: Callable[[str], list[Completion]],
    kind: str,
    drafts: int | str,
    draws: str,
    warnings_of_drafts: Callable[[], list[str]],
) -> None:
    expected = without_drafts(kind)
    before = len(warnings_of_drafts())
    found = written(unfit(kind), draft_tokens=drafts, draws=draws, draft_text=0)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]
    assert sum(one.stats.drafted for one in found) == 0
    (line,) = warnings_of_drafts()[before:]
    assert line.startswith(f"{kind}.gguf: the head's logits are not finite")
    assert "draft_tokens=0" in line


@pytest.mark.parametrize("prefill", ["host-copy", "all-outputs"])
def test_head_without_finite_logits_does_not_change_the_text_with_host_copies(
    unfit: Callable[[str], Path], prefill: str
) -> None:
    path = unfit("nan in a norm")
    expected = written(path, draft_tokens=0, n_seq_max=1)
    found = written(path, draft_tokens=3, n_seq_max=1, prefill=prefill)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]


def test_head_without_finite_logits_runs_once_per_text_and_stops_after_a_few_texts(
    unfit: Callable[[str], Path],
) -> None:
    with make_llm(unfit("nan in a norm"), n_ctx=256) as llm:
        launches = []
        for prompt in [*PROMPTS, *PROMPTS]:
            before = llm.context.counters.draft_decodes
            llm.generate(prompt, PARAMS[0])
            launches.append(llm.context.counters.draft_decodes - before)
        assert MAX_TEXTS_WITHOUT_LOGITS == 3
        assert launches == [1, 1, 1, 0, 0, 0]


@pytest.fixture(scope="module")
def nan_head(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write the shipped trunk, and a head whose logits are NaN once a text contains " z", as the prompt ODD does."""
    embeddings = read_tensor(demo, "token_embd.weight")
    with Model(demo, vocab_only=True) as model:
        embeddings[model.tokenize(" z", add_special=False)] = np.nan
    return write_pair(demo, tmp_path_factory.mktemp("odd"), tensors={"token_embd.weight": embeddings})


def test_text_without_finite_head_logits_does_not_affect_the_drafts_of_other_texts(nan_head: tuple[Path, Path]) -> None:
    with make_llm(nan_head[0], head=nan_head[1], n_ctx=256, n_seq_max=3, draft_tokens=3) as llm:
        long, short = SamplingParams(100, ignore_eos=True), PARAMS[0]
        prompts = [ODD, ODD + "a", PROMPTS[0], ODD + "b", PROMPTS[1]]
        found = llm.generate(prompts, [long, long, short, short, short])
        assert [one.stats.drafted > 0 for one in found] == [False, False, True, False, True]
        assert llm.generate(PROMPTS[2], short).stats.drafted > 0


@pytest.mark.parametrize("options", [{}, {"prefill": "host-copy"}, {"n_seq_max": 2}], ids=str)
@pytest.mark.parametrize("flash_attn", ["auto", "off"])
def test_nan_in_the_heads_cache_does_not_affect_later_texts(
    nan_head: tuple[Path, Path], flash_attn: str, options: dict[str, Any]
) -> None:
    prompts = PROMPTS[:2] * 2
    with make_llm(nan_head[0], head=nan_head[1], n_ctx=512, draft_tokens=3, flash_attn=flash_attn, **options) as llm:
        alone = [llm.generate(prompt, PARAMS[0]).stats.accepted_per_position for prompt in prompts]
        assert all(alone)
        for prompt, accepted in zip(prompts, alone, strict=True):
            assert llm.generate(prompt[:6] + ODD, PARAMS[0]).stats.drafted == 0  # reuses the cached state
            assert llm.generate(prompt, PARAMS[0]).stats.accepted_per_position == accepted


def test_saved_prefix_with_a_head_without_finite_logits_loads(unfit: Callable[[str], Path], tmp_path: Path) -> None:
    path = unfit("nan in keys")
    with make_llm(path, n_ctx=256, draft_tokens=0) as llm:
        expected = llm.generate(PROMPTS[0] + PROMPTS[1], PARAMS[0]).token_ids
    with make_llm(path, n_ctx=256) as llm:
        llm.save_prefix(PROMPTS[0], tmp_path / "prefix")
        assert llm.generate(PROMPTS[0] + PROMPTS[1], PARAMS[0]).token_ids == expected
    with make_llm(path, n_ctx=256) as llm:
        llm.load_prefix(tmp_path / "prefix")
        assert llm.generate(PROMPTS[0] + PROMPTS[1], PARAMS[0]).token_ids == expected


@pytest.mark.parametrize(("kind", "drafts"), [("zero", 1), ("swapped", 3), ("random", 2)])
def test_head_with_low_acceptance_gets_one_warning_with_advice(
    unfit: Callable[[str], Path], kind: str, drafts: int, warnings_of_drafts: Callable[[], list[str]]
) -> None:
    with make_llm(unfit(kind), n_ctx=2048, draft_tokens=drafts) as llm:
        llm.generate(PROMPTS[0], SamplingParams(300, temperature=1.0, ignore_eos=True))
    (line,) = warnings_of_drafts()
    assert line.startswith(f"{kind}.gguf: the first draft was accepted in only ")
    assert f" of {MANY_DRAFTS} rounds" in line
    assert "this head does not fit the model" in line
    assert 'Try tap="pre_norm", another file, or draft_tokens=0; `pymtp tap` measures the acceptance' in line


@pytest.mark.parametrize(("temperature", "drafts"), [(0.0, 1), (1.0, 1), (1.0, "auto"), (2.0, 1)])
def test_head_that_fits_gets_no_warning(
    demo: Path, temperature: float, drafts: int | str, warnings_of_drafts: Callable[[], list[str]]
) -> None:
    with make_llm(demo, n_ctx=2048, draft_tokens=drafts) as llm:
        n = 1900 if drafts == "auto" else 300
        llm.generate(PROMPTS[0], SamplingParams(n, temperature=temperature, top_k=0, top_p=1.0, ignore_eos=True))
    assert warnings_of_drafts() == []


def head_check_after(rounds: int, share: float, drafts: int = 1) -> HeadCheck:
    """Return a HeadCheck after `rounds` rounds. Every `drafts`-th round has a draft; `share` of the drafts is right."""
    head_check = HeadCheck("m.gguf", "another file")
    for i in range(rounds):
        drafted = i % drafts == 0
        head_check.add(int(drafted), int(drafted and int((i + 1) * share) > int(i * share)), False)
    return head_check


def test_head_check_warns_once_if_fewer_than_three_percent_of_drafts_are_accepted(
    warnings_of_drafts: Callable[[], list[str]],
) -> None:
    head_check_after(MANY_DRAFTS - 1, 0.0)
    assert warnings_of_drafts() == []
    head_check_after(10 * MANY_DRAFTS, 0.02)
    (line,) = warnings_of_drafts()
    assert line.startswith(f"m.gguf: the first draft was accepted in only 5 of {MANY_DRAFTS} rounds")
    head_check_after(10 * MANY_DRAFTS, 0.05)
    assert len(warnings_of_drafts()) == 1


def test_head_check_ignores_texts_with_a_high_temperature(warnings_of_drafts: Callable[[], list[str]]) -> None:
    head_check = HeadCheck()
    for _ in range(10 * ROUNDS):
        head_check.add(1, 0, False, 1.5)
    assert warnings_of_drafts() == []


def test_head_check_warns_after_many_rounds_with_few_drafts(warnings_of_drafts: Callable[[], list[str]]) -> None:
    head_check_after(ROUNDS - 1, 0.0, drafts=ROUNDS // FEW_DRAFTS)
    head_check_after(ROUNDS, 0.0, drafts=2 * ROUNDS // FEW_DRAFTS)
    assert warnings_of_drafts() == []
    head_check_after(ROUNDS, 0.0, drafts=ROUNDS // FEW_DRAFTS)
    assert len(warnings_of_drafts()) == 1


def test_head_fails_only_after_several_texts_in_a_row_without_finite_logits() -> None:
    head_check = HeadCheck()
    for _ in range(MAX_TEXTS_WITHOUT_LOGITS - 1):
        head_check.add(0, 0, True)
    head_check.add(1, 0, False)
    head_check.add(0, 0, True)
    assert not head_check.head_failed
    for _ in range(MAX_TEXTS_WITHOUT_LOGITS):
        head_check.add(0, 0, True)
    assert head_check.head_failed
