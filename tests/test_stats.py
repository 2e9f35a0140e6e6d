"""Tests of Stats: the figures derived from counts."""

from __future__ import annotations

from pymtp import LLM, SamplingParams, Stats


def test_stats_are_zero_without_drafts_rounds_or_time() -> None:
    empty = Stats()
    assert empty.acceptance_rate == empty.mean_accepted_length == 0
    assert empty.prefill_tokens_per_second == empty.decode_tokens_per_second == 0


def test_stats_match_their_definitions() -> None:
    stats = Stats(
        prompt_tokens=100,
        completion_tokens=11,
        prefill_seconds=0.5,
        decode_seconds=2.0,
        rounds=4,
        drafted=12,
        accepted=6,
        accepted_per_position=(3, 2, 1),
    )
    assert stats.acceptance_rate == 0.5
    assert stats.mean_accepted_length == 2.5
    assert stats.prefill_tokens_per_second == 200
    assert stats.decode_tokens_per_second == 5  # without the first token, which the prefill samples
    assert stats.as_dict()["mean_accepted_length"] == 2.5


def test_stats_count_the_tokens_of_a_text_that_ends_with_a_draft(llm: LLM) -> None:
    params = SamplingParams(grammar='root ::= "self, x"')
    done = llm.generate("class A:\n    def f(", params)
    stats = done.stats
    assert stats.rounds + stats.accepted > len(done.token_ids) - 1
    assert stats.mean_accepted_length == (len(done.token_ids) - 1) / stats.rounds
