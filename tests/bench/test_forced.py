"""Tests of forced text: the generated text is the given one, and the head's drafts are right at the given rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.engines import EngineHarness
from helpers.scripted import VOCAB, ScriptedContext, expected_tokens

import pymtp
from pymtp.bench.decode import draft_options
from pymtp.bench.forced import PUBLISHED_RATES, ForcedContext, ForcedLLM
from pymtp.bench.text_pairs import TokenPair
from pymtp.bench.traffic import run_single
from pymtp.drafting.depth import FixedDepth
from pymtp.engine.rounds import generate_single
from pymtp.sampling import SamplingParams
from pymtp.stats import DraftStats


def pair(n: int, length: int = 40, prompt: int = 6) -> TokenPair:
    """Return the n-th of several pairs that share nothing."""
    text = tuple(Random(n).choices(range(VOCAB), k=length))
    return TokenPair("some", tuple((n + i) % VOCAB for i in range(prompt)), text)


def forced_rounds(
    rates: Sequence[float], depth: int, n: int, hits: Sequence[bool] = (True, False)
) -> tuple[DraftStats, ForcedContext]:
    """Generate a forced text of n tokens on a scripted context, which checks the state of its caches in each call."""
    context = ScriptedContext(range(40), hits, n_ctx=10 * n)
    given = pair(1, n)
    forced, draft_stats, out = ForcedContext(context, [given], rates), DraftStats(), list[int]()
    policy = FixedDepth(depth)
    for tokens in generate_single(forced, given.prompt, lambda _: False, draft_stats, policy, max_tokens=n):
        out += tokens
        assert context.tokens() == [*given.prompt, *out[:-1]], "the caches must hold the forced text"
    assert out == list(given.text)
    return draft_stats, forced


@pytest.mark.parametrize("depth", [0, 1, 3, "auto"])
@pytest.mark.parametrize("n_seq_max", [1, 4])
def test_forced_text_is_generated_alone_and_beside_others(depth: int | str, n_seq_max: int) -> None:
    harness = EngineHarness(depth=depth, n_seq_max=n_seq_max, cache_prompt=False)
    pairs = [pair(n, 30 + 5 * n) for n in range(6)]
    harness.engine.run_on(ForcedContext(harness.context, pairs, PUBLISHED_RATES))  # type: ignore[arg-type]
    requests = [harness.submit(list(p.prompt), len(p.text), ignore_eos=True) for p in pairs]
    harness.run()
    assert [tuple(request.tokens) for request in requests] == [p.text for p in pairs]


def test_text_that_repeats_its_prompt_is_drafted_from_it_beside_one_that_does_not() -> None:
    harness = EngineHarness(depth="auto", text=31, n_seq_max=2, cache_prompt=False)
    new, source = pair(1, 300), pair(2, 100)
    copied = TokenPair("copy", (*source.text, 7), source.text * 3)
    harness.engine.run_on(ForcedContext(harness.context, [new, copied], PUBLISHED_RATES))  # type: ignore[arg-type]
    requests = [harness.submit(list(p.prompt), len(p.text), ignore_eos=True) for p in (new, copied)]
    harness.run()
    assert [tuple(request.tokens) for request in requests] == [new.text, copied.text]
    assert requests[1].stats.accepted_by_text > 200


def test_forced_text_moves_with_its_sequence() -> None:
    harness = EngineHarness(depth=2, n_seq_max=4, cache_prompt=False)
    short, long = [pair(n, 10) for n in range(3)], pair(3, 400)
    harness.engine.run_on(ForcedContext(harness.context, [*short, long], PUBLISHED_RATES))  # type: ignore[arg-type]
    last = [harness.submit(list(p.prompt), len(p.text), ignore_eos=True) for p in (*short, long)][-1]
    again = harness.submit(list(short[0].prompt), 10, ignore_eos=True)
    harness.run()
    assert harness.context.copies, "a request moved"
    assert tuple(last.tokens) == long.text
    assert tuple(again.tokens) == short[0].text


def test_prompt_without_a_given_text_is_generated_as_always_beside_one_with_a_text_that_ends() -> None:
    harness = EngineHarness(depth=2, n_seq_max=2, cache_prompt=False)
    given = pair(1, 12)
    harness.engine.run_on(ForcedContext(harness.context, [given], PUBLISHED_RATES))  # type: ignore[arg-type]
    free = harness.submit([9, 8, 7], 20, ignore_eos=True)
    forced = harness.submit(list(given.prompt), 20, ignore_eos=True)
    later = [harness.submit([5, n], 20, ignore_eos=True) for n in range(2)]  # in the same sequences
    harness.run()
    assert free.tokens == expected_tokens(0, [9, 8, 7], 20)
    assert forced.tokens[:12] == list(given.text)
    assert len(forced.tokens) == 20
    assert [request.tokens for request in later] == [expected_tokens(0, [5, n], 20) for n in range(2)]


def test_drafts_from_elsewhere_are_accepted_where_they_equal_the_text() -> None:
    given, other = pair(1), pair(2)
    context = ScriptedContext(n_seq_max=3, draft_tokens=20)
    forced = ForcedContext(context, [given, other], (0.0,))  # type: ignore[arg-type]
    for seq, p in ((0, given), (1, other)):
        forced.prefill(p.prompt, seq)
        assert forced.first_token(seq) == p.text[0]
    wrong = (given.text[4] + 1) % VOCAB
    chains = {0: [*given.text[:4], wrong, *given.text[5:7]], 1: [*other.text[:2]]}
    assert forced.verify_chains(chains) == {0: list(given.text[1:5]), 1: list(other.text[1:3])}
    forced.rewind(len(given.prompt) + 4, 0)
    assert forced.verify_chains({0: list(given.text[4:20])}) == {0: list(given.text[5:21])}


def test_head_s_drafts_are_right_at_the_given_rates() -> None:
    draft_stats, _ = forced_rounds(PUBLISHED_RATES, 5, 5000)
    got = [n / draft_stats.rounds for n in draft_stats.accepted_per_position]
    assert got[:4] == pytest.approx(PUBLISHED_RATES, abs=0.04)  # four standard deviations of 1,800 rounds
    assert got[4] == 0


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 25), (0.0, 100)])
def test_rate_1_makes_every_draft_right_and_rate_0_none(rate: float, rounds: int) -> None:
    draft_stats, _ = forced_rounds([rate] * 3, 3, 101, [rate == 0])
    assert draft_stats.rounds == rounds


def drafted(n: int, depth: int, seq: int = 0, seed: int = 0) -> tuple[list[list[float]], list[list[bool]]]:
    """Draft after each of n tokens of a text. Return the confidences of the drafts, and which are right."""
    given = pair(1, n + depth)
    context = ScriptedContext(n_ctx=4 * n, n_seq_max=seq + 1)
    forced = ForcedContext(context, [given], PUBLISHED_RATES, seed)  # type: ignore[arg-type]
    forced.prefill(given.prompt, seq)
    forced.first_token(seq)
    all_confidences, right = [], []
    for i in range(n - 1):
        drafts, confidences = forced.draft_chains({seq: given.text[i]}, depth)[seq]
        all_confidences.append(confidences)
        right.append([draft == token for draft, token in zip(drafts, given.text[i + 1 :], strict=False)])
        forced.verify_chains({seq: [given.text[i]]})
    return all_confidences, right


def test_confidences_are_those_of_a_calibrated_head() -> None:
    confidences, right = drafted(4000, 2)
    first = [(c[0], hit[0]) for c, hit in zip(confidences, right, strict=True)]
    second = [(c[1], hit[1]) for c, hit in zip(confidences, right, strict=True) if hit[0]]
    for found in (first, second):
        for low in (0.0, 0.25, 0.5, 0.75):
            part = [(c, hit) for c, hit in found if low <= c < low + 0.25]
            assert len(part) > 50
            mean_confidence = sum(c for c, _ in part) / len(part)
            assert sum(hit for _, hit in part) / len(part) == pytest.approx(mean_confidence, abs=0.13)


def test_no_draft_is_right_after_a_wrong_one_before_a_round_ends() -> None:
    _, right = drafted(500, 4)
    assert all(hits == sorted(hits, reverse=True) for hits in right)


def test_drafts_are_the_same_at_all_depths_and_in_all_sequences_but_differ_between_seeds() -> None:
    deep = [hits[0] for hits in drafted(300, 4)[1]]
    assert [hits[0] for hits in drafted(300, 1)[1]] == deep
    assert [hits[0] for hits in drafted(300, 4, seq=2)[1]] == deep
    assert [hits[0] for hits in drafted(300, 4, seed=1)[1]] != deep


@pytest.mark.parametrize("arm", ["none", "3", "auto"])
def test_shipped_model_generates_the_forced_texts_and_holds_them_in_its_caches(demo: Path, arm: str) -> None:
    with pymtp.Model(demo) as model:
        lines = ["def merge(left, right):\n", "import os\n", "class Stack:\n", "x = 1\n"]
        text = "    result = []\n    while left and right:\n        result.append(min(left, right).pop())\n"
        pairs = [TokenPair("some", tuple(model.tokenize(line)), tuple(model.tokenize(line + text))) for line in lines]
        keywords: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_seq_max": 4, "cache_prompt": False}
        with ForcedLLM(model, pairs, PUBLISHED_RATES, **keywords, **draft_options(arm)) as llm:
            params = [SamplingParams(len(p.text), temperature=0.7, seed=1, ignore_eos=True) for p in pairs]
            alone = run_single(llm, pairs[0].prompt, params[0])
            assert tuple(alone.completion.token_ids) == pairs[0].text
            if arm != "auto":  # which may find on a busy machine that drafts do not pay
                assert (alone.completion.stats.accepted > 0) == (arm == "3")
            assert llm.context.tokens() == [*pairs[0].prompt, *pairs[0].text[:-1]]
            completions = llm.generate([list(p.prompt) for p in pairs], params)
            assert [tuple(completion.token_ids) for completion in completions] == [p.text for p in pairs]
