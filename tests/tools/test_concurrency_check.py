"""Tests of the checks of concurrent requests: short runs of tools/checks/concurrency.py and soak_requests.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import concurrency
import pytest
import random_faults
import soak_requests
from makers.demo_corpus import held_out_prompts
from soak_requests import Phase

from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.engine.engine import Engine
from pymtp.engine.request import Request
from pymtp.model.model import Model
from pymtp.sampling import Sampler

SMALL = {"n_ctx": 300, "n_seq_max": 3, "draft_tokens": 2}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def played(model: Model, seed: int, monkeypatch: pytest.MonkeyPatch) -> concurrency.GameResults:
    monkeypatch.setattr(concurrency, "REQUESTS", 6)
    found = concurrency.GameResults("shipped")
    texts = [model.tokenize(text) for text in held_out_prompts(4, 2000)]
    concurrency.game(model, texts, seed, found)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_concurrent_requests_generate_the_same_tokens_as_alone(
    model: Model, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare requests that run by steps, and by threads with an event loop, with requests that run alone."""
    found = played(model, seed, monkeypatch)
    assert not found.differences
    assert found.tokens > 50
    assert found.logprobs > 10
    assert found.sequences > found.rounds


def test_check_finds_a_token_that_depends_on_other_requests(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    set_sampling = Context.set_sampling

    def by_place(self: Context, sampler: Sampler, seq: int = 0) -> None:
        params = sampler.params
        if seq and isinstance(params, SamplingParams):
            sampler = Sampler(replace(params, logit_bias={**params.logit_bias, 32: 20.0}))
        set_sampling(self, sampler, seq)

    monkeypatch.setattr(Context, "set_sampling", by_place)
    found = played(model, 1, monkeypatch)
    assert found.differing_tokens > 10
    assert "seed 1" in found.differences[0]


def test_soak_counts_failed_and_cancelled_requests_as_ended(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_faults, "FAULTS", 0.02)
    monkeypatch.setattr(soak_requests, "SAMPLES", 10)
    *phases, differences = soak_requests.soak_requests(model, 40, phases=2, **SMALL)
    assert differences == []
    for phase in phases:
        assert isinstance(phase, Phase)
        assert phase.wrong == ""
    assert sum(phase.ended.values()) >= 40
    assert phase.faults


def test_soak_finds_a_request_that_ends_twice(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    abort = Engine._abort

    def twice(self: Engine, request: Request, *arguments: object, **keywords: bool) -> None:
        abort(self, request, *arguments, **keywords)  # type: ignore[arg-type]
        request.finish("cancelled")

    monkeypatch.setattr(Engine, "_abort", twice)
    phase, *_ = soak_requests.soak_requests(model, 12, phases=1, **SMALL)
    assert isinstance(phase, Phase)
    assert "did not end once" in phase.wrong
