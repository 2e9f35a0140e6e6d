"""Claims about bodies of OpenAI's form: what each field asks for, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pymtp import InvalidRequestError, SamplingParams
from pymtp.chat import Answer, Call, Chat, NamedTool
from pymtp.openai.generate_request import Ask
from pymtp.openai.requests import CHAT, TEXT, read_ask, text_prompts, unknown_fields
from pymtp.openai.responses import message

HELLO = [{"role": "user", "content": "Hello."}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def chat(**body: Any) -> Ask:
    return read_ask(CHAT, {"messages": HELLO} | body)


def text(**body: Any) -> Ask:
    return read_ask(TEXT, {"prompt": "a"} | body)


def variables(ask: Ask) -> Any:
    assert isinstance(ask.prompt, Chat)
    return ask.prompt.chat_template_kwargs


def test_what_openai_leaves_open_has_openais_defaults() -> None:
    params = chat().params
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (1.0, 1.0, 0, 0.0, None)
    assert params.max_tokens is None
    assert text().params.max_tokens == 16
    assert chat(max_completion_tokens=5, stop="x", temperature=None).params == SamplingParams(
        5, 1.0, 0, 1.0, 0.0, None, "x"
    )
    assert chat(tools=None, stream_options=None) == chat()


def test_log_probabilities_are_asked_for_in_either_form() -> None:
    assert text(logprobs=3).params.logprobs == 3
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).params.logprobs == 4
    assert chat(logprobs=False, top_logprobs=4).params.logprobs is None


def test_names_of_llama_cpps_server_mean_what_they_mean_there() -> None:
    params = chat(repeat_penalty=1.2, repeat_last_n=-1, top_k=-1, min_p=0.1, ignore_eos=True).params
    assert (params.repetition_penalty, params.penalty_last_n, params.top_k, params.min_p) == (1.2, -1, 0, 0.1)
    assert params.ignore_eos
    assert chat(grammar='root ::= "a"').params.grammar == 'root ::= "a"'
    assert chat(json_schema={"type": "integer"}).schema == {"type": "integer"}
    assert chat(response_format={"type": "json_object", "schema": {"type": "array"}}).schema == {"type": "array"}


@pytest.mark.parametrize(("seed", "taken"), [(7, 7), (0, 0), (-1, None), (-5, 2**64 - 5), (2**64 + 3, 3)])
def test_a_seed_of_minus_one_is_any(seed: int, taken: int | None) -> None:
    assert chat(seed=seed).params.seed == taken


def test_a_bias_of_false_forbids_a_token() -> None:
    assert dict(chat(logit_bias={"5": False, "7": 1.5}).params.logit_bias) == {5: -math.inf, 7: 1.5}


def test_an_empty_stop_string_stops_nothing() -> None:
    assert chat(stop="").params.stop == ()
    assert chat(stop=["", "b"]).params.stop == ("b",)


def test_a_top_p_of_zero_keeps_the_likeliest_token() -> None:
    assert 0 < chat(top_p=0).params.top_p < 1e-6


def test_a_schema_of_a_chat_is_left_to_the_answers_format_and_that_of_a_text_is_the_grammar() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    assert chat(response_format=wanted).schema == {"type": "integer"}
    assert chat(response_format=wanted).params.json_schema is None
    assert text(response_format=wanted).params.json_schema == '{"type": "integer"}'
    assert chat(response_format={"type": "json_object"}).schema == {"type": "object"}
    assert chat(response_format={"type": "text"}).schema is None


def test_a_choice_of_tools_is_read() -> None:
    assert [tool.name for tool in chat(tools=TOOLS).tools] == ["look"]
    assert chat(tools=TOOLS).tool_choice == "auto"
    assert chat(tools=TOOLS, tool_choice="required").tool_choice == "required"
    named = {"type": "function", "function": {"name": "look"}}
    assert chat(tools=TOOLS, tool_choice=named).tool_choice == NamedTool("look")
    assert chat(tools=TOOLS).parallel
    assert not chat(tools=TOOLS, parallel_tool_calls=False).parallel


def test_the_template_sees_the_tools_unless_none_may_be_called() -> None:
    seen, hidden = chat(tools=TOOLS).prompt, chat(tools=TOOLS, tool_choice="none").prompt
    assert isinstance(seen, Chat)
    assert isinstance(hidden, Chat)
    assert (seen.tools, hidden.tools) == (TOOLS, None)


def test_the_effort_of_reasoning_goes_to_the_template_and_the_clients_own_variables_win() -> None:
    assert variables(chat(reasoning_effort="low")) == {"reasoning_effort": "low", "enable_thinking": True}
    assert variables(chat(reasoning_effort="none"))["enable_thinking"] is False
    own = chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True, "x": 1})
    assert variables(own) == {"reasoning_effort": "none", "enable_thinking": True, "x": 1}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"tool_choice": "required"}, "there are no tools to call"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "none of the tools: look",
        ),
        ({"functions": [{}]}, "functions: not supported"),
        ({"modalities": ["audio"]}, "modalities: not supported"),
        ({"best_of": 2}, "best_of: not supported"),
        ({"mirostat": 2}, "mirostat: not supported"),
        ({"logit_bias": {"a": 1}}, "logit_bias must map"),
        ({"response_format": {"type": "xml"}}, "response_format must be"),
    ],
)
def test_what_would_change_the_answer_and_cannot_be_done_is_refused(body: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        chat(**body)


def test_what_asks_for_nothing_is_no_reason_to_refuse() -> None:
    nothing = {"mirostat": 0, "typical_p": 1.0, "best_of": 1, "modalities": ["text"], "suffix": "", "functions": []}
    assert chat(**nothing) == chat()
    assert unknown_fields(CHAT, nothing | {"user": "me", "max_token": 3, "other": None}) == ["max_token"]


def test_several_prompts_are_told_from_one() -> None:
    assert text_prompts({"prompt": "a"}) == ["a"]
    assert text_prompts({"prompt": [1, 2]}) == [[1, 2]]
    assert text_prompts({"prompt": ["a", "b"]}) == ["a", "b"]
    assert text_prompts({"prompt": [[1], [2, 3]]}) == [[1], [2, 3]]


def test_a_call_that_was_cut_short_comes_with_the_arguments_so_far_as_in_a_stream() -> None:
    said = message(Answer(unfinished=Call("look", '{"city": "Par')))
    assert said["content"] is None
    assert [call["function"] for call in said["tool_calls"]] == [{"name": "look", "arguments": '{"city": "Par'}]


HALF, WHOLE = "ls \ud83d", "ls \ufffd"


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ({"prompt": HALF, "stop": [HALF]}, {"prompt": WHOLE, "stop": [WHOLE]}),
        ({"prompt": "a", "stop": HALF, "grammar": HALF}, {"prompt": "a", "stop": WHOLE, "grammar": WHOLE}),
        (
            {"prompt": "a", "json_schema": {"enum": [{HALF: HALF}]}},
            {"prompt": "a", "json_schema": {"enum": [{WHOLE: WHOLE}]}},
        ),
    ],
)
def test_half_a_character_is_replaced_wherever_it_is_read(given: dict[str, Any], whole: dict[str, Any]) -> None:
    assert text(**given) == text(**whole)


def test_half_a_character_is_replaced_in_tools_and_variables_of_a_chat() -> None:
    def ask(half: str) -> Ask:
        function = {"name": "f", "description": half, "parameters": {"properties": {half: {"enum": [half, 1]}}}}
        return chat(
            messages=[message], tools=[{"type": "function", "function": function}], chat_template_kwargs={"x": half}
        )

    assert ask(HALF) == ask(WHOLE)


def test_a_body_that_is_nested_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deep"):
        chat(chat_template_kwargs={"x": deep})


def test_variables_may_stand_beside_the_messages() -> None:
    assert variables(chat(enable_thinking=False, preserve_thinking=True)) == {
        "enable_thinking": False,
        "preserve_thinking": True,
    }
    assert variables(chat(thinking={"type": "disabled"})) == {"enable_thinking": False}
    assert variables(chat(thinking={"type": "enabled", "budget_tokens": 9})) == {"enable_thinking": True}


def test_of_several_ways_to_ask_for_thinking_the_plainest_wins() -> None:
    ways: list[dict[str, Any]] = [
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
def test_what_is_no_variable_is_refused_by_name(body: dict[str, Any]) -> None:
    (name,) = body
    with pytest.raises(InvalidRequestError, match=name) as refused:
        chat(**body)
    assert refused.value.param == name


@pytest.mark.parametrize(
    "name", ["thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"]
)
def test_a_budget_of_thinking_has_several_names(name: str) -> None:
    for ask in (chat, text):
        assert ask(**{name: 5}).params.thinking_budget == 5
        assert ask(**{name: 0}).params.thinking_budget == 0
        assert ask(**{name: -1}).params.thinking_budget is None
        for wrong in (-2, 1.5, "5", True, [5]):
            with pytest.raises(InvalidRequestError, match="must be a whole number, 0 or more") as found:
                ask(**{name: wrong})
            assert found.value.param == name
    assert unknown_fields(CHAT, {"messages": [], name: 5, "thinking": {}}) == []


def test_thinking_is_read_as_anthropic_has_it() -> None:
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
