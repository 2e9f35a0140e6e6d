"""Claims about draft_vocab="auto": which size it takes, and when it goes from the set to all tokens and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

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

GREEDY = SamplingParams(60, ignore_eos=True)
WARM = replace(GREEDY, temperature=0.7, seed=4)
OUTSIDE = range(AUTO_DRAFT_VOCAB + 1000, AUTO_DRAFT_VOCAB + 1200)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a vocabulary of which `auto` takes a part."""
    shape = replace(PRESETS["tiny"], n_vocab=2 * AUTO_DRAFT_VOCAB)
    (path,) = make_model(shape, tmp_path_factory.mktemp("models") / "wide.gguf", weight_type="q8_0")
    return path


def told(c: Context, prompt: Sequence[int]) -> None:
    c.set_sampling(Sampler(GREEDY))
    c.prefill(prompt)


def test_auto_takes_all_of_a_small_vocabulary_and_part_of_a_large_one(wide: Path, dense: Model) -> None:
    with context(dense) as c:
        assert c.draft_vocab == dense.n_vocab
    with Model(wide) as model, context(model) as c:
        assert c.draft_vocab == AUTO_DRAFT_VOCAB


def choose(c: Context, token: int) -> None:
    """The target chooses a token."""
    c.set_sampling(Sampler(SamplingParams(logit_bias={token: 1000.0})))
    assert c.verify_chain([token]) == [token]


def test_auto_goes_to_all_while_the_text_is_new_to_the_set_and_comes_back(wide: Path) -> None:
    with Model(wide) as model, context(model) as auto, context(model, draft_vocab=AUTO_DRAFT_VOCAB) as fixed:
        sizes = []
        for c in (auto, fixed):
            told(c, [1, 2, 3])
        for token in (*OUTSIDE, *[7] * 300):
            for c in (auto, fixed):
                choose(c, token)
                c.draft_chain(token, 1)
            sizes.append(auto.draft_vocab)
            assert fixed.draft_vocab == AUTO_DRAFT_VOCAB
        assert sizes[0] == sizes[-1] == AUTO_DRAFT_VOCAB
        assert sizes[len(OUTSIDE) - 1] == model.n_vocab
        assert sum(a != b for a, b in pairwise(sizes)) == 2


def gone_to_all(c: Context) -> int:
    """Tells a context so much of what is new to its set that it drafts over all. Returns the last token."""
    told(c, [1, 2, 3])
    for token in OUTSIDE:
        choose(c, token)
        c.draft_chain(token, 1)
        if c.draft_vocab > AUTO_DRAFT_VOCAB:
            return token
    raise AssertionError("it stays at the set")


@pytest.mark.parametrize("draws", ["host", "device"])
def test_drafts_of_auto_are_those_of_all_once_it_has_gone_there(wide: Path, draws: str) -> None:
    with Model(wide) as model, context(model, draws=draws) as auto, context(model, draft_vocab="all") as whole:
        gone_to_all(auto)
        told(whole, auto.tokens())
        for c in (auto, whole):
            c.set_sampling(Sampler(GREEDY))
        drafts = [[c.draft_chain(token, 1)[0][0] for token in range(20)] for c in (auto, whole)]
        assert drafts[0] == drafts[1]
        assert max(drafts[0]) > AUTO_DRAFT_VOCAB


def test_auto_comes_back_only_when_half_as_much_is_new(wide: Path) -> None:
    with Model(wide) as model, context(model) as c:
        gone_to_all(c)
        for _ in range(15):  # 0.74 of the share that was too much
            choose(c, 7)
            assert c.draft_vocab == model.n_vocab


def test_what_was_chosen_can_be_forgotten(wide: Path) -> None:
    with Model(wide) as model, context(model) as c:
        token = gone_to_all(c)
        c.forget_chosen()
        assert c.draft_vocab == AUTO_DRAFT_VOCAB
        c.draft_chain(token, 1)
        assert c.drafts_over(token)
        assert not c.drafts_over(OUTSIDE[-1] + 1)


def test_a_token_that_comes_again_and_again_counts_as_new_once(wide: Path) -> None:
    with Model(wide) as model, context(model) as c:
        told(c, [1, 2, 3])
        for _ in range(200):  # no drafts, so that it does not join
            choose(c, OUTSIDE[0])
        assert c.draft_vocab == AUTO_DRAFT_VOCAB


def test_tokens_that_time_a_round_do_not_move_auto_to_all(wide: Path) -> None:
    with Model(wide) as model, LLM(model, n_ctx=256, n_threads=1) as llm:
        assert llm.context.counters.target_decodes > 0
        assert llm.context.draft_vocab == AUTO_DRAFT_VOCAB


def test_auto_writes_the_same_text(wide: Path) -> None:
    texts = []
    with Model(wide) as model:
        prompt = some_tokens(model, 20)
        for options in ({"draft_tokens": 0}, {"draft_vocab": "all"}, {"draft_vocab": "auto"}, {"draft_vocab": 20000}):
            with make_llm(model, **options) as llm:
                texts.append([llm.generate(prompt, params).token_ids for params in (GREEDY, WARM)])
    assert texts[1:] == texts[:-1]


def test_made_up_acceptance_does_not_move_the_set_of_auto(wide: Path) -> None:
    with Model(wide) as model, SyntheticLLM(model, [0.9, 0.8], n_ctx=512, n_threads=1, draft_tokens=2) as llm:
        llm.generate(some_tokens(model, 20), replace(WARM, max_tokens=100))
        assert llm.context.draft_vocab == AUTO_DRAFT_VOCAB
