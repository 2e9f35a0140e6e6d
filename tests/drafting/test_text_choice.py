"""Tests of the choice between drafts from text and drafts of the head."""

from __future__ import annotations

import pytest

from pymtp.drafting.depth import AutoDepth, RoundCosts, RoundTime
from pymtp.drafting.text_drafts import GuessRates, TextChoice, TextDrafts


def test_head_drafts_no_more_than_the_sequences_have_room_for() -> None:
    costs = RoundCosts()
    # a busy machine disturbed the timings of fewer drafts than 7
    costs.begin({(n, d): RoundTime(0.1 * (d > 0), 10.0 if 0 < d < 7 else 1.0) for n in (1, 2) for d in range(8)})
    text = TextDrafts(GuessRates())
    text.add(list(range(100)) * 3)
    depth = AutoDepth(costs)
    heads = [depth.add_sequence(0.0) for _ in range(2)]
    choice = TextChoice(costs, n_seq_max=2, max_text=31, max_head=7, max_rows=64)
    for room in range(1, 8):
        chosen = choice.choose([text, None], heads, [room, room])
        assert chosen is None or chosen.depth <= room
    assert choice.choose([text, None], heads, [7, 7]) is not None


def test_rounds_with_drafts_from_text_do_not_make_drafts_of_the_head_look_dear() -> None:
    costs = RoundCosts()
    costs.begin({(1, d): RoundTime(0.1 * d, 1.0 + 0.1 * d) for d in range(8)})
    choice = TextChoice(costs, n_seq_max=1, max_text=31, max_head=7, max_rows=32)
    before = costs.rounds(1, 7)
    for _ in range(100):  # each number of rows comes once, and so takes longer than in a row of equal rounds
        costs.observe(1, 0, 0.0, 0, 1.0)
        choice.observe(1, 3, 2.0)
    assert costs.rounds(1, 7) == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize(("change", "chosen"), [(0.0, True), (2.0, False)])
def test_few_drafts_from_text_must_pay_for_the_change_of_rows(change: float, chosen: bool) -> None:
    costs = RoundCosts()
    costs.begin({(1, d): RoundTime(0.0, 1.0 + 0.1 * d, 0.0, change) for d in range(8)})
    costs.observe(1, 0, 0.0, 0, 1.0)
    text = TextDrafts(GuessRates())
    text.add([*range(100), *range(40, 48)])
    head = AutoDepth(costs).add_sequence(0.0)
    for _ in range(30):
        head.acceptance.observe(1, 0, 1)
    choice = TextChoice(costs, n_seq_max=1, max_text=2, max_head=1, max_rows=32)
    assert (choice.choose([text], [head], [2]) is not None) == chosen


def test_choice_reads_what_was_generated_in_several_rounds() -> None:
    costs = RoundCosts()
    costs.begin({(n, d): RoundTime(0.1 * d, 1.0 + 0.01 * d) for n in (1, 2) for d in range(8)})
    auto = AutoDepth(costs)
    heads = [auto.add_sequence(0.0) for _ in range(2)]
    choice = TextChoice(costs, n_seq_max=2, max_text=4, max_head=0, max_rows=32)
    texts = [TextDrafts(GuessRates()) for _ in range(2)]
    for text in texts:
        text.add(list(range(100)))
    texts[0].generate([500])
    texts[1].generate([500])
    assert choice.choose(texts, heads, [4, 4]) is None  # 500 stands nowhere else
    for token in range(40, 48):
        texts[1].generate([token])
    chosen = choice.choose(texts, heads, [4, 4])
    assert chosen is not None
    assert chosen.by_text == [[], [48, 49, 50, 51]]
    assert choice.choose(texts, heads, [4, 4]) == chosen  # nothing is read twice
