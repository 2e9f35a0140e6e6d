"""Tests of tools/checks/soak_requests.py: a short run, and faults that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import soak_requests
from soak_requests import Phase

from pymtp.context.context import Context
from pymtp.engine.engine import Engine
from pymtp.engine.request import Request
from pymtp.model.model import Model
from pymtp.prefix_cache.store import PrefixStore

SMALL = {"n_ctx": 300, "n_seq_max": 3, "draft_tokens": 2}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def soaked(model: Model, requests: int, phases: int = 1) -> tuple[list[Phase], list[str]]:
    *found, differences = soak_requests.soak_requests(model, requests, phases=phases, **SMALL)
    assert isinstance(differences, list)
    return [phase for phase in found if isinstance(phase, Phase)], differences


def test_soak_accounts_for_failed_and_cancelled_requests(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_requests, "FAULTS", 0.015)
    monkeypatch.setattr(soak_requests, "SAMPLES", 10)
    phases, differences = soaked(model, 40, 2)
    assert differences == []
    assert [(phase.wrong, phase.exceeded) for phase in phases] == [("", 0)] * 2
    assert sum(phases[-1].ended.values()) >= 40
    assert phases[-1].prefixes.hits
    assert phases[-1].faults


def test_soak_finds_a_request_that_ends_twice(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = Engine.cancel

    def twice(self: Engine, request: Request) -> None:
        cancel(self, request)
        request.finish("cancelled")

    monkeypatch.setattr(Engine, "cancel", twice)
    ((phase,), _) = soaked(model, 20)
    assert "did not end once" in phase.wrong


def test_soak_finds_a_pin_that_is_never_released(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = PrefixStore.pin

    def keep(self: PrefixStore, reader: Any, node: Any) -> None:
        if node is not None:
            pin(self, reader, node)

    monkeypatch.setattr(PrefixStore, "pin", keep)
    monkeypatch.setattr(soak_requests, "FAULTS", 0)  # after a fault, the cache drops its pins
    ((phase,), _) = soaked(model, 20)
    assert "store.pins" in phase.wrong


def test_soak_finds_a_head_with_the_wrong_hidden_rows_in_an_old_context(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak_requests, "SAMPLES", 0)
    play = soak_requests.play_shapes

    def broken(context: Context, faults: Any) -> None:
        play(context, faults)
        context.inspect.break_on_purpose("shifted_rows")

    monkeypatch.setattr(soak_requests, "play_shapes", broken)
    _, differences = soaked(model, 10)
    assert [words for words in differences if "reads a prompt otherwise" in words] == differences != []
