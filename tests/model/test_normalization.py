"""Tests of NFC normalization: the vocabularies and the parts of a text that it applies to."""

from __future__ import annotations

from pathlib import Path
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers.gguf_variants import rewrite

from pymtp import LLM, ClosedError, InvalidRequestError, SamplingParams
from pymtp.model.model import Model
from pymtp.model.normalization import Normalizer

DEMO = Model(vocab_only=True)
# letters with marks, marks in the wrong order, letters that only look like others, jamo, a mark of Unicode 10, the last
# character of a special token, and a mark that can follow it
ODD = (
    "e\u0301",
    "a\u0316\u0301",
    "a\u0301\u0316",
    "\u212b",
    "\uf900",
    "\u0344",
    "\u1112\u1161\u11ab",
    "\u1df6",
    ">",
    "\u0338",
)
texts = st.lists(st.sampled_from((*ODD, "a", " ", "<|im_end|>", "<think>")), max_size=12).map("".join)


@pytest.mark.parametrize(
    "text", ["e\u0301", "cafe\u0301 re\u0301sume\u0301", "\u1112\u1161\u11ab", "\u212b", "\uf900", "\u0344"]
)
def test_text_and_its_nfc_have_the_same_tokens(text: str) -> None:
    assert DEMO.normalized(text) == normalize("NFC", text) != text
    assert DEMO.tokenize(text) == DEMO.tokenize(normalize("NFC", text))


@given(texts)
def test_normalizing_a_text_twice_is_the_same_as_once(text: str) -> None:
    once = DEMO.normalized(text)
    assert DEMO.normalized(once) == once
    assert DEMO.tokenize(once) == DEMO.tokenize(text)
    assert DEMO.detokenize(DEMO.tokenize(text), special=True) == once


def test_normalization_does_not_join_a_mark_to_a_special_token() -> None:
    text = "<|im_end|>\u0338e\u0301"
    tokens = DEMO.tokenize(text)
    assert normalize("NFC", text)[9] == "\u226f"
    assert tokens[0] == DEMO.tokenize("<|im_end|>")[0]
    assert DEMO.detokenize(tokens, special=True) == "<|im_end|>\u0338\u00e9"


def test_normalization_leaves_the_longest_special_token_unchanged() -> None:
    normalizer = Normalizer(["<a", "<a>", ""])
    assert normalizer.normalized("<a>\u0338 >\u0338") == "<a>\u0338 \u226f"


@pytest.mark.parametrize("mark", ["\u1df6", "\u09fe", "\u0c3c", "\U00010d24"])
def test_normalization_ignores_marks_of_later_unicode_versions(mark: str) -> None:
    # With the tables of newer Python versions, these marks would change places with the mark after them
    assert DEMO.normalized(f"e{mark}\u0301 a\u0316{mark}\u0316 e\u0301") == f"e{mark}\u0301 a\u0316{mark}\u0316 \u00e9"


@pytest.mark.parametrize(
    ("pre", "nfc"), [("qwen2", True), ("qwen35", True), ("deepseek-r1-qwen", False), ("gpt-2", False)]
)
def test_only_vocabularies_of_qwen_models_are_normalized(demo: Path, tmp_path: Path, pre: str, nfc: bool) -> None:
    rewrite(demo, tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre})
    with Model(tmp_path / "m.gguf", vocab_only=True) as model:
        assert model.detokenize(model.tokenize("e\u0301")) == ("\u00e9" if nfc else "e\u0301")


@pytest.mark.parametrize("half", ["\ud83d", "e\u0301\ud83d"])
def test_lone_surrogate_is_refused_in_any_text(half: str) -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        DEMO.tokenize(half)


def test_closed_model_raises_closed_error_for_text_that_needs_normalization(demo: Path) -> None:
    model = Model(demo, vocab_only=True)
    model.close()
    with pytest.raises(ClosedError):
        model.tokenize("e\u0301")


def test_prompts_that_differ_in_unicode_form_have_the_same_answer(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    composed, apart = (form * 20 for form in ("\u00e9\u00e8 ", "e\u0301e\u0300 "))
    one, two = llm.generate(composed, params), llm.generate(apart, params)
    assert one.prompt_token_ids == two.prompt_token_ids
    assert one.token_ids == two.token_ids
