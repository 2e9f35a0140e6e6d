"""Tests of contexts: options work, invalid ones are refused, and a context keeps its model alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymtp import LLM, ClosedError, ContextFullError, InvalidRequestError, SamplingParams
from pymtp.context.context import Context
from pymtp.context.options import CACHE_TYPES
from pymtp.drafting.depth import MAX_AUTO
from pymtp.model.model import Model

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("flash_attn", ["auto", "on", "off"])
@pytest.mark.parametrize("type_v", ["f16", "q8_0"])
def test_context_with_drafts_writes_the_same_text_with_any_cache_type(
    new_llm: Callable[..., LLM], prompts: list[str], flash_attn: str, type_v: str
) -> None:
    if (flash_attn, type_v) == ("off", "q8_0"):
        with pytest.raises(InvalidRequestError, match="needs flash attention"):
            new_llm(flash_attn=flash_attn, type_v=type_v)
        return
    options = {"flash_attn": flash_attn, "type_k": type_v, "type_v": type_v}
    plain, drafting = new_llm(draft_tokens=0, **options), new_llm(draft_tokens=4, **options)
    assert drafting.generate(prompts[0], GREEDY).text == plain.generate(prompts[0], GREEDY).text


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_context_generates_with_every_cache_type(new_llm: Callable[..., LLM], prompts: list[str], kind: str) -> None:
    completion = new_llm(type_k=kind, type_v=kind).generate(prompts[1], GREEDY)
    assert len(completion.token_ids) == 24
    assert completion.stats.accepted > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"type_k": "q9"},
        {"flash_attn": "maybe"},
        {"tap": "mid_norm"},
        {"draft_tokens": -1},
        {"draft_tokens": 65},
        {"draft_tokens": "most"},
        {"n_ctx": -1},
        {"n_ubatch": 3, "draft_tokens": 3},
        {"n_batch": 3, "draft_tokens": 3},
        {"n_batch": 0, "draft_tokens": 0},
        {"n_threads": 0},
        {"n_threads": True},
        {"n_ctx": 1.5},
        {"n_ctx": True},
        {"draft_tokens": True},
        {"draft_vocab": True},
        {"type_k": np.array(["f16", "f32"])},
        {"tap": np.array([0, 1])},
        {"n_gpu_layers": True},
    ],
    ids=str,
)
def test_context_refuses_invalid_options_by_name(new_llm: Callable[..., LLM], wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        new_llm(**wrong)


def test_context_options_are_checked_before_the_model_is_loaded() -> None:
    with pytest.raises(InvalidRequestError, match="n_ctx=-1"):
        LLM("nowhere.gguf", n_ctx=-1)


def test_unknown_tap_error_lists_the_known_taps(new_llm: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequestError, match="tap=None is not known, use one of post_norm, pre_norm, auto"):
        new_llm(tap=None)


def test_huge_integer_option_is_refused(new_llm: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequestError, match=r"n_ctx=\(int\)"):
        new_llm(n_ctx=10**5000)


@pytest.mark.parametrize("integer", [np.int8, np.uint16, np.int64])
def test_context_options_take_any_integer_type(
    new_llm: Callable[..., LLM], prompts: list[str], integer: type[np.integer[Any]]
) -> None:
    options = {"n_ctx": 100, "n_threads": 1, "draft_tokens": 3, "n_batch": 100, "n_ubatch": 64, "n_gpu_layers": 0}
    given = {name: integer(value) for name, value in options.items()}
    llm = new_llm(**given, draft_vocab=integer(127))
    expected = new_llm(**options, draft_vocab=127)
    assert llm.context.memory() == expected.context.memory()
    assert llm.generate(prompts[0], GREEDY).token_ids == expected.generate(prompts[0], GREEDY).token_ids
    assert new_llm(n_batch=integer(5), n_ubatch=integer(5), draft_tokens="auto").context.draft_tokens == 4


@pytest.mark.parametrize("draft_tokens", [1, 8, 64])
def test_context_works_with_the_smallest_allowed_batches(
    new_llm: Callable[..., LLM], prompts: list[str], draft_tokens: int
) -> None:
    least = 1 + draft_tokens
    llm = new_llm(n_ctx=1, draft_tokens=draft_tokens, n_batch=least, n_ubatch=least)
    assert llm.context.n_ctx == 256
    assert len(llm.generate(prompts[0], SamplingParams(max_tokens=30, ignore_eos=True)).token_ids) == 30


def test_model_without_a_head_refuses_drafts_but_decodes(
    new_llm: Callable[..., LLM], headless: Path, prompts: list[str]
) -> None:
    with pytest.raises(InvalidRequestError, match=r"headless.gguf has none: use draft_tokens=0, or head=FILE for one"):
        new_llm(headless, draft_tokens=1)
    plain = new_llm(headless, draft_tokens="auto")
    assert plain.context.draft_tokens == 0
    assert plain.generate(prompts[0], GREEDY).text == new_llm(draft_tokens=0).generate(prompts[0], GREEDY).text


@pytest.mark.parametrize(("n_ubatch", "most"), [(512, MAX_AUTO), (7, 6), (3, 2), (1, 0)])
def test_auto_draft_tokens_are_fewer_than_the_ubatch(
    new_llm: Callable[..., LLM], prompts: list[str], n_ubatch: int, most: int
) -> None:
    llm = new_llm(draft_tokens="auto", n_ubatch=n_ubatch)
    assert llm.context.draft_tokens == most
    completion = llm.generate(prompts[0], GREEDY)
    assert max(completion.stats.depths) <= most
    assert completion.text == new_llm(draft_tokens=0).generate(prompts[0], GREEDY).text


def test_unloaded_head_is_not_used_for_drafts() -> None:
    with Model(mtp=False) as model, pytest.raises(InvalidRequestError, match="was loaded without it"):
        Context(model, n_ctx=256, n_threads=1, draft_tokens=1)


def test_context_refuses_tokens_beyond_its_size_and_stays_unchanged(llm: LLM) -> None:
    context = llm.context
    context.clear()
    context.prefill([1] * (context.n_ctx - 2))
    with pytest.raises(ContextFullError, match="exceed n_ctx = 1024"):
        context.prefill([1, 2, 3])
    with pytest.raises(ContextFullError):
        context.verify([1, 2, 3])
    context.draft(1)
    context.draft(1)
    with pytest.raises(ContextFullError):
        context.draft(1)
    assert context.n_past == context.n_ctx - 2
    context.verify([1, 1])
    assert context.n_past == context.n_ctx


def test_context_refuses_more_drafts_or_rows_than_its_options_allow(llm: LLM) -> None:
    llm.context.clear()
    llm.context.prefill([5])
    for token in (1, 2, 3):
        llm.context.draft(token)
    with pytest.raises(InvalidRequestError, match="at most 3 drafts"):
        llm.context.draft(4)
    for tokens in ([], [1] * 5):
        with pytest.raises(InvalidRequestError, match="1 to 4 tokens"):
            llm.context.verify(tokens)
    with pytest.raises(InvalidRequestError, match="at least one token"):
        llm.context.prefill([])
    assert llm.context.n_past == 1


def test_context_keeps_its_model_alive() -> None:
    model = Model()
    context = Context(model, n_ctx=256, n_threads=1, draft_tokens=2)
    model.close()
    del model
    gc.collect()
    assert np.isfinite(context.prefill([1, 2, 3])).all()
    context.close()
    context.close()
    with pytest.raises(ClosedError):
        context.prefill([1])


def test_returned_arrays_outlive_the_next_call_and_the_context(demo: Path) -> None:
    with Model(demo) as model:
        options: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "max_outputs": 8}
        with Context(model, draft_tokens=2, **options) as context, Context(model, embeddings=True, **options) as other:
            arrays = [context.prefill([1, 2, 3]), context.draft(4), context.draft(5), context.verify([4, 5])]
            arrays += [other.prefill_logits([1, 2, 3]), other.embeddings()]
            expected = [array.tolist() for array in arrays]
            for each in (context, other):
                each.prefill_logits([6, 7, 8, 9])
        assert [array.tolist() for array in arrays] == expected


def test_models_and_contexts_are_garbage_collected_in_any_order() -> None:
    """Garbage-collect a reference cycle of a model and a context in both orders.

    In a build with -fsanitize=address, this test fails if freed memory is touched.
    """
    for first, second in ((0, 1), (1, 0)):
        model = Model()
        members: list[Any] = [model, Context(model, n_ctx=256, n_threads=1, draft_tokens=2)]
        gone = [weakref.ref(member) for member in members]
        cycle: list[Any] = [members[first].__dict__, members[second].__dict__]
        cycle.append(cycle)
        members[0].cycle = members[1].cycle = cycle
        del model, members, cycle
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
