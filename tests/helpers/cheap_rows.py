"""Costs of rounds for "auto" that no busy machine and no sanitizer changes: drafts pay."""

from __future__ import annotations

import pytest

from pymtp.drafting.depth import RoundTime
from pymtp.engine import warm_up
from pymtp.engine.batch_depth import BatchDepth

COSTS = {(n, depth): RoundTime(0.2 * depth, 1 + 0.02 * n * depth) for n in (1, 2, 4) for depth in range(8)}


def make_rows_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let "auto" take each row of a round for cheap, whatever rounds take, in each LLM that is made afterwards."""
    monkeypatch.setattr(warm_up, "measure_costs", lambda *_: COSTS)
    monkeypatch.setattr(BatchDepth, "_times_are_valid", lambda *_: False)
