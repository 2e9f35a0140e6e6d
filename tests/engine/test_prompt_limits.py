"""Tests of prompts that can never fit: they are refused before they are tokenized, and leave nothing behind."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import make_llm

from pymtp import LLM, ContextFullError, InvalidRequestError, SamplingParams
from pymtp.chat import Chat, output_format
from pymtp.model.model import MIN_NORMALIZED

N_CTX = 256


@pytest.fixture(scope="module")
def small() -> Iterator[LLM]:
    with make_llm(n_ctx=N_CTX, n_seq_max=1) as llm:
        yield llm


@pytest.fixture
def untokenized(small: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Return an LLM whose model tokenizes no long text."""

    def tokenize(text: str, **keywords: Any) -> list[int]:
        assert len(text) <= 100, "a long text is tokenized"
        return before(text, **keywords)

    before = small.model.tokenize
    monkeypatch.setattr(small.model, "tokenize", tokenize)
    return small


def limit(llm: LLM) -> int:
    return N_CTX * llm.model.max_token_bytes


def test_longest_token_is_found(small: LLM) -> None:
    model = small.model
    assert model.max_token_bytes == max(
        max(len(model.token_bytes(token)), len(model.token_bytes(token, special=True)))
        for token in range(model.n_vocab)
    )


@pytest.mark.parametrize("text", ["import os ", "é", "<|im_end|>", " ", "\ud55c"])
def test_text_that_can_never_fit_is_refused_untokenized(untokenized: LLM, text: str) -> None:
    long = text * (1 + limit(untokenized) // len(text.encode()))
    with pytest.raises(ContextFullError, match=rf"have at most {limit(untokenized)} bytes"):
        untokenized.generate(["a", long], SamplingParams(1))


def test_chat_that_can_never_fit_is_refused_untokenized_and_not_kept(untokenized: LLM) -> None:
    for long in ("a" * (1 + limit(untokenized)), "a b " * limit(untokenized)):
        with pytest.raises(ContextFullError, match="bytes"):
            untokenized.chat([{"role": "user", "content": long}], SamplingParams(1))
    assert not untokenized.chat_prompts._recent._by_key


def test_messages_that_can_never_fit_are_not_rendered(untokenized: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def render(*_: Any, **__: Any) -> str:
        raise AssertionError("it is rendered")

    monkeypatch.setattr(untokenized.chat_template, "render", render)
    long = "a" * (2 + int(limit(untokenized) / MIN_NORMALIZED))
    with pytest.raises(ContextFullError, match="characters"):
        untokenized.chat([{"role": "user", "content": long}], SamplingParams(1))


def test_text_that_a_template_drops_does_not_count(small: LLM) -> None:
    spaces = " " * (4 * limit(small))
    thinking = f"<think>{'a' * 4 * limit(small)}</think>b"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": thinking}]
    small.chat_prompts._check_messages([*messages, {"role": "user", "content": spaces}])


def test_too_many_token_ids_are_counted_only(small: LLM) -> None:
    class Ids(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("they are read")

    for ids in (Ids([1] * (N_CTX + 1)),):
        with pytest.raises(ContextFullError, match=f"{N_CTX + 1} tokens"):
            small.generate(ids, SamplingParams(1))
    with pytest.raises(InvalidRequestError):
        small.generate(np.array([10**6]), SamplingParams(1))


def test_text_of_the_longest_tokens_that_just_fits_is_taken(small: LLM) -> None:
    model = small.model
    longest = max(range(model.n_vocab), key=lambda token: len(model.token_bytes(token, special=True)))
    text = model.token_bytes(longest, special=True).decode() * N_CTX
    assert len(text.encode()) == limit(small)
    model.check_fits(text, N_CTX)


def test_prompt_too_long_in_tokens_only_is_refused_and_not_kept(small: LLM) -> None:
    with pytest.raises(ContextFullError, match="tokens, n_ctx is"):
        small.chat([{"role": "user", "content": "1 " * N_CTX}], SamplingParams(1))
    assert not small.chat_prompts._recent._by_key


def test_normalization_never_shortens_a_text_to_less_than_the_bound() -> None:
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        parts = unicodedata.normalize("NFD", chr(code))
        assert len(unicodedata.normalize("NFC", parts).encode()) > MIN_NORMALIZED * len(parts)


def test_recent_chats_are_looked_up_by_their_keys_only(small: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    before = small.model.tokenize
    monkeypatch.setattr(small.model, "tokenize", lambda text, **kw: lengths.append(len(text)) or before(text, **kw))
    chat = Chat([{"role": "user", "content": "import os"}])

    def whole_text(key: tuple[str, str] | None) -> int:
        """Return the length of the first text that is tokenized."""
        lengths.clear()
        small.chat_prompts.prompt(chat, key)
        return lengths[0]

    whole = whole_text(None)
    assert whole_text(None) == whole  # nothing is kept
    for key in (("", ""), ("a", ""), ("", "s"), ("a", "s")):
        assert whole_text(key) == whole
        assert whole_text(key) < whole
    assert whole_text(None) == whole


def test_grammars_of_tools_are_looked_up_by_their_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    before = output_format.output_grammar
    monkeypatch.setattr(output_format, "output_grammar", lambda *given, **kw: made.append(1) or before(*given, **kw))
    schema = {"type": "object", "properties": {"only_here": {"type": "string"}}}
    for key, n in ((("", ""), 1), (("", ""), 1), (("a", ""), 2), (("a", "s"), 3), (None, 4), (None, 5), (("a", ""), 5)):
        assert output_format.OutputFormat(None, "", schema=schema, cache_key=key).gbnf
        assert len(made) == n
