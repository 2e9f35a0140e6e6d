"""Tests of many rounds: a short run of tools/checks/soak.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import soak
from soak import Recorded

from pymtp.context.context import Context
from pymtp.model.model import Model

ROUNDS = 200


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def test_context_after_many_rounds_equals_a_new_context(model: Model) -> None:
    for _, found in soak.soak(model, ROUNDS, ROUNDS // 2):
        assert found.replayed_calls > 50
        assert found.replay_differs == 0
        assert found.target_drift < 1e-3
        assert found.head_drift < 1e-3


def test_soak_reports_a_head_that_gets_the_wrong_hidden_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Recorded.__init__

    def broken(self: Recorded, context: Context, seq: int) -> None:
        context.break_on_purpose("shifted_rows")
        make(self, context, seq)

    monkeypatch.setattr(Recorded, "__init__", broken)
    ((_, found),) = soak.soak(model, 60, 60)
    assert found.replay_differs > 0
    assert found.target_drift < 1e-3
    assert found.head_drift > 0.01
