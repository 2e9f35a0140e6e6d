"""Tests of drafts from text in the engine: where a text repeats, they take the place of the head's drafts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from weakref import ref

import pytest
from helpers.engines import EngineHarness
from helpers.scripted import RepeatingContext, SeededContext, expected_tokens

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3]
COPY = type("CopyingContext", (RepeatingContext,), {"NOISE": 0.0})


class Interrupted(COPY):  # type: ignore[misc,valid-type]
    """A copy in which every 60th token was never at its place before: only the head knows it and what follows it."""

    def next_token(self, seed: int, prefix: Any) -> int:
        return 49 - len(prefix) // 60 if len(prefix) % 60 == 0 else int(super().next_token(seed, prefix))


def harness(**keywords: Any) -> EngineHarness:
    return EngineHarness(**{"depth": "auto", "text": 31, "context_type": COPY, "hits": (True, False)} | keywords)


def test_text_that_repeats_is_verified_in_long_chains_without_the_head() -> None:
    engines = harness()
    request = engines.submit(PROMPT, 300)
    engines.run()
    engines.check()
    stats = request.completion.stats
    assert stats.accepted_by_text > 250
    assert stats.rounds < 40
    assert stats.drafted_by_text - stats.accepted_by_text < 20
    assert max(stats.depths) == 31
    by_text = [name for name, _, n in engines.context.calls if name == "draft" or (name == "verify" and n > 8)]
    assert by_text.count("draft") < 12  # before the repetition is known; none beside long chains


def test_first_tokens_are_drafted_from_the_prompt() -> None:
    engines = harness()
    request = engines.submit(PROMPT[:20] * 3, 18)  # the output ends before it repeats itself
    engines.run()
    engines.check()
    assert request.completion.stats.accepted_by_text > 10


def test_text_that_repeats_nothing_is_drafted_as_without_an_index() -> None:
    with_text, without = (harness(context_type=SeededContext, text=text, hits=(True, True, False)) for text in (31, 0))
    for engines in (with_text, without):
        engines.submit(list(range(40)), 300)
        engines.run()
        engines.check()
    calls = [
        [call for call in engines.context.calls if call[0] in ("draft", "verify")] for engines in (with_text, without)
    ]
    assert len(calls[0]) <= len(calls[1]) + 3


def test_model_without_a_head_drafts_from_text() -> None:
    engines = harness(draft_tokens=0)
    request = engines.submit(PROMPT, 300)
    engines.run()
    engines.check()
    assert request.completion.stats.accepted_by_text > 250
    assert not [call for call in engines.context.calls if call[0] == "draft"]


@pytest.mark.parametrize(("limit", "most"), [(0, 0), (2, 2), (None, 31)])
def test_limit_of_a_request_holds_for_drafts_from_text(limit: int | None, most: int) -> None:
    engines = harness()
    request = engines.submit(PROMPT, 200, draft_tokens=limit)
    engines.run()
    engines.check()
    assert max(request.completion.stats.depths) == most


def test_chains_from_text_end_with_the_output_and_with_the_context() -> None:
    engines = harness(n_ctx=100)
    requests = [engines.submit(PROMPT, n) for n in (60, None)]
    engines.run()
    engines.check()
    assert [len(request.tokens) for request in requests] == [60, 73]
    assert all(request.completion.stats.accepted_by_text > 20 for request in requests)


def test_verifications_have_no_other_numbers_of_rows_than_memory_was_planned_for() -> None:
    for n in range(80, 112):
        engines = harness(n_ctx=100)
        engines.submit(PROMPT, n - len(PROMPT) if n < 96 else None)
        engines.submit([*PROMPT, *PROMPT[: n - 80]], 60)
        engines.run()
        engines.check()
        rows = {n for name, _, n in engines.context.calls if name == "verify"}
        assert max(rows) > 8
        assert rows <= {*range(1, 9), 16, 32}


def test_long_chains_leave_room_for_the_padding_of_a_sequence_near_its_end() -> None:
    engines = harness(n_seq_max=2, n_ctx=100)
    requests = [engines.submit([*PROMPT[:20] * 4, *PROMPT[:n]], None) for n in (11, 0)]
    engines.run()  # the context refuses rows that do not fit, those of padding, too
    engines.check()
    assert [len(request.tokens) for request in requests] == [10, 21]
    assert requests[1].completion.stats.accepted_by_text > 10


def test_sequences_of_a_round_draft_from_text_or_with_the_head() -> None:
    class Mixed(COPY):  # type: ignore[misc,valid-type]
        def next_token(self, seed: int, prefix: Any) -> int:
            return int(super().next_token(seed, prefix) if seed else SeededContext.next_token(self, seed, prefix))

    engines = harness(n_seq_max=4, context_type=Mixed, hits=(True,))
    requests = [engines.submit([*PROMPT, i], 200, seed=i % 2) for i in range(4)]
    engines.run()
    engines.check()
    by_text = [request.completion.stats.accepted_by_text for request in requests]
    assert by_text[0] == by_text[2] == 0
    assert min(by_text[1], by_text[3]) > 100
    drafted_for = {seqs for name, seqs, _ in engines.context.calls if name == "draft"}
    assert any(len(seqs) < 4 for seqs in drafted_for)  # the head draws no drafts for sequences that copy
    assert min(request.completion.stats.accepted for request in requests) > 50


def test_head_leads_back_into_the_text_and_the_text_goes_on() -> None:
    engines = harness(context_type=Interrupted, hits=(True,))
    request = engines.submit(PROMPT, 600)
    engines.run()
    engines.check()
    calls = engines.context.calls
    mixed = [
        rows
        for (name, _, n), (after, _, rows) in pairwise(calls)
        if (name, after) == ("draft", "verify") and rows > n + 1
    ]
    stats = request.completion.stats
    assert stats.accepted_by_text > 400
    assert mixed
    assert sum(stats.accepted_per_position) + stats.accepted_by_text == stats.accepted


def test_figures_of_the_engine_tell_the_sources_apart() -> None:
    engines = harness()
    done = engines.submit(PROMPT, 200)
    engines.run()
    figures, stats = engines.engine.figures(), done.completion.stats
    assert (figures.drafted, figures.accepted) == (stats.drafted, stats.accepted)
    assert (figures.drafted_by_text, figures.accepted_by_text) == (stats.drafted_by_text, stats.accepted_by_text)
    assert sum(figures.drafted_per_position) + figures.drafted_by_text == figures.drafted
    assert figures.rounds_with_drafts == sum(depth > 0 for depth in stats.depths) > 0


def test_pieces_of_a_stream_tell_the_sources_apart() -> None:
    engines = harness(context_type=Interrupted, hits=(True,))
    request = engines.submit(PROMPT, 600, max_unread=1000)
    while not request.ended:
        engines.engine.step()
    pieces, stats = list(request.unread), request.completion.stats
    assert [piece.drafted for piece in pieces[1:]] == list(stats.depths)
    for name in ("drafted", "accepted", "drafted_by_text", "accepted_by_text"):
        assert sum(getattr(piece, name) for piece in pieces) == getattr(stats, name) > 0
    assert any(0 < piece.accepted_by_text < piece.accepted for piece in pieces)


def test_restarted_request_drafts_from_its_whole_text_again() -> None:
    engines = harness()
    request = engines.submit(PROMPT, 400)
    for _ in range(8):
        engines.engine.step()
    before = len(request.tokens)
    engines.engine.runner.restart(request)
    n_calls = len(engines.context.calls)
    engines.run()
    engines.check()
    assert before < 400
    assert request.tokens == expected_tokens(0, PROMPT, 400, engines.context.next_token)
    assert max(n for name, _, n in engines.context.calls[n_calls:] if name == "verify") == 32


def test_ended_request_holds_no_index() -> None:
    engines = harness()
    request = engines.submit(PROMPT, 100)
    while request.decode_state is None:
        engines.engine.step()
    text = ref(request.decode_state.text)
    assert text() is not None
    engines.run()
    assert text() is None


@pytest.mark.parametrize("n", [1, 2])  # alone, drafts from text may follow those of the head
def test_request_whose_text_found_no_memory_goes_on_without_drafts_from_text(n: int) -> None:
    engines = harness(n_seq_max=n, context_type=Interrupted, hits=(True,))
    requests = [engines.submit(PROMPT, 300) for _ in range(n)]
    while requests[0].decode_state is None:
        engines.engine.step()
    text = requests[0].decode_state.text
    assert text is not None
    text.failed = True
    engines.run()
    engines.check()
    assert [len(request.tokens) for request in requests] == [300] * n
    assert requests[0].stats.drafted_by_text == 0
    assert all(request.stats.drafted_by_text > 0 for request in requests[1:])
