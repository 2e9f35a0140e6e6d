"""Tests of draft_vocab="auto": its size, and when it switches from the set to the full vocabulary and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from conftest import make_llm
from helpers.contexts import context, some_tokens
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import LLM, Model, SamplingParams
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.context.context import Context
from pymtp.context.options import AUTO_DRAFT_VOCAB
from pymtp.sampling import Sampler

GREEDY = SamplingParams(30, ignore_eos=True)
WARM = replace(GREEDY, temperature=0.7, seed=4)
OUTSIDE = range(AUTO_DRAFT_VOCAB + 1000, AUTO_DRAFT_VOCAB + 1200)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load a tiny model with a vocabulary so large that `auto` drafts from a part of the vocabulary."""
    shape = replace(PRESETS["tiny"], n_vocab=2 * AUTO_DRAFT_VOCAB)
    (path,) = make_model(shape, tmp_path_factory.mktemp("models") / "wide.gguf", weight_type="q8_0")
    with Model(path) as model:
        yield model


def start(c: Context, prompt: Sequence[int]) -> None:
    c.set_sampling(Sampler(GREEDY))
    c.prefill(prompt)


def test_auto_draft_vocab_is_full_for_a_small_vocabulary_and_partial_for_a_large_one(
    model: Model, dense: Model
) -> None:
    with context(dense) as c:
        assert c.draft_vocab == dense.n_vocab
    with context(model) as c:
        assert c.draft_vocab == AUTO_DRAFT_VOCAB


def sample(c: Context, token: int) -> None:
    """Make the target sample the given token."""
    c.set_sampling(Sampler(SamplingParams(logit_bias={token: 1000.0})))
    assert c.verify_chain([token]) == [token]


def test_auto_draft_vocab_is_full_while_many_tokens_are_new(model: Model) -> None:
    with context(model) as auto, context(model, draft_vocab=AUTO_DRAFT_VOCAB) as fixed:
        sizes = []
        for c in (auto, fixed):
            start(c, [1, 2, 3])
        for token in (*OUTSIDE, *[7] * 150):
            for c in (auto, fixed):
                sample(c, token)
                c.draft_chain(token, 1)
            sizes.append(auto.draft_vocab)
            assert fixed.draft_vocab == AUTO_DRAFT_VOCAB
        assert sizes[0] == sizes[-1] == AUTO_DRAFT_VOCAB
        assert sizes[len(OUTSIDE) - 1] == model.n_vocab
        assert sum(a != b for a, b in pairwise(sizes)) == 2


def switch_to_full(c: Context) -> int:
    """Sample tokens outside the set until the context drafts over the full vocabulary, and return the last one."""
    start(c, [1, 2, 3])
    for token in OUTSIDE:
        sample(c, token)
        c.draft_chain(token, 1)
        if c.draft_vocab > AUTO_DRAFT_VOCAB:
            return token
    raise AssertionError("it does not switch")


@pytest.mark.parametrize("draws", ["host", "device"])
def test_auto_draft_vocab_drafts_match_the_full_vocabulary_after_the_switch(model: Model, draws: str) -> None:
    with context(model, draws=draws) as auto, context(model, draft_vocab="all") as whole:
        switch_to_full(auto)
        start(whole, auto.tokens())
        for c in (auto, whole):
            c.set_sampling(Sampler(GREEDY))
        drafts = [[c.draft_chain(token, 1)[0][0] for token in range(20)] for c in (auto, whole)]
        assert drafts[0] == drafts[1]
        assert max(drafts[0]) > AUTO_DRAFT_VOCAB


def test_auto_draft_vocab_stays_full_until_the_rate_of_new_tokens_halves(model: Model) -> None:
    with context(model) as c:
        switch_to_full(c)
        for _ in range(15):  # the share of new tokens falls to 0.74 of the share at the switch
            sample(c, 7)
            assert c.draft_vocab == model.n_vocab


def test_forget_chosen_returns_auto_draft_vocab_to_its_first_state(model: Model) -> None:
    with context(model) as c:
        token = switch_to_full(c)
        c.forget_chosen()
        assert c.draft_vocab == AUTO_DRAFT_VOCAB
        c.draft_chain(token, 1)
        assert c.drafts_over(token)
        assert not c.drafts_over(OUTSIDE[-1] + 1)


def test_auto_draft_vocab_counts_a_repeated_new_token_once(model: Model) -> None:
    with context(model) as c:
        start(c, [1, 2, 3])
        for _ in range(200):  # no drafts, so that the token is not added to the set
            sample(c, OUTSIDE[0])
        assert c.draft_vocab == AUTO_DRAFT_VOCAB


def test_auto_draft_vocab_ignores_tokens_of_timing_rounds(model: Model) -> None:
    with LLM(model, n_ctx=256, n_threads=1) as llm:
        assert llm.context.counters.target_decodes > 0
        assert llm.context.draft_vocab == AUTO_DRAFT_VOCAB


def test_auto_draft_vocab_gives_the_same_text(model: Model) -> None:
    texts = []
    prompt = some_tokens(model, 20)
    for options in ({"draft_tokens": 0}, {"draft_vocab": "all"}, {"draft_vocab": "auto"}, {"draft_vocab": 20000}):
        with make_llm(model, **options) as llm:
            texts.append([llm.generate(prompt, params).token_ids for params in (GREEDY, WARM)])
    assert texts[1:] == texts[:-1]


def test_auto_draft_vocab_ignores_synthetic_acceptance(model: Model) -> None:
    with SyntheticLLM(model, [0.9, 0.8], n_ctx=512, n_threads=1, draft_tokens=2) as llm:
        llm.generate(some_tokens(model, 20), replace(WARM, max_tokens=100))
        assert llm.context.draft_vocab == AUTO_DRAFT_VOCAB
