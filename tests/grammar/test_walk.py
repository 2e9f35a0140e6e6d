"""Tests of the grammar walk: it allows exactly the same tokens as a reference, even if they cut characters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gbnf import Alternatives, CharacterClass, GrammarPosition, Literal, Repeat, Rule, Rules, Token, gbnf
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite

from pymtp import InvalidRequestError, Model, SamplingParams
from pymtp.sampling import Sampler

# tokens that begin or end within a character, as in large vocabularies
CUTS = [b"\xc3\xa9", b"a\xc3", b"\xa9b", b"\xe2\x86", b"\x86\x92", b"x\xe2", b"ab\xf0\x9f", b"\x99\x82a", "→é".encode()]
LETTERS = "abé→🙂 \n"
LAST = Model(vocab_only=True).n_vocab - 1


@pytest.fixture(scope="module")
def model(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load the shipped model with CUTS among its tokens."""
    path = tmp_path_factory.mktemp("models") / "cuts.gguf"
    tokens = open_gguf(demo).fields["tokenizer.ggml.tokens"].contents()
    for i, cut in enumerate(CUTS):
        shown = "".join(map(_letter_of, cut))
        if shown in tokens:
            tokens[tokens.index(shown)] = tokens[-1 - i]
        tokens[-1 - i] = shown
    rewrite(demo, path, metadata={"tokenizer.ggml.tokens": tokens})
    with Model(path) as model:
        assert [model.token_bytes(model.n_vocab - 1 - i) for i in range(len(CUTS))] == CUTS
        yield model


def _letter_of(byte: int) -> str:
    """Return the character that stands for a byte in vocabularies of GPT-2's kind."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in shown else chr(0x100 + [b for b in range(0x100) if b not in shown].index(byte))


@cache
def sampled_tokens(model: Model) -> list[int]:
    """Return tokens of all kinds: single bytes of LETTERS and some others, CUTS, words, control tokens and ends."""
    singles = {bytes([byte]) for byte in (*LETTERS.encode(), 0x00, 0x7F, 0x80, 0xC2, 0xE0, 0xED, 0xF4, 0xFF)}
    return [t for t in range(model.n_vocab) if t < 3 or (data := model.token_bytes(t)) in singles or data in CUTS] + [
        next(t for t in range(model.n_vocab) if model.token_bytes(t) == word) for word in (b"  ", b" a", b"\n\n")
    ]


EDGES = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
ends = st.sampled_from([*map(ord, LETTERS), *EDGES])
characters = st.builds(
    lambda pairs, inverse: CharacterClass(tuple((min(p), max(p)) for p in pairs), inverse),
    st.lists(st.tuples(ends, ends) | ends.map(lambda c: (c, c)), min_size=1, max_size=3).map(tuple),
    st.booleans(),
)
tokens = st.builds(Token, st.sampled_from([1, 66, LAST, LAST - 1, LAST - 6, 99_999]), st.booleans())
leaves = characters | st.text(LETTERS, max_size=3).map(Literal) | tokens | st.sampled_from("abc").map(Rule)
nodes = st.recursive(
    leaves,
    lambda parts: (
        st.lists(st.lists(parts, max_size=3).map(tuple), min_size=1, max_size=3).map(
            lambda ways: Alternatives(tuple(ways))
        )
        | st.builds(
            lambda node, minimum, more: Repeat(node, minimum, None if more is None else minimum + more),
            parts,
            st.integers(0, 3),
            st.none() | st.integers(0, 3),
        )
    ),
    max_leaves=6,
)


# the first parameters search only the likeliest tokens, the second ones the whole vocabulary
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}]


@settings(max_examples=30)
@given(st.fixed_dictionaries({name: nodes for name in ("root", "a", "b", "c")}), st.sampled_from(SAMPLINGS), st.data())
def test_grammar_walk_allows_exactly_the_tokens_of_the_reference(
    model: Model, rules: Rules, sampling: dict[str, Any], data: Any
) -> None:
    sampler = Sampler(SamplingParams(grammar=gbnf(rules), **sampling))
    with ExitStack() as stack:
        try:
            stack.enter_context(sampler.compiled(model))
        except InvalidRequestError:
            reject()  # the grammar is left-recursive
        position, before = GrammarPosition.start(rules), []
        for _ in range(5):
            expected = {t: after for t in sampled_tokens(model) if (after := position_after(model, rules, position, t))}
            assert allowed(sampler, model, before, sampled_tokens(model)) == set(expected)
            if not expected:
                break
            token = data.draw(st.sampled_from(sorted(expected)))
            before, position = [*before, token], expected[token]


def test_grammar_walk_follows_a_long_text_after_it_discarded_states(model: Model) -> None:
    """Check a grammar in which each parenthesis has 2,000 continuations of its own."""
    n = 600  # a million stacks are too many to keep
    sampler = Sampler(SamplingParams(grammar=f'root ::= "(" x root? ")"\nx ::= {" | ".join(["[a]"] * 2000)}'))
    opened, letter, closed = (model.tokenize(text)[0] for text in "(a)")
    with sampler.compiled(model):
        for text, expected in (
            ([opened, letter] * n, {opened, closed}),
            ([*[opened, letter] * n, *[closed] * (n - 1)], {closed}),
            ([*[opened, letter] * n, *[closed] * n], {t for t in range(3) if model.ends_generation(t)}),
        ):
            assert allowed(sampler, model, text, [*range(3), opened, letter, closed]) == expected


def position_after(model: Model, rules: Rules, position: GrammarPosition, token: int) -> GrammarPosition | None:
    if model.ends_generation(token):
        return position if position.may_end else None
    return position.after(rules, token, model.token_bytes(token))


def allowed(sampler: Sampler, model: Model, before: list[int], candidates: list[int]) -> set[int]:
    """Return the tokens that may follow: sample tokens, and make each one impossible, until none is left."""
    logits = np.full(model.n_vocab, -np.inf, dtype=np.float32)
    logits[candidates] = 0.0
    found = set()
    while (token := sampler.sample(logits, 0, before)[0]) is not None:
        found.add(token)
        logits[token] = -np.inf
    return found
