"""Tests of the rules for answers: their fields, and the grammars that they become."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.chat import Chat
from pymtp.openai import answer_rules
from pymtp.openai.answer_rules import MAX_TEXT, AnswerRule, read_rules
from pymtp.openai.generate_request import GenerateRequest, prepare_request
from pymtp.openai.request_body import CHAT, TEXT, read_generate_request, unknown_fields

HELLO = [{"role": "user", "content": "Hello."}]
TOOLS = [{"type": "function", "function": {"name": "look"}}]
SEVEN = {"const": 7}
RULES: list[tuple[dict[str, Any], tuple[str, Any]]] = [
    ({"guided_json": SEVEN}, ("json", SEVEN)),
    ({"guided_json": '{"const": 7}'}, ("json", SEVEN)),
    ({"json_schema": '{"const": 7}'}, ("json", SEVEN)),
    ({"structured_outputs": {"json": SEVEN}}, ("json", SEVEN)),
    ({"structured_outputs": {"json": '{"const": 7}', "regex": None}}, ("json", SEVEN)),
    ({"structured_outputs": {"json_object": True}}, ("json", {"type": "object"})),
    ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": False, "_backend": "x"}}, ("regex", "a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, ("choice", ("a", "b"))),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, ("grammar", 'root ::= "a"')),
    ({"guided_regex": "a+"}, ("regex", "a+")),
    ({"regex": "a+"}, ("regex", "a+")),
    ({"guided_choice": ["a", "b"]}, ("choice", ("a", "b"))),
    ({"guided_grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
    ({"ebnf": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
]


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "rule"), RULES, ids=lambda value: str(value)[:40])
def test_each_field_of_a_rule_becomes_the_schema_or_the_rule_of_the_request(
    url: str, fields: dict[str, Any], rule: tuple[str, Any]
) -> None:
    assert [(found.kind, found.value) for found in read_rules(fields)] == [rule]
    assert unknown_fields(url, fields) == []
    request = read_generate_request(url, {"messages": HELLO, "prompt": "a", **fields})
    if rule[0] != "json":
        assert request.answer_rule is not None
        assert request.answer_rule.value == rule[1]
    elif url == CHAT:
        assert request.schema == rule[1]
    else:
        assert request.params.json_schema is not None
        assert request.answer_rule is None


@pytest.mark.parametrize("fields", [{}, {"structured_outputs": {}}, {"guided_json": None, "structured_outputs": None}])
def test_empty_fields_are_no_rule(fields: dict[str, Any]) -> None:
    assert read_rules(fields) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"regex": 5}, "regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"json_schema": "7"}, "json_schema"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {"choice": {}}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs.disable_any_w"),
        ({"structured_outputs": {"lark": "start: a"}}, "structured_outputs.lark"),
    ],
)
def test_malformed_or_unknown_rule_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(param)) as refused:
        read_rules(fields)
    assert str(refused.value.param).startswith(param)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["a"], "guided_regex": "a"},
        {"guided_json": SEVEN, "response_format": {"type": "json_object"}},
        {"guided_choice": ["a"], "grammar": 'root ::= "a"'},
        {"structured_outputs": {"choice": ["a"], "regex": "a"}},
        {"json_schema": SEVEN, "grammar": 'root ::= "a"'},
    ],
)
@pytest.mark.parametrize("url", [CHAT, TEXT])
def test_several_rules_are_refused(url: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be combined"):
        read_generate_request(url, {"messages": HELLO, "prompt": "a", **fields})


def test_rule_beside_tools_is_refused_unless_the_tools_cannot_be_called() -> None:
    body = {"messages": HELLO, "guided_choice": ["a"], "tools": TOOLS}
    with pytest.raises(InvalidRequestError, match="guided_choice cannot be combined with tools"):
        read_generate_request(CHAT, body)
    assert read_generate_request(CHAT, body | {"tool_choice": "none"}).answer_rule is not None
    assert read_generate_request(CHAT, body | {"guided_choice": None, "guided_json": SEVEN}).schema == SEVEN


@pytest.mark.parametrize(
    "regex", ["ab|c", "^ab|c$", "[a-c]{2,3}", r"\d+\$", 'a"\\\\b', "(yes|no)", "é→", r"a\\$", "a.c"]
)
def test_regex_becomes_a_grammar_of_the_texts_that_it_matches_as_a_whole(llm: LLM, regex: str) -> None:
    gbnf = AnswerRule("regex", "regex", regex).gbnf
    for seed in range(8):
        params = SamplingParams(12, temperature=2.0, seed=seed, top_k=0, top_p=1.0, min_p=0.0, grammar=gbnf)
        done = llm.generate("x", params)
        assert done.finish_reason == "length" or re.fullmatch(regex, done.text)


def test_choices_are_written_as_they_are(llm: LLM) -> None:
    choices = ('a "quoted"\n\\', "ab", "abc", "🙂", "</think>")
    gbnf = AnswerRule("c", "choice", choices).gbnf
    params = SamplingParams(40, temperature=20.0, top_k=0, top_p=1.0, min_p=0.0, grammar=gbnf)
    found = {llm.generate("x", replace(params, seed=seed)).text for seed in range(30)}
    assert len(found) > 1
    assert found <= {*choices}


def test_rule_is_written_once_for_a_request_and_kept_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = answer_rules.pattern_grammar
    monkeypatch.setattr(answer_rules, "pattern_grammar", lambda *given: written.append(given[0]) or write(*given))
    rules = [AnswerRule("regex", "regex", "kept+") for _ in range(2)]
    assert len({rule.gbnf for rule in rules for _ in range(3)}) == 1
    assert len(written) == 2
    with pytest.raises(InvalidRequestError, match="ebnf is longer than"):
        _ = AnswerRule("ebnf", "grammar", "a" * (MAX_TEXT + 1)).gbnf


@pytest.mark.parametrize("value", ["(?=a)b", "a{3,2}", "(", r"(a)\1", "a" * (MAX_TEXT + 1), "(" * 3000])
def test_regex_that_no_grammar_holds_is_refused_by_its_field(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="guided_regex") as refused:
        _ = AnswerRule("guided_regex", "regex", value).gbnf
    assert refused.value.param == "guided_regex"
    assert len(str(refused.value)) < 500


def test_regex_whose_grammar_is_too_large_is_refused_without_naming_gbnf(llm: LLM) -> None:
    rule = AnswerRule("guided_regex", "regex", "(a{1,1000}){1,1000}")
    with pytest.raises(InvalidRequestError, match=r"guided_regex has a grammar that is refused: .*repetitions"):
        prepare_request(llm, GenerateRequest("a", SamplingParams(), answer_rule=rule))


def test_grammar_that_is_not_gbnf_is_refused_by_its_field(llm: LLM) -> None:
    for prompt in ("a", Chat(HELLO)):
        for value in ('start: "a"', "root ::= (", "?start: x"):
            rule = AnswerRule("guided_grammar", "grammar", value)
            with pytest.raises(InvalidRequestError, match="guided_grammar must be GBNF") as refused:
                prepare_request(llm, GenerateRequest(prompt, SamplingParams(), answer_rule=rule))
            assert refused.value.param == "guided_grammar"
