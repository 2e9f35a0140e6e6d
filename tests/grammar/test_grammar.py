"""Tests of grammars: outputs match their grammar, and drafts do not change the outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers.sample import sample
from hypothesis import given, settings
from hypothesis import strategies as st
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite

from pymtp import LLM, Completion, InvalidRequestError, Model, SamplingParams
from pymtp.sampling import Sampler

DEPTHS = (1, 3, 8)
EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T=0.9": {"temperature": 0.9, "seed": 4},
    "T=1.5, all tokens": {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5},
}
# grammars, each with a regular expression that matches the same texts
GRAMMARS = {
    r'root ::= "def " [a-z_]{1,12} "(" ([a-z] (", " [a-z])*)? "):\n"': r"def [a-z_]{1,12}\(([a-z](, [a-z])*)?\):\n",
    r"root ::= [0-9]{3} (sep [0-9]{3}){2}" + "\n" + r'sep ::= "," " "? # a comment': r"[0-9]{3}(, ?[0-9]{3}){2}",
    r'root ::= "    return " ("x" | "é→" | [д-я])+ "\n"': r"    return (x|é→|[д-я])+\n",
    r"root ::= ([^\n]{0,30} [\n]){2}": r"([^\n]{0,30}\n){2}",
}
SUM = 'root ::= term ("+" term){2,9} "=" [0-9]+\nterm ::= [0-9]{1,3} | "(" term ("*" term)? ")"'


@pytest.fixture(scope="module")
def plain_texts(prompts: list[str]) -> Iterator[Callable[[SamplingParams], list[Completion]]]:
    """Return a function that generates completions without drafts, and keeps them for tests with other depths."""
    made: dict[str, list[Completion]] = {}

    def texts(params: SamplingParams) -> list[Completion]:
        if repr(params) not in made:
            made[repr(params)] = llm.generate(prompts[:2], params)
        return made[repr(params)]

    with make_llm(draft_tokens=0) as llm:
        yield texts


@pytest.fixture(scope="module", params=DEPTHS)
def drafting(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with make_llm(draft_tokens=request.param) as llm:
        yield llm


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_output_matches_its_grammar(llm: LLM, prompts: list[str], grammar: str, way: str) -> None:
    for completion in llm.generate(prompts[:4], SamplingParams(120, grammar=grammar, **WAYS[way])):
        if completion.finish_reason == "stop":
            assert re.fullmatch(GRAMMARS[grammar], completion.text)
        else:
            assert grammar.startswith('root ::= "    return'), "only the grammar of endless text may be cut off"


@pytest.mark.parametrize("way", WAYS)
def test_output_of_a_grammar_is_the_same_with_and_without_drafts(
    drafting: LLM, plain_texts: Callable[[SamplingParams], list[Completion]], prompts: list[str], way: str
) -> None:
    accepted = 0
    for grammar in [*GRAMMARS, SUM]:
        params = SamplingParams(50, grammar=grammar, **WAYS[way])
        for with_drafts, without in zip(drafting.generate(prompts[:2], params), plain_texts(params), strict=True):
            assert with_drafts.token_ids == without.token_ids
            assert with_drafts.finish_reason == without.finish_reason
            accepted += with_drafts.stats.accepted
    assert accepted > 0


def test_drafts_follow_the_grammar(llm: LLM, prompts: list[str]) -> None:
    """Check that every draft is accepted where the grammar allows a single text."""
    only = "zq%%" * 6
    completion = llm.generate(prompts[0], SamplingParams(grammar=f'root ::= "{only}"', logit_bias=_singles(llm.model)))
    assert completion.text == only
    assert completion.stats.accepted == completion.stats.drafted > 10


def _singles(model: Model) -> dict[int, float]:
    """Return a logit bias that leaves only tokens of a single byte."""
    return {t: -np.inf for t in range(model.n_vocab) if len(model.token_bytes(t)) > 1}


def test_rejected_draft_leaves_no_trace_in_the_grammar(llm: LLM, prompts: list[str]) -> None:
    sampler = Sampler(SamplingParams(grammar=SUM, temperature=0.9, seed=2))
    context, model = llm.context, llm.model
    prompt = model.tokenize(prompts[1])
    text = llm.generate(prompt, SamplingParams(40, grammar=SUM, temperature=0.9, seed=2)).token_ids
    digits = [model.tokenize(digit)[0] for digit in "0123456789"]
    wrongs = [*digits, *model.tokenize("=(+)"), model.tokenize("x")[0]]
    context.clear()
    context.set_sampling(sampler)
    context.prefill(prompt)
    out = [context.first_token()]
    rng = np.random.default_rng(0)
    while len(out) < len(text):
        # bad drafts, some of which the grammar allows
        drafts = [int(token) for token in rng.choice(wrongs, size=3)]
        if rng.random() < 0.5:
            drafts[0] = text[len(out)]
        context.draft_chain(out[-1], 2)
        sampled = context.verify_chain([out[-1], *drafts])
        out += sampled[: len(text) - len(out)]
        context.rewind(len(prompt) + len(out) - 1)
    assert out == text
    context.clear()


@pytest.mark.parametrize("way", ["greedy", "T=0.9"])
def test_output_that_is_cut_anywhere_continues_in_its_grammar(demo_f32: Path, prompts: list[str], way: str) -> None:
    with make_llm(demo_f32, draft_tokens=3, **EXACT) as llm:
        prompt = llm.model.tokenize(prompts[2])
        params = SamplingParams(20, grammar=SUM, **WAYS[way])
        whole = llm.generate(prompt, params).token_ids
        assert len(whole) > 8
        for cut in range(1, len(whole)):
            first = llm.generate(prompt, replace(params, max_tokens=cut)).token_ids
            rest = llm.generate([*prompt, *first], replace(params, max_tokens=20 - cut, grammar_prefix=cut))
            assert rest.stats.cached_tokens == len(prompt) + cut - 1
            assert first + rest.token_ids == whole
        again = llm.generate([*prompt, *first], replace(params, max_tokens=3))
        assert again.text[0] in "(0123456789", "without grammar_prefix, the grammar starts again"


def test_grammar_prefix_beyond_the_prompt_means_the_whole_prompt(llm: LLM) -> None:
    prompt = llm.model.tokenize("12+34")
    texts = {llm.generate(prompt, SamplingParams(20, grammar=SUM, grammar_prefix=n)).text for n in (len(prompt), 10**6)}
    assert len(texts) == 1
    assert re.match(r"[0-9]*[+]", texts.pop()), "the output must continue the sum of the prompt"


def test_stop_strings_and_closed_streams_cut_off_the_output_of_a_grammar(llm: LLM, prompts: list[str]) -> None:
    params = SamplingParams(40, grammar=SUM, temperature=0.9, seed=3)
    whole = llm.generate(prompts[0], params)
    stop = whole.text[5:7]
    cut = llm.generate(prompts[0], replace(params, stop=stop))
    assert cut.text == whole.text[: whole.text.index(stop)]
    stream = llm.stream(prompts[0], params)
    next(stream)
    stream.close()
    assert llm.generate(prompts[0], params).token_ids == whole.token_ids


def test_generation_ends_only_where_the_grammar_allows_the_end(llm: LLM, prompts: list[str]) -> None:
    ends = [token for token in range(llm.model.n_vocab) if llm.model.ends_generation(token)]
    eager = dict.fromkeys(ends, 1000.0)
    params = SamplingParams(40, grammar='root ::= "ab" "c"*', logit_bias=eager)
    completion = llm.generate(prompts[0], params)
    assert (completion.text, completion.finish_reason) == ("ab", "stop")
    after = llm.generate(prompts[0], replace(params, ignore_eos=True, max_tokens=12))
    assert set(after.token_ids[-8:]) <= set(ends), "after its end, the grammar must allow only end tokens"


def test_control_token_is_sampled_only_where_the_grammar_names_it(llm: LLM) -> None:
    model = llm.model
    control = [t for t in range(model.n_vocab) if not model.token_bytes(t) and not model.ends_generation(t)]
    eager = dict.fromkeys(control, 1000.0)
    text = llm.generate("a", SamplingParams(6, grammar="root ::= .*", logit_bias=eager)).token_ids
    assert not set(text) & set(control)
    named = llm.generate("a", SamplingParams(6, grammar=f'root ::= "b" <[{control[0]}]> "c"')).token_ids
    assert control[0] in named


def test_grammar_that_allows_no_token_raises_and_the_model_stays_usable(llm: LLM, prompts: list[str]) -> None:
    before = llm.generate(prompts[0], SamplingParams(8)).token_ids
    impossible = f"root ::= [a] [a] [a] <[{llm.model.n_vocab + 1}]>"
    with pytest.raises(InvalidRequestError, match="allows no token at position"):
        llm.generate(prompts[0], SamplingParams(8, grammar=impossible))
    with pytest.raises(InvalidRequestError, match="allows no token at position"):
        llm.generate(prompts[0], SamplingParams(8, grammar="root ::= [a]*", grammar_prefix=5))
    assert llm.generate(prompts[0], SamplingParams(8)).token_ids == before


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_text_before_a_dead_end_of_the_grammar_does_not_depend_on_drafts(draft_tokens: int) -> None:
    params = SamplingParams(8, grammar='root ::= "1" " 2" "3" [^\\x00-\\U0010ffff]', temperature=0)
    with LLM(draft_tokens=draft_tokens) as llm:
        stopped = llm.generate("0 ", replace(params, stop=[" 23"]))
        assert (stopped.text, stopped.finish_reason) == ("1", "stop")
        pieces: list[str] = []
        with pytest.raises(InvalidRequestError, match="allows no token at position"):
            pieces.extend(piece.text for piece in llm.stream("0 ", params))
        assert "".join(pieces) == "1 23"


words_lists = st.lists(
    st.text(
        st.sampled_from("abé→ \n🙂x") | st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8
    ),
    min_size=1,
    max_size=4,
)


def gbnf(words: list[str]) -> str:
    return "root ::= " + " | ".join('"' + "".join(f"\\U{ord(c):08x}" for c in word) + '"' for word in words)


@settings(max_examples=30)
@given(words_lists, st.data())
def test_grammar_allows_exactly_the_tokens_that_can_become_a_word(llm: LLM, words: list[str], data: Any) -> None:
    model = llm.model
    word = data.draw(st.sampled_from(words)).encode()
    cut = data.draw(st.integers(0, len(word)))
    before = [data.draw(st.sampled_from([t for t in _byte_tokens(model)[byte]])) for byte in word[:cut]]
    begun = word[:cut]
    expected = {
        token
        for token in range(model.n_vocab)
        if (
            any(w.encode() == begun for w in words)
            if model.ends_generation(token)
            else model.token_bytes(token)
            and any(w.encode().startswith(begun + model.token_bytes(token)) for w in words)
        )
    }
    params = SamplingParams(temperature=1.0, grammar=gbnf(words), top_k=0, top_p=1, min_p=0)
    sampler = Sampler(params)
    with sampler.compiled(model):
        rng = np.random.default_rng(data.draw(st.integers(0, 9)))
        for token in expected | set(rng.choice(model.n_vocab, size=40).tolist()):
            one = np.full(model.n_vocab, -1e4, dtype=np.float32)
            one[token] = 0.0
            sampled, _ = sampler.sample(one, 1, before)
            assert (sampled == token) == (token in expected)
        # however the candidates are found, the token is sampled from the allowed ones
        for wanted in (params, replace(params, top_k=3), replace(params, temperature=0), replace(params, top_k=700)):
            logits = rng.normal(0, 2, model.n_vocab).astype(np.float32)
            masked = np.where(np.isin(np.arange(model.n_vocab), list(expected)), logits, np.float32(-np.inf))
            other = Sampler(wanted)
            with other.compiled(model):
                assert other.sample(logits, 9, before)[0] == sample(masked, 9, wanted)


@pytest.mark.parametrize("top_k", [0, 2, 3, 700])
def test_allowed_tokens_are_found_among_likelier_forbidden_tokens(llm: LLM, top_k: int) -> None:
    """Check two allowed tokens: one is the likeliest of all, or neither is among the likeliest."""
    model = llm.model
    a, b = (_byte_tokens(model)[byte][0] for byte in b"ab")
    params = SamplingParams(temperature=1.0, grammar="root ::= [ab]", top_k=top_k, top_p=1, min_p=0, seed=1)
    sampler = Sampler(params)
    with sampler.compiled(model):
        for first in (3.0, 1.0):
            logits = np.full(model.n_vocab, 2.0, dtype=np.float32)
            logits[[a, b]] = first, 1.0
            masked = np.where(np.isin(np.arange(model.n_vocab), [a, b]), logits, np.float32(-np.inf))
            sampled = [sampler.sample(logits, position)[0] for position in range(60)]
            assert sampled == [sample(masked, position, params) for position in range(60)]
            assert set(sampled) == {a, b}


def test_allowed_token_without_probability_is_not_sampled(llm: LLM) -> None:
    model = llm.model
    a, b = (_byte_tokens(model)[byte][0] for byte in b"ab")
    for temperature, top_k in ((0.0, 0), (1.0, 0), (1.0, 1)):
        sampler = Sampler(SamplingParams(temperature=temperature, grammar="root ::= [a]", top_k=top_k))
        with sampler.compiled(model):
            logits = np.full(model.n_vocab, -np.inf, dtype=np.float32)
            logits[b] = 0.0
            assert sampler.sample(logits, 0)[0] is None
            logits[a] = -50.0
            assert sampler.sample(logits, 0)[0] == a


def test_confidence_of_a_sampled_token_is_its_share_among_the_allowed_tokens(llm: LLM) -> None:
    model = llm.model
    letters = [t for t in range(model.n_vocab) if re.fullmatch(rb"[a-z]", model.token_bytes(t))]
    logits = np.zeros(model.n_vocab, dtype=np.float32)
    logits[letters] = np.linspace(2.0, 3.0, len(letters))
    logits[_byte_tokens(model)[ord("A")][0]] = 9.0
    likeliest = np.sort(logits[letters])[::-1][:16].astype(float)
    sampler = Sampler(SamplingParams(grammar="root ::= [a-z]"))
    with sampler.compiled(model):
        token, confidence = sampler.sample(logits, 0)
    assert token == letters[int(logits[letters].argmax())]
    assert confidence == pytest.approx(1 / np.exp(likeliest - likeliest[0]).sum())


def test_invalid_utf8_is_not_allowed(llm: LLM) -> None:
    """Compare pairs of bytes with Python's decoder. Byte 0 is not allowed either: it ends strings in llama.cpp."""
    model = llm.model
    sampler = Sampler(SamplingParams(grammar="root ::= .*"))
    each = [tokens[0] for tokens in _byte_tokens(model)]

    def is_text(data: bytes) -> bool:
        try:
            return "\0" not in data.decode()
        except UnicodeDecodeError as error:
            return 0 not in data and error.reason == "unexpected end of data"

    with sampler.compiled(model):
        for first in range(256):
            for second in (0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xF4, 0xFF):
                wanted = np.zeros(model.n_vocab, dtype=np.float32)
                wanted[each[second]] = 1.0
                token, _ = sampler.sample(wanted, 1, [each[first]])
                assert (token == each[second]) == is_text(bytes([first, second])), (first, second)


