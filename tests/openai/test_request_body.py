"""Tests of request bodies in OpenAI's form: the meaning of each field, and refused fields."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pymtp import InvalidRequestError, SamplingParams
from pymtp.chat import Chat, NamedTool, ParsedOutput, ToolCall
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import (
    CHAT,
    TEXT,
    excludes_reasoning,
    read_generate_request,
    read_params,
    text_prompts,
    unknown_fields,
)
from pymtp.openai.response_body import response_message

HELLO = [{"role": "user", "content": "Hello."}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def chat(**body: Any) -> GenerateRequest:
    return read_generate_request(CHAT, {"messages": HELLO} | body)


def text(**body: Any) -> GenerateRequest:
    return read_generate_request(TEXT, {"prompt": "a"} | body)


def variables(request: GenerateRequest) -> Any:
    assert isinstance(request.prompt, Chat)
    return request.prompt.chat_template_kwargs


def test_missing_fields_get_openais_defaults() -> None:
    params = chat().params
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (1.0, 1.0, 0, 0.0, None)
    assert params.max_tokens is None
    assert text().params.max_tokens == 16
    assert chat(max_completion_tokens=5, stop="x", temperature=None).params == SamplingParams(
        5, 1.0, 0, 1.0, 0.0, None, "x"
    )
    assert chat(tools=None, stream_options=None) == chat()


def test_logprobs_are_read_in_the_forms_of_chats_and_of_texts() -> None:
    assert text(logprobs=3).params.logprobs == 3
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).params.logprobs == 4
    assert chat(logprobs=False, top_logprobs=4).params.logprobs is None
    assert text(logprobs=True).params.logprobs == text(logprobs=0).params.logprobs == 0
    assert text(logprobs=True, top_logprobs=4).params.logprobs == 4
    assert text(logprobs=False).params.logprobs is None


def test_prompt_that_a_text_repeats_has_log_probabilities_too() -> None:
    assert text(logprobs=3, echo=True).params.prompt_logprobs == 3
    assert text(logprobs=3).params.prompt_logprobs is None
    assert read_params(CHAT, {"echo": True, "logprobs": True}, {}).prompt_logprobs is None


def test_field_names_of_llama_cpps_server_are_accepted() -> None:
    params = chat(repeat_penalty=1.2, repeat_last_n=-1, top_k=-1, min_p=0.1, ignore_eos=True).params
    assert (params.repetition_penalty, params.penalty_last_n, params.top_k, params.min_p) == (1.2, -1, 0, 0.1)
    assert params.ignore_eos
    assert chat(grammar='root ::= "a"').params.grammar == 'root ::= "a"'
    assert chat(json_schema={"type": "integer"}).schema == {"type": "integer"}
    assert chat(response_format={"type": "json_object", "schema": {"type": "array"}}).schema == {"type": "array"}


SAMPLERS: dict[str, Any] = {
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ("\n", "Anna:"),
    "top_n_sigma": 1.5,
    "typical_p": 0.9,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynatemp_range": 0.4,
    "dynatemp_exponent": 1.2,
    "samplers": ("dry", "min_p", "xtc", "temperature"),
}


def test_samplers_are_read_by_llama_cpps_names() -> None:
    for request in (chat, text):
        params = request(**SAMPLERS).params
        assert {name: getattr(params, name) for name in SAMPLERS} == SAMPLERS
    assert unknown_fields(CHAT, SAMPLERS) == []
    off = {"dry_multiplier": 0, "top_n_sigma": -1, "typical_p": 1, "xtc_probability": 0, "dynatemp_range": -1}
    assert chat(**off) == chat()
    assert 0 < chat(typical_p=0).params.typical_p < 1e-6


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        ({"typ_p": 0.9}, "typical_p", 0.9),
        ({"typical": 0.9}, "typical_p", 0.9),
        ({"nsigma": 1.5}, "top_n_sigma", 1.5),
        ({"dry_range": 99}, "dry_penalty_last_n", 99),
        ({"dry_sequence_breakers": '"\\n", "*"'}, "dry_sequence_breakers", ("\n", "*")),
        ({"samplers": "kt"}, "samplers", ("top_k", "temperature")),
        ({"samplers": ["tfs_z", "top_k", "adaptive_p", "typical_p"]}, "samplers", ("top_k", "typ_p")),
    ],
)
def test_samplers_are_read_by_the_names_of_other_servers(body: dict[str, Any], name: str, value: object) -> None:
    assert getattr(chat(**body).params, name) == value
    assert unknown_fields(CHAT, body) == []


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"typ_p": 2}, "typ_p"),
        ({"xtc_threshold": -1}, "xtc_threshold"),
        ({"samplers": ["mirostat"]}, "samplers"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_range": "many"}, "dry_range"),
        ({"mirostat": 1}, "mirostat"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"min_keep": 3}, "min_keep"),
    ],
)
def test_invalid_or_unsupported_sampler_is_refused_by_its_name_in_the_body(body: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat(**body)
    assert refused.value.param == name


def test_switches_of_samplers_that_are_off_are_accepted() -> None:
    off = {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0, "adaptive_decay": 0.9}
    assert chat(**off, min_keep=0) == chat()
    assert unknown_fields(CHAT, off) == []


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(7, 7), (7.0, 7), (0, 0), (-1, None), (-5, 2**64 - 5), (2**64 + 3, 3), (10**30, 10**30 % 2**64)],
)
def test_seed_of_minus_one_means_any_seed(seed: int, expected: int | None) -> None:
    assert chat(seed=seed).params.seed == expected


def test_logit_bias_of_false_forbids_a_token() -> None:
    assert dict(chat(logit_bias={"5": False, "7": 1.5}).params.logit_bias) == {5: -math.inf, 7: 1.5}


def test_logit_bias_may_be_a_list_of_pairs() -> None:
    assert dict(chat(logit_bias=[[5, False], [7, 1.5]]).params.logit_bias) == {5: -math.inf, 7: 1.5}
    assert chat(logit_bias=[]) == chat(logit_bias={}) == chat()
    for wrong in ([["a", 1]], [[5]], [[5, 1, 2]], [5], "5", [[5, True]], [[True, 1]], [[5, "1"]], {"5": "1"}):
        with pytest.raises(InvalidRequestError, match="logit_bias must map") as refused:
            chat(logit_bias=wrong)
        assert refused.value.param == "logit_bias"


def test_max_tokens_has_several_names_and_minus_one_is_no_limit() -> None:
    for request in (chat, text):
        for name in ("max_tokens", "n_predict", "max_completion_tokens"):
            assert request(**{name: 5}).params.max_tokens == 5
            assert request(**{name: 5.0}).params.max_tokens == 5
            assert request(**{name: -1}).params.max_tokens is None
            zero = 0 if (request, name) != (text, "max_tokens") else 1.5  # 0 tokens of a text: the prompt alone
            for wrong in (zero, -3, 1.5, "5", True):
                with pytest.raises(InvalidRequestError, match=r"max_tokens=.* must be a whole number") as refused:
                    request(**{name: wrong})
                assert refused.value.param == name
        assert request(n_predict=-2).params.max_tokens is None
        assert request(n_predict=1, max_tokens=2, max_completion_tokens=3).params.max_tokens == 3
        assert request(n_predict=1, max_tokens=2).params.max_tokens == 2


def test_stop_token_ids_are_read_into_the_params() -> None:
    assert chat(stop_token_ids=[1, 2]).params.stop_token_ids == text(stop_token_ids=[1, 2]).params.stop_token_ids
    assert chat(stop_token_ids=[1, 2]).params.stop_token_ids == (1, 2)
    assert chat(stop_token_ids=[]) == chat(stop_token_ids=None) == chat()
    for wrong in ([-1], ["a"], [1.5], [True]):
        with pytest.raises(InvalidRequestError, match=r"stop_token_ids=.* must be token ids"):
            chat(stop_token_ids=wrong)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    written, whole = ({"n": n, "top_k": n, "repeat_last_n": n, "draft_tokens": n, "best_of": n} for n in (2.0, 2))
    assert chat(**written) == chat(**whole)
    with pytest.raises(InvalidRequestError, match=r"n=1\.5 must be a whole number"):
        chat(n=1.5)


def test_empty_stop_string_is_ignored() -> None:
    assert chat(stop="").params.stop == ()
    assert chat(stop=["", "b"]).params.stop == ("b",)


def test_empty_grammar_is_no_grammar() -> None:
    for read in (chat, text):
        assert read(grammar="").params.grammar is None
        assert read(grammar="", guided_regex="a").answer_rule is not None


def test_top_p_of_zero_keeps_the_likeliest_token() -> None:
    assert 0 < chat(top_p=0).params.top_p < 1e-6


def test_schema_is_read_into_the_request_of_a_chat_and_into_the_params_of_a_text() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    assert chat(response_format=wanted).schema == {"type": "integer"}
    assert chat(response_format=wanted).params.json_schema is None
    assert text(response_format=wanted).params.json_schema == '{"type": "integer"}'
    assert chat(response_format={"type": "json_object"}).schema == {"type": "object"}
    assert chat(response_format={"type": "text"}).schema is None


def test_strict_may_be_a_text() -> None:
    for given, strict in (("true", True), ("False", False), (True, True)):
        tool = {"type": "function", "function": {"name": "look", "strict": given}}
        assert chat(tools=[tool]).tools[0].strict is strict
        assert tool["function"] == {"name": "look", "strict": given}


def test_tool_choice_is_read_in_all_its_forms() -> None:
    assert [tool.name for tool in chat(tools=TOOLS).tools] == ["look"]
    assert chat(tools=TOOLS).tool_choice == "auto"
    assert chat(tools=TOOLS, tool_choice="required").tool_choice == "required"
    named = {"type": "function", "function": {"name": "look"}}
    assert chat(tools=TOOLS, tool_choice=named).tool_choice == NamedTool("look")
    assert chat(tools=TOOLS).parallel_tool_calls
    assert not chat(tools=TOOLS, parallel_tool_calls=False).parallel_tool_calls


def test_template_gets_the_tools_unless_tool_choice_is_none() -> None:
    seen, hidden = chat(tools=TOOLS).prompt, chat(tools=TOOLS, tool_choice="none").prompt
    assert isinstance(seen, Chat)
    assert isinstance(hidden, Chat)
    assert (seen.tools, hidden.tools) == (TOOLS, None)


def test_reasoning_effort_becomes_a_template_variable_that_chat_template_kwargs_override() -> None:
    assert variables(chat(reasoning_effort="low")) == {"reasoning_effort": "low", "enable_thinking": True}
    assert variables(chat(reasoning_effort="none"))["enable_thinking"] is False
    assert variables(chat(reasoning_effort="default")) == variables(chat(reasoning={"effort": "auto"})) == {}
    own = chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True, "x": 1})
    assert variables(own) == {"reasoning_effort": "none", "enable_thinking": True, "x": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"tool_choice": "required"}, "there are no tools to call"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "none of the tools: look",
        ),
        ({"functions": [{}]}, "functions: not supported"),
        ({"modalities": ["audio"]}, "modalities: not supported"),
        ({"best_of": 2}, "best_of: not supported"),
        ({"function_call": {"name": "f"}}, "function_call: not supported"),
        ({"min_tokens": 1}, "min_tokens: not supported"),
        ({"bad_words": ["a"]}, "bad_words: not supported"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output: not supported"),
        ({"skip_special_tokens": False}, "skip_special_tokens: not supported"),
        ({"prompt_logprobs": 0}, "prompt_logprobs: not supported"),
        ({"structural_tag": "{}"}, "structural_tag: not supported"),
        ({"length_penalty": 2}, "length_penalty: not supported"),
        ({"echo": True}, "echo: not supported"),
        ({"add_generation_prompt": False}, "add_generation_prompt: not supported"),
        ({"mirostat": 2}, "mirostat: not supported"),
        ({"logit_bias": {"a": 1}}, "logit_bias must map"),
        ({"response_format": {"type": "xml"}}, "response_format must be"),
    ],
)
def test_unsupported_fields_are_refused(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        chat(**body)


def test_unsupported_fields_with_neutral_values_are_accepted() -> None:
    nothing = {"mirostat": 0, "typical_p": 1.0, "best_of": 1, "modalities": ["text"], "functions": []}
    nothing |= {"function_call": "auto", "min_tokens": 0, "bad_words": [], "skip_special_tokens": True, "echo": False}
    nothing |= {"add_generation_prompt": True, "length_penalty": 1.0, "include_stop_str_in_output": False}
    nothing |= {"guided_decoding_backend": "xgrammar", "spaces_between_special_tokens": True}
    assert chat(**nothing) == chat()
    assert unknown_fields(CHAT, nothing | {"user": "me", "max_token": 3, "other": None}) == ["max_token"]


def test_text_prompts_returns_a_list_for_one_prompt_and_for_several() -> None:
    assert text_prompts({"prompt": "a"}) == ["a"]
    assert text_prompts({"prompt": [1, 2]}) == [[1, 2]]
    assert text_prompts({"prompt": ["a", "b"]}) == ["a", "b"]
    assert text_prompts({"prompt": [[1], [2, 3]]}) == [[1], [2, 3]]


def test_message_contains_an_unfinished_call_with_its_arguments_so_far() -> None:
    found = response_message(ParsedOutput(unfinished_call=ToolCall("look", '{"city": "Par')))
    assert found["content"] is None
    assert [call["function"] for call in found["tool_calls"]] == [{"name": "look", "arguments": '{"city": "Par'}]


SURROGATE, REPLACED = "ls \ud83d", "ls \ufffd"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prompt": SURROGATE, "stop": [SURROGATE]}, {"prompt": REPLACED, "stop": [REPLACED]}),
        (
            {"prompt": "a", "stop": SURROGATE, "grammar": SURROGATE},
            {"prompt": "a", "stop": REPLACED, "grammar": REPLACED},
        ),
        (
            {"prompt": "a", "json_schema": {"enum": [{SURROGATE: SURROGATE}]}},
            {"prompt": "a", "json_schema": {"enum": [{REPLACED: REPLACED}]}},
        ),
    ],
)
def test_surrogates_are_replaced_in_all_fields(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert text(**given) == text(**expected)


def test_surrogates_are_replaced_in_tools_and_variables_of_a_chat() -> None:
    def request(surrogate: str) -> GenerateRequest:
        function = {
            "name": "f",
            "description": surrogate,
            "parameters": {"properties": {surrogate: {"enum": [surrogate, 1]}}},
        }
        return chat(
            messages=HELLO,
            tools=[{"type": "function", "function": function}],
            chat_template_kwargs={"x": surrogate},
        )

    assert request(SURROGATE) == request(REPLACED)


def test_body_that_is_nested_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deep"):
        chat(chat_template_kwargs={"x": deep})


def test_template_variables_may_be_fields_of_the_body() -> None:
    assert variables(chat(enable_thinking=False, preserve_thinking=True)) == {
        "enable_thinking": False,
        "preserve_thinking": True,
    }
    assert variables(chat(thinking={"type": "disabled"})) == {"enable_thinking": False}
    assert variables(chat(thinking={"type": "enabled", "budget_tokens": 9})) == {"enable_thinking": True}


def test_text_of_a_boolean_is_no_true_template_variable() -> None:
    for text_of, value in (("false", False), ("False", False), ("true", True)):
        for name in ("enable_thinking", "preserve_thinking"):
            assert variables(chat(**{name: text_of})) == {name: value}
            assert variables(chat(chat_template_kwargs={name: text_of, "x": "false"})) == {name: value, "x": "false"}


def test_reasoning_is_read_in_openrouters_form() -> None:
    assert variables(chat(reasoning={"effort": "low"})) == {"reasoning_effort": "low", "enable_thinking": True}
    assert variables(chat(reasoning={"effort": "none"}))["enable_thinking"] is False
    assert variables(chat(reasoning={"enabled": False})) == {"enable_thinking": False}
    assert variables(chat(reasoning={"enabled": True})) == {"enable_thinking": True}
    assert variables(chat(reasoning={})) == variables(chat(reasoning={"exclude": True})) == {}
    limited = chat(reasoning={"max_tokens": 7})
    assert (variables(limited), limited.params.thinking_budget) == ({"enable_thinking": True}, 7)
    assert chat(reasoning={"max_tokens": 7}, thinking_budget=5).params.thinking_budget == 5
    for wrong in ("low", 5, ["low"]):
        with pytest.raises(InvalidRequestError, match="reasoning must be an object") as found:
            chat(reasoning=wrong)
        assert found.value.param == "reasoning"
    with pytest.raises(InvalidRequestError, match="thinking_budget") as found:
        chat(reasoning={"max_tokens": -2})
    assert found.value.param == "reasoning.max_tokens"


@pytest.mark.parametrize(
    ("body", "excluded"),
    [
        ({}, False),
        ({"reasoning": {"exclude": True}}, True),
        ({"reasoning": {"exclude": False}}, False),
        ({"include_reasoning": False}, True),
        ({"include_reasoning": True}, False),
        ({"reasoning_format": "hidden"}, True),
        ({"reasoning_format": "parsed"}, False),
    ],
)
def test_answer_may_leave_the_reasoning_out(body: dict[str, Any], excluded: bool) -> None:
    assert excludes_reasoning(body) is excluded
    assert chat(**body).separate_reasoning
    assert not chat(reasoning_format="raw").separate_reasoning


def test_each_field_that_asks_for_thinking_overrides_the_weaker_fields() -> None:
    ways: list[dict[str, Any]] = [
        {"reasoning_effort": "none"},
        {"reasoning": {"enabled": True}},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    for n in range(1, len(ways) + 1):
        body = {name: value for way in ways[:n] for name, value in way.items()}
        assert variables(chat(**body))["enable_thinking"] is (n % 2 == 0)
    ways = [
        {"reasoning_effort": "none"},
        {"thinking": {"type": "enabled"}},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ]
    for n in range(1, len(ways) + 1):
        body = {name: value for way in ways[:n] for name, value in way.items()}
        assert variables(chat(**body))["enable_thinking"] is (n % 2 == 0)


@pytest.mark.parametrize(
    "body", [{"enable_thinking": "no"}, {"preserve_thinking": 1}, {"thinking": True}, {"thinking": {}}]
)
def test_bad_template_variable_is_refused_by_name(body: dict[str, Any]) -> None:
    (name,) = body
    with pytest.raises(InvalidRequestError, match=name) as refused:
        chat(**body)
    assert refused.value.param == name


@pytest.mark.parametrize(
    "name", ["thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"]
)
def test_thinking_budget_has_several_names(name: str) -> None:
    for request in (chat, text):
        assert request(**{name: 5}).params.thinking_budget == 5
        assert request(**{name: 0}).params.thinking_budget == 0
        assert request(**{name: -1}).params.thinking_budget is None
        for wrong in (-2, 1.5, "5", True, [5]):
            with pytest.raises(InvalidRequestError, match="must be a whole number, 0 or more") as found:
                request(**{name: wrong})
            assert found.value.param == name
    assert unknown_fields(CHAT, {"messages": [], name: 5, "thinking": {}}) == []


def test_thinking_is_read_in_anthropics_form() -> None:
    assert variables(chat(thinking={"type": "disabled"})) == {"enable_thinking": False}
    on = chat(thinking={"type": "enabled", "budget_tokens": 5})
    assert variables(on) == {"enable_thinking": True}
    assert on.params.thinking_budget == 5
    assert variables(chat(thinking={"type": "enabled"}, chat_template_kwargs={"enable_thinking": False})) == {
        "enable_thinking": False
    }
    for wrong in ("on", 5, ["enabled"]):
        with pytest.raises(InvalidRequestError, match="thinking must be an object") as found:
            chat(thinking=wrong)
        assert found.value.param == "thinking"
