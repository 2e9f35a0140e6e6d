"""Tests of tools/checks/same_text.py: short runs, and faults that it must find."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import same_text
import together
from conftest import make_llm
from makers.make_mmproj import make_mmproj
from makers.new_texts import new_prompts
from random_requests import RequestGenerator
from run_requests import by_steps

from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.context.state import SequenceState
from pymtp.model.model import Model, demo_model
from pymtp.model.projector import Projector
from pymtp.prefix_cache.checkpoints import EvictionPolicy
from pymtp.sampling import Sampler


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def compared(depths: list[int], change: dict[str, int] | None = None) -> list[dict[str, Any]]:
    """Return a row for each arm but the first. change: depths of arms that run with another one."""
    by_name = same_text.arms(depths) | (change or {})
    jobs = {name: (demo_model(), {"draft_tokens": depth}, new_prompts(2), 20) for name, depth in by_name.items()}
    return list(same_text.compare("shipped", {name: same_text.write(job) for name, job in jobs.items()}).values())


def favour_space(monkeypatch: pytest.MonkeyPatch, *, only: str) -> None:
    """Make a token likelier where an attribute or argument named `only` is not 0."""
    set_sampling = Context.set_sampling

    def broken(self: Context, sampler: Sampler, seq: int = 0) -> None:
        params = sampler.params
        if {"seq": seq, "draft_tokens": self.draft_tokens}[only] and isinstance(params, SamplingParams):
            sampler = Sampler(replace(params, logit_bias={**params.logit_bias, 32: 20.0}))
        set_sampling(self, sampler, seq)

    monkeypatch.setattr(Context, "set_sampling", broken)


def test_drafts_change_no_token_and_a_second_run_no_draft() -> None:
    rows = compared([2])
    assert [row["differ"] + row["drafts differ"] for row in rows] == [0, 0, 0]
    assert all(row["tokens"] == 20 * row["texts"] == 320 for row in rows)
    assert rows[0]["drafts"] > 50


def test_check_finds_tokens_that_drafts_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    favour_space(monkeypatch, only="draft_tokens")
    changed, plain, _ = compared([2])
    assert changed["differ"] > 50
    assert changed["texts differ"] > 5
    assert plain["differ"] == 0
    assert "T=0: text 0 differs from token" in capsys.readouterr().out


def test_check_finds_drafts_that_a_second_run_changes() -> None:
    first, _, again = compared([2], {"2 drafts, again": 3})
    assert first["drafts differ"] == 0 < again["drafts differ"]
    assert again["differ"] == 0


def played(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    needed: dict[str, int],
    *,
    seeds: tuple[int, ...],
    cached: bool,
    mmproj: Path | None = None,
) -> together.GameResults:
    """Play games, with `seeds` and those after them, until all counts have reached what is needed."""
    monkeypatch.setattr(together, "PLAYS", 2)
    monkeypatch.setattr(together, "REQUESTS", 4)
    found = together.GameResults("shipped")
    texts = [model.tokenize(text) for text in new_prompts(4, 2000)]
    for seed in (*seeds, *range(seeds[-1] + 1, seeds[-1] + 12)):
        together.Game(model, texts, seed, found, cached=cached, mmproj=mmproj).play()
        if all(found.counts[name] >= count for name, count in needed.items()):
            return found
    pytest.fail(f"{needed} needed, but found {dict(found.counts)}")


def test_concurrent_requests_generate_the_same_tokens_as_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare requests that run by steps, and by threads with an event loop, with requests that run alone."""
    needed = {"tokens": 26, "logprobs": 6, "by_steps": 1, "by_threads": 1}
    found = played(model, monkeypatch, needed, seeds=(22,), cached=False)
    assert not found.differences
    assert found.counts["sequences"] > found.counts["rounds"]
    assert not found.counts["lookups"]


def test_check_finds_a_token_that_depends_on_other_requests(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    favour_space(monkeypatch, only="seq")
    found = played(model, monkeypatch, {"differ": 11}, seeds=(22,), cached=False)
    assert "--seed 22" in found.differences[0]


def test_cached_prompts_generate_the_same_tokens(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run prompts by steps and by threads, with prefixes from sequences, from host memory and from files."""
    some = ("drafts", "by_steps", "by_threads", "hits", "found", "copied", "loaded", "saved", "evicted", "files")
    found = played(
        model, monkeypatch, dict.fromkeys(some, 1) | {"tokens": 51, "logprobs": 11}, seeds=(2, 24), cached=True
    )
    assert not found.differences


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mmproj("demo", tmp_path_factory.mktemp("models") / "mmproj.gguf")


@pytest.mark.parametrize("cached", [False, True])
def test_prompts_with_images_generate_the_same_tokens_as_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, mmproj: Path, cached: bool
) -> None:
    needed = {"tokens": 26, "images": 6} | (dict.fromkeys(("hits", "found", "copied"), 1) if cached else {})
    found = played(model, monkeypatch, needed, seeds=(6 if cached else 8,), cached=cached, mmproj=mmproj)
    assert not found.differences


def test_check_finds_an_image_that_is_encoded_otherwise(
    model: Model, monkeypatch: pytest.MonkeyPatch, mmproj: Path
) -> None:
    begin, calls = Projector.begin, [0]

    def other(self: Projector, pixels: Any) -> None:
        calls[0] += 1
        begin(self, pixels if calls[0] % 2 else 255 - pixels)

    monkeypatch.setattr(Projector, "begin", other)
    assert played(model, monkeypatch, {"differ": 1}, seeds=(8,), cached=False, mmproj=mmproj)


def test_check_finds_a_wrong_state(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    load = SequenceState.load

    def empty(self: SequenceState, seq: int, tokens: Any, state: Any) -> None:
        other = np.array(state)
        other[64:] //= 2
        load(self, seq, tokens, other)

    monkeypatch.setattr(SequenceState, "load", empty)
    found = played(model, monkeypatch, {"differ": 6}, seeds=(35,), cached=True)
    assert "--seed " in found.differences[0]


def test_check_finds_bytes_above_the_limit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def more(self: EvictionPolicy, need: int, *_: object) -> bool:
        if self.limit:  # the limit of the LLM without a cache is 0
            self.limit = 10**9
        return need <= self.limit

    monkeypatch.setattr(EvictionPolicy, "make_room", more)
    monkeypatch.setattr(together, "BUDGETS", (1.5,))
    found = played(model, monkeypatch, {}, seeds=(35,), cached=True)
    assert any("are kept" in words for words in found.differences)


def test_no_other_thread_takes_steps_in_a_game_by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # As after a play of threads: the engine's thread looks for work while the game runs
    steps: list[str] = []
    with make_llm() as llm:
        step = llm._engine.step

        def noted_step() -> bool:
            steps.append(threading.current_thread().name)
            llm._engine_thread.wake()
            time.sleep(0.001)  # lets the other thread run
            return step()

        monkeypatch.setattr(llm._engine, "step", noted_step)
        numbers = random.Random(0)
        specs = RequestGenerator(llm.model, numbers, [[1, 2, 3]], 256, 64).make_many(2, 1)
        by_steps(llm, specs, numbers)
    assert set(steps) == {threading.current_thread().name}
