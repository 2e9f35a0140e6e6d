"""Tests of the engine's statistics: drafts are counted by position, over a scripted context without a model."""

from __future__ import annotations

from collections import Counter

from helpers.engines import EngineHarness

from pymtp.engine.request import Waiter


def test_engine_stats_count_drafts_by_position() -> None:
    harness = EngineHarness(n_seq_max=3, hits=(True, True, False, True, False))
    for i in range(6):
        harness.submit([1, 2, 3, 4, 5], 40, seed=i, draft_tokens=(None, 1, 3)[i % 3])
    harness.run()
    drafted, accepted = Counter[int](), Counter[int]()
    for request in harness.requests:
        stats = request.completion.stats
        drafted.update(position for depth in stats.depths for position in range(depth))
        accepted.update({position: n for position, n in enumerate(stats.accepted_per_position)})
    figures = harness.engine.figures()
    assert figures.drafted_per_position == tuple(drafted[position] for position in range(len(drafted)))
    assert figures.accepted_per_position == tuple(n for _, n in sorted(accepted.items()) if n)
    assert figures.drafted_per_position[0] > figures.accepted_per_position[0] > 0
    assert (figures.drafted, figures.accepted) == (sum(drafted.values()), sum(accepted.values()))


def test_figures_count_the_last_round_before_its_requests_end() -> None:
    harness = EngineHarness(n_seq_max=2, hits=(True, False))
    at_ends: list[int] = []
    waiter = Waiter(lambda: at_ends.append(harness.engine.figures().tokens))
    for _ in range(2):
        harness.submit([1, 2, 3], 7, waiter=waiter)
    harness.run()
    assert at_ends == [14, 14]
