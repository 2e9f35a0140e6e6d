"""Tests of the measurement of drafts: its shares by position, and its vocabularies that leave tokens out."""

from __future__ import annotations

import bench_drafts
import pytest


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_drafts, "new_prompts", lambda n: ["import os\n\ndef walk(", "class Stack:\n"][:n])


def test_accepted_by_position_is_the_share_of_drafts_whose_predecessors_were_accepted() -> None:
    row = bench_drafts.measure(2, 40, 1.5, draft_tokens=2)
    first, second = row["accepted"]
    assert row["mean_accepted_length"] == pytest.approx(1 + first + first * second)
    assert 0 < second < 1
    assert row["outside"] == [0, 0]


def test_small_draft_vocabulary_lacks_tokens_and_leaves_the_text_as_it_is() -> None:
    whole, small = (bench_drafts.measure(2, 40, 0.7, draft_tokens=2, draft_vocab=size) for size in ("all", 128))
    assert whole["text_sha256"] == small["text_sha256"]
    assert sum(small["outside"]) > 0
    assert small["accepted"][0] < whole["accepted"][0]
