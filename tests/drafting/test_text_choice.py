"""Tests of the choice between drafts from text and drafts of the head."""

from __future__ import annotations

from typing import Any

import pytest

from pymtp.drafting import text_drafts
from pymtp.drafting.depth import AutoDepth, RoundCosts, RoundTime
from pymtp.drafting.text_drafts import GuessRates, TextChoice, TextDrafts
from pymtp.native import lib


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


def test_choice_reads_what_each_sequence_has_generated_since_the_last() -> None:
    costs = RoundCosts()
    costs.begin({(n, d): RoundTime(0.1 * d, 1.0 + 0.01 * d) for n in (1, 3) for d in range(8)})
    auto = AutoDepth(costs)
    heads = [auto.add_sequence(0.0) for _ in range(3)]
    choice = TextChoice(costs, n_seq_max=3, max_text=4, max_head=0, max_rows=32)
    first, last = TextDrafts(GuessRates()), TextDrafts(GuessRates())
    texts = [first, None, last]
    first.add(list(range(100)))
    last.add(list(range(100)))
    first.generate([500])
    last.generate([501])
    assert choice.choose(texts, heads, [4, 4, 4]) is None  # these stand nowhere else
    tokens = list(range(10, 18))
    first.generate(tokens)
    tokens.clear()  # as a reader of a stream may do
    for token in range(40, 48):
        last.generate([token])
    chosen = choice.choose(texts, heads, [4, 4, 4])
    assert chosen is not None
    assert chosen.by_text == [[18, 19, 20, 21], [], [48, 49, 50, 51]]
    assert choice.choose(texts, heads, [4, 4, 4]) == chosen  # nothing is read twice


def test_text_without_memory_for_its_tokens_makes_no_more_drafts_and_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = [False]

    class ShortOfMemory:
        """The library, whose choice finds no memory for the first text."""

        def pymtp_choose_text_drafts(self, *given: Any) -> int:
            if not failing[0]:
                return int(lib.pymtp_choose_text_drafts(*given))
            lengths = given[8]
            lengths[0], lengths[1] = -1, 0
            return -1

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

    monkeypatch.setattr(text_drafts, "lib", ShortOfMemory())
    costs = RoundCosts()
    costs.begin({(n, d): RoundTime(0.1 * d, 1.0 + 0.01 * d) for n in (1, 2) for d in range(8)})
    auto = AutoDepth(costs)
    heads = [auto.add_sequence(0.0) for _ in range(2)]
    choice = TextChoice(costs, n_seq_max=2, max_text=4, max_head=0, max_rows=32)
    texts = [TextDrafts(GuessRates()) for _ in range(2)]
    for text in texts:
        text.add([*range(100), *range(40, 48)])
    both = choice.choose(texts, heads, [4, 4])
    assert both is not None
    assert both.by_text == [[48, 49, 50, 51]] * 2
    failing[0] = True
    assert choice.choose(texts, heads, [4, 4]) is None
    failing[0] = False
    one = choice.choose(texts, heads, [4, 4])
    assert one is not None
    assert one.by_text == [[], [48, 49, 50, 51]]
