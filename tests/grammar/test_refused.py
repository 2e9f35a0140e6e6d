"""Tests of bad grammars: each is refused with the reason, in time, and does no harm."""

from __future__ import annotations

from typing import Any

import pytest

from pymtp import LLM, InvalidRequestError, Model, PymtpError, SamplingParams

BAD = {
    "root": "expecting ::=",
    "x ::= [a]": "'root'",
    "root ::= y": "'y'",
    'root ::= root "a"': "left recursion detected for 'root'",
    "root ::= a*\na ::= root?": "left recursion detected for 'root'",
    'root ::= c root\nc ::= d d\nd ::= "" | "x"': "left recursion",
    'root ::= "a"{5,2}': "less than its minimum",
    'root ::= "a"{99999}': "number of repetitions",
    f'root ::= "{"a" * 1000}"{{2000}}': "elements",
    f"root ::= a\n{'a' * 500_000} ::= {'[a]{0,900} ' * 50}": "elements",
    'root ::= "a"{99999999999999999999}': "number of repetitions",
    "root ::= " + '"a"{0,40} ("b"? "c"?){0,40} '.replace("(", "(" * 250): "nested",
    f"root ::= <{'x' * 1000}>": "token's name",
    "root ::= " + "(" * 100_000: "nested",
    'root ::= "a': "end of input",
    "root ::= [a": "end of input",
    "root ::= *": "preceding item",
    r'root ::= "\q"': "unknown escape",
    "root ::= <no such token>": "invalid token",
    "": "no rule .root",
}


@pytest.mark.parametrize("grammar", BAD, ids=range(len(BAD)))
def test_bad_grammar_is_refused_with_the_reason(llm: LLM, grammar: str) -> None:
    with pytest.raises(InvalidRequestError, match=BAD[grammar]) as caught:
        llm.generate("a", SamplingParams(3, grammar=grammar))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("wrong", [7, b"root ::= [a]", "root ::= [\0]", "root ::= [\ud800]", "#" * 2**21])
def test_grammar_must_be_text(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="grammar"):
        SamplingParams(grammar=wrong)


def test_refused_grammar_leaves_the_context_unchanged(llm: LLM, prompts: list[str]) -> None:
    llm.generate(prompts[0], SamplingParams(8))
    held = llm.context.tokens()
    with pytest.raises(InvalidRequestError):
        llm.generate(prompts[1], SamplingParams(8, grammar="root"))
    assert llm.context.tokens() == held


def _bytes_of(model: Model, text: str) -> dict[int, float]:
    """Return a logit bias towards the tokens of the single bytes of a text."""
    return {t: 1000.0 for t in range(model.n_vocab) if model.token_bytes(t) in {bytes([b]) for b in text.encode()}}


def test_refused_grammar_prints_nothing(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    for grammar in BAD:
        with pytest.raises(InvalidRequestError):
            llm.generate("a", SamplingParams(3, grammar=grammar))
    assert capfd.readouterr() == ("", "")


def test_grammars_with_endless_work_are_refused_in_time(llm: LLM) -> None:
    chain = "".join(f"r{i} ::= r{i + 1} | r{i + 1}\n" for i in range(10_000)) + "r10000 ::= [a]\n"
    assert llm.generate("a", SamplingParams(3, grammar="root ::= r0\n" + chain)).text == "a"
    empty = "".join(f"r{i} ::= r{i + 1}\n" for i in range(20_000)) + 'r20000 ::= ""\n'
    assert llm.generate("a", SamplingParams(3, grammar='root ::= "a" r0\n' + empty)).text == "a"
    # 10,000 alternatives, each with 10,000 continuations
    ways = " | ".join(f"[{chr(0x4E00 + i)}-🙂] r" for i in range(10_000))
    many = f"root ::= ({ways})*\nr ::= {' | '.join(f'[{chr(0x4E00 + i)}]' for i in range(10_000))}"
    with pytest.raises(PymtpError, match="allows no token"):
        llm.generate("a", SamplingParams(9, grammar=many, logit_bias=_bytes_of(llm.model, "🙂")))
    # each letter doubles the continuations
    doubling = "root ::= x\nx ::= [a] x | [a] x [b] | [a] x [c] | [a]"
    with pytest.raises(PymtpError, match="allows no token"):
        llm.generate("a", SamplingParams(60, grammar=doubling, logit_bias=dict.fromkeys(llm.model.tokenize("a"), 1e3)))


@pytest.mark.parametrize(
    ("grammar", "text"), [('root ::= ("a"?){0,900}', "aaa"), ('root ::= "" | <[5]>', "")], ids=range(2)
)
def test_output_follows_a_grammar_that_allows_empty_text(llm: LLM, grammar: str, text: str) -> None:
    bias = dict.fromkeys(llm.model.tokenize("a"), 1e3)  # rather than an end
    assert llm.generate("a", SamplingParams(3, grammar=grammar, logit_bias=bias)).text == text
