"""Tests of the choice between drafts from text and drafts of the head."""

from __future__ import annotations

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