def test_token_may_have_any_length(demo: Path, tmp_path: Path) -> None:
    tokens = open_gguf(demo).fields["tokenizer.ggml.tokens"].contents()
    long = tokens.index("def")
    tokens[long] = "x" * 200
    rewrite(demo, tmp_path / "long.gguf", metadata={"tokenizer.ggml.tokens": tokens})
    with Model(tmp_path / "long.gguf") as model:
        assert model.token_bytes(long) == b"x" * 200
        for length, allowed in ((200, True), (199, False)):
            sampler = Sampler(SamplingParams(grammar=f'root ::= "{"x" * length}" "y"'))
            with sampler.compiled(model):
                wanted = np.zeros(model.n_vocab, dtype=np.float32)
                wanted[long] = 1.0
                assert (sampler.sample(wanted, 0)[0] == long) == allowed


_bytes: dict[Path, list[list[int]]] = {}


def _byte_tokens(model: Model) -> list[list[int]]:
    if model.path not in _bytes:
        _bytes[model.path] = [
            [t for t in range(model.n_vocab) if model.token_bytes(t) == bytes([b])] for b in range(256)
        ]
    return _bytes[model.path]


def test_token_that_one_alternative_forbids_may_be_allowed_by_another() -> None:
    with Model() as model:
        a, b = model.tokenize("a")[0], model.tokenize("b")[0]
        row = np.zeros(model.n_vocab, np.float32)
        row[a] = 9.0
        for alternates, allowed in ((f"!<[{a}]>", False), (f"!<[{a}]> | !<[{b}]>", True), (f"!<[{b}]>", True)):
            for top_k in (1, 0):  # with 1, only the likeliest tokens are searched; with 0, all tokens
                params = SamplingParams(grammar=f"root ::= {alternates}", top_k=top_k, temperature=0.01, seed=1)
                sampler = Sampler(params)
                with sampler.compiled(model):
                    assert (sampler.sample(row, 0)[0] == a) == allowed
