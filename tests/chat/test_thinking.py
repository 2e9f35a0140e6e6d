"""Tests of thinking: where it begins and ends, its budget, and stop strings beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers.chat_templates import DROPS_THINKING, OPENS_NOTHING
from makers.gguf_variants import rewrite

from pymtp import LLM, InvalidRequestError, SamplingParams
from pymtp.chat import Chat, OutputFormat, Tool
from pymtp.engine.text import RequestText, ThinkingPlan, ThinkingTracker
from pymtp.openai.generate_request import GenerateRequest, parse_outputs, prepare_request

OPEN = "def f(x):\n<think>\n"
SCHEMA = {
    "type": "object",
    "properties": {"v": {"type": "integer", "minimum": 0}},
    "required": ["v"],
    "additionalProperties": False,
}
TOOL = Tool("look", parameters={"type": "object", "properties": {"at": {"type": "boolean"}}, "required": ["at"]})


class ByteVocabulary:
    """A vocabulary of single bytes; token 0 ends generation."""

    def ends_generation(self, token: int) -> bool:
        return token == 0

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(places) if end > start]


THOUGHTS = st.text("ab<>/think_ \nlo", max_size=30).filter(lambda text: "</think>" not in text)


@given(THOUGHTS, st.text("ab<", max_size=5), st.lists(st.integers(0, 99), max_size=20), st.booleans())
def test_tracker_counts_tokens_that_begin_before_the_end_of_thinking(
    thought: str, answer: str, cuts: list[int], opens: bool
) -> None:
    head = "<think>" if opens else ""
    tokens = [*split_at(head.encode(), cuts), *split_at(f"{thought}</think>{answer}".encode(), cuts)]
    text = ThinkingTracker(ThinkingPlan(begun=not opens))
    at, counted = 0, 0
    for data in tokens:
        counted += len(head) <= at < len(head) + len(thought)
        at += len(data)
        n = text.push(data)
        ends = len(head) + len(thought) + len("</think>")
        if at - len(data) < ends <= at:
            assert n == len(data) - (at - ends)
            assert not text.within
    assert text.tokens == counted
    assert not text.closing


def test_tracker_ignores_think_tags_after_other_text() -> None:
    text = ThinkingTracker(ThinkingPlan(budget=3))
    for data in (b" \n", b"<th", b"ing>", b"<think>", b"so"):
        text.push(data)
    assert not text.within
    assert (text.tokens, text.closing) == (0, False)


def test_tool_call_ends_thinking_where_there_are_tools() -> None:
    each = [b"so", b"<tool_call>", b"\n ", b"<func", b"tion=", b"look", b">"]
    for calls, n, closes in ((True, 1, False), (False, 7, True)):
        text = ThinkingTracker(ThinkingPlan(begun=True, call_ends=calls, budget=7, closing=(1,)))
        for data in each:
            text.push(data)
        assert (text.tokens, text.closing) == (n, closes)


def visible_text(text: str, stop: str, *, begun: bool = True, separate: bool = True) -> str:
    plan = ThinkingPlan(begun=begun, no_stop_in_thinking=separate)
    request_text = RequestText(ByteVocabulary(), SamplingParams(stop=stop), plan)  # type: ignore[arg-type]
    for token in text.encode():
        if request_text.add_token(token):
            break
    request_text.flush()
    return request_text.take()


@pytest.mark.parametrize(
    ("text", "stop", "right"),
    [
        ("I STOP think</think>\n\nanswer STOP now", "STOP", "I STOP think</think>\n\nanswer "),
        ("a</think>b", "</think>", "a</think>b"),
        ("a</think>\n\nb\n\nc", "\n\n", "a</think>\n\nb"),  # the newlines after the thinking are no part of the answer
        ("a</think>\n\nb\nc", "\n", "a</think>\n\nb"),
        ("a</think>\n\nSTOP", "STOP", "a</think>\n\n"),
        ("a</think>xb", "k>x", "a</think>xb"),  # the stop string spans the end of the thinking
        ("a</think>xb", "a</think>x", "a</think>xb"),
        ("a</think>xb</think>x", "k>x", "a</think>xb</thin"),
        ("aé STOP", "STOP", "aé STOP"),  # the thinking is never closed
    ],
)
def test_stop_strings_do_not_match_within_separate_thinking(text: str, stop: str, right: str) -> None:
    assert visible_text(text, stop) == right
    assert visible_text("<think>" + text, stop, begun=False) == "<think>" + right
    assert visible_text(text, stop, separate=False) == text.partition(stop)[0]


def test_stop_strings_match_in_a_text_without_thinking() -> None:
    assert visible_text("\n\nno", "\n\n", begun=False) == ""
    assert visible_text("<thing> STOP", "STOP", begun=False) == "<thing> "


@pytest.mark.parametrize("budget", [-1, 2.5, True, "5", float("inf")])
def test_thinking_budget_must_be_a_whole_number(budget: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"thinking_budget=.* must be a whole number, 0 or more, or None"):
        SamplingParams(thinking_budget=budget)


@pytest.mark.parametrize(
    "end", [None, "a</think>", "<think>", "<tool_call>", "<function=a>", "\ud800", "\0", "x" * 1001]
)
def test_thinking_end_must_be_text_without_tags(end: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"thinking_end=.* must be text of at most 1000 characters"):
        SamplingParams(thinking_end=end)


def test_thinking_budget_beyond_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="thinking_budget=1025 is beyond the context of n_ctx=1024"):
        llm.generate(OPEN, SamplingParams(4, thinking_budget=1025))
    assert llm.generate(OPEN, SamplingParams(4, thinking_budget=1024)).stats.thinking_tokens == 4


@pytest.fixture(scope="module")
def llms() -> Any:
    from conftest import make_llm

    made = [make_llm(draft_tokens=n, n_seq_max=2) for n in (0, 3, 7)]
    yield made
    for llm in made:
        llm.close()


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"json_schema": SCHEMA},
        {"thinking_end": "\nEnough.\n", "frequency_penalty": 0.3, "logprobs": 1},
        {"grammar": 'root ::= [^<]* "</think>" "\\n\\nyes"'},
    ],
)
def test_output_with_a_thinking_budget_is_the_same_with_and_without_drafts(
    llms: list[LLM], temperature: float, more: dict[str, Any]
) -> None:
    params = [SamplingParams(40, temperature, seed=i, thinking_budget=n, **more) for i, n in enumerate((0, 1, 4, 13))]
    plain, *others = [llm.generate([OPEN] * len(params), params) for llm in llms]
    for i, done in enumerate(plain):
        n = params[i].thinking_budget or 0
        assert done.stats.thinking_tokens <= n
        thought, tag, answer = done.text.partition("</think>")
        if tag and thought.endswith(more.get("thinking_end", "")):
            assert len(done.token_ids) > n
        if "json_schema" in more and done.finish_reason == "stop":
            assert set(json.loads(answer)) == {"v"}
        if "grammar" in more:
            assert answer == "\n\nyes"
        for other in others:
            assert (other[i].token_ids, other[i].text) == (done.token_ids, done.text)
            assert other[i].stats.thinking_tokens == done.stats.thinking_tokens
            assert other[i].finish_reason == done.finish_reason


def test_log_probabilities_of_forced_tokens_are_those_of_the_model(llm: LLM) -> None:
    """Compare with requests in which a logit bias makes the model sample the same tokens."""
    params = SamplingParams(12, thinking_budget=3, thinking_end="no", logprobs=5)
    done = llm.generate(OPEN, params)
    assert done.logprobs is not None
    assert [one.token_id for one in done.logprobs] == done.token_ids
    prompt = llm.model.tokenize(OPEN)
    for i, (token, found) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
        biased = SamplingParams(1, logprobs=5, logit_bias={token: 1e30})
        (right,) = llm.generate([*prompt, *done.token_ids[:i]], biased).logprobs or ()
        assert right.token_id == token
        assert found.logprob == pytest.approx(right.logprob, abs=1e-5)
        assert [each for each, _ in found.top] == [each for each, _ in right.top]


def test_output_with_thinking_budget_0_and_log_probabilities_begins_with_the_end_tag(llm: LLM) -> None:
    plain = llm.generate(OPEN, SamplingParams(12, 0.7, thinking_budget=0, ignore_eos=True))
    done = llm.generate(OPEN, SamplingParams(12, 0.7, thinking_budget=0, ignore_eos=True, logprobs=0))
    assert plain.text.startswith("</think>\n\n")
    assert plain.stats.thinking_tokens == 0
    assert done.token_ids == plain.token_ids
    assert done.logprobs is not None
    assert len(done.logprobs) == 12
    prompt = llm.model.tokenize(OPEN)
    for i, (token, found) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
        biased = SamplingParams(1, logprobs=0, logit_bias={token: 1e30})  # makes the model sample the same token
        (right,) = llm.generate([*prompt, *done.token_ids[:i]], biased).logprobs or ()
        assert found.logprob == pytest.approx(right.logprob, abs=1e-5)
    assert min(one.logprob for one in done.logprobs) < -1e-3


def test_preempted_stream_continues_its_grammar_after_the_thinking(new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(draft_tokens=0)
    params = SamplingParams(40, 1.0, seed=4, thinking_budget=2, json_schema=SCHEMA)
    right = llm.generate(OPEN, params)
    with llm.stream(OPEN, params) as stream:
        llm.generate("import ", SamplingParams(20))  # takes the only sequence, so that the stream is preempted
        text = "".join(piece.text for piece in stream)
    assert text == right.text
    assert stream.completion.token_ids == right.token_ids


@pytest.fixture(scope="module")
def chats(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from conftest import make_llm

    made = {}
    for name, template in (("begun", DROPS_THINKING), ("may", OPENS_NOTHING)):
        path = tmp_path_factory.mktemp("models") / f"{name}.gguf"
        rewrite(demo, path, metadata={"tokenizer.chat_template": template})
        made[name] = make_llm(path)
    yield made
    for llm in made.values():
        llm.close()


HELLO = [{"role": "user", "content": "Hi."}]
SUM = [{"role": "user", "content": "What is 457 + 86?"}]  # thinks for some 20 tokens


def test_thinking_budget_of_0_sets_enable_thinking_to_false(chats: dict[str, LLM]) -> None:
    llm = chats["begun"]
    for told in (None, {}, {"enable_thinking": True}):
        done = llm.chat(HELLO, SamplingParams(5, thinking_budget=0), chat_template_kwargs=told)
        assert llm.model.detokenize(done.prompt_token_ids).endswith("<think>\n\n</think>\n\n")
        assert done.stats.thinking_tokens == 0
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs=5 must map"):
        llm.chat(HELLO, SamplingParams(5, thinking_budget=0), chat_template_kwargs=5)  # type: ignore[arg-type]


def test_stop_strings_of_a_chat_match_only_after_the_thinking(chats: dict[str, LLM]) -> None:
    grammar = 'root ::= "I STOP think</think>\\n\\nanswer STOP now"'
    for name, begins in (("begun", ""), ("may", "<think>")):
        options = SamplingParams(99, stop="STOP", grammar=grammar.replace('"I', f'"{begins}I'))
        done = chats[name].chat(HELLO, options)
        assert done.text == f"{begins}I STOP think</think>\n\nanswer "
        ends = [len(chats[name].model.detokenize(done.token_ids[:i])) for i in range(len(done.token_ids))]
        within = range(len(begins), len(begins) + len("I STOP think"))
        assert done.stats.thinking_tokens == sum(end in within for end in ends)
        assert chats[name].generate(f"{OPEN}", replace(options, grammar=grammar)).text == "I "


@pytest.mark.parametrize("name", ["begun", "may"])
@pytest.mark.parametrize(
    "options",
    [
        {"schema": SCHEMA},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required"},
        {"schema": SCHEMA, "tools": [TOOL]},
    ],
)
def test_schemas_and_tools_constrain_the_output_after_a_thinking_that_was_closed(
    chats: dict[str, LLM], name: str, options: dict[str, Any]
) -> None:
    llm = chats[name]
    # a small budget may end within a character
    for seed in range(4):
        params = SamplingParams(
            200, 1.0, top_k=0, seed=seed, thinking_budget=1 + 2 * seed, thinking_end="\nso <tool", stop="nowhere"
        )
        prompt, sampling, output_format = prepare_request(llm, GenerateRequest(Chat(HELLO), params, **options))
        done = llm.generate(prompt, sampling)  # type: ignore[arg-type]
        (output,) = parse_outputs(output_format, done)
        assert done.stats.thinking_tokens <= 1 + 2 * seed
        assert output.parsed is not None
        if "schema" in options and done.finish_reason == "stop" and not output.parsed.tool_calls:
            assert set(json.loads(output.parsed.content or "")) == {"v"}
        for call in output.parsed.tool_calls:
            assert set(json.loads(call.arguments)) == {"at"}
        if options.get("tool_choice") == "required" and done.finish_reason == "stop":
            assert output.parsed.tool_calls


def test_grammar_of_an_output_format_continues_after_a_thinking_that_was_closed(chats: dict[str, LLM]) -> None:
    """Use the grammar of an OutputFormat in SamplingParams, as the guide does."""
    llm = chats["begun"]
    prompt = llm.chat_prompts.prompt(Chat(SUM))
    output_format = OutputFormat(llm.model.chat_template, prompt.end, schema=SCHEMA)
    done = llm.generate(prompt, SamplingParams(99, grammar=output_format.gbnf, thinking_budget=3))
    assert done.stats.thinking_tokens == 3
    (output,) = parse_outputs(output_format, done)
    assert output.parsed is not None
    assert set(json.loads(output.parsed.content or "")) == {"v"}


def test_grammar_that_does_not_allow_the_end_of_thinking_is_named_in_the_error(llm: LLM) -> None:
    options = SamplingParams(60, thinking_budget=3, grammar='root ::= [a-z ]{30} "</think>" "yes"')
    with pytest.raises(InvalidRequestError, match="thinking_budget=3 closed the thinking where the grammar"):
        llm.generate(OPEN, options)
    assert llm.generate(OPEN, replace(options, grammar='root ::= "yes"')).text.endswith("</think>\n\nyes")


def test_grammar_with_a_rule_of_an_output_format_fails_no_other_request(llm: LLM) -> None:
    # the rules after the first line are no grammar of their own
    grammar = 'thought ::= [a-z ]+\nroot ::= thought\nafter-thinking ::= "yes"'
    params = [SamplingParams(60, ignore_eos=True), SamplingParams(60, thinking_budget=3, grammar=grammar)]
    with pytest.raises(InvalidRequestError, match="the rule 'thought' is nowhere defined") as failed:
        llm.generate(["def f", OPEN], params)
    assert len(failed.value.completions[0].token_ids) == 60


def test_preempted_stream_continues_after_a_closing_message_that_its_grammar_does_not_allow(
    new_llm: Callable[..., LLM],
) -> None:
    llm = new_llm(draft_tokens=0)
    grammar = 'root ::= [^<E]* "</think>" "\\n\\n" [a-z ]{20}'
    params = SamplingParams(60, 1.0, seed=4, thinking_budget=2, thinking_end="E", grammar=grammar)
    right = llm.generate(OPEN, params)
    assert "E</think>" in right.text
    with llm.stream(OPEN, params) as stream:
        llm.generate("import ", SamplingParams(20))
        text = "".join(piece.text for piece in stream)
    assert text == right.text


def test_tool_call_that_begins_within_the_thinking_budget_is_not_cut_off(chats: dict[str, LLM]) -> None:
    call = "so<tool_call>\\n<function=look>\\n<parameter=at>\\nhere and there and everywhere\\n</parameter>"
    (tag,) = chats["begun"].model.tokenize("<tool_call>")
    params = SamplingParams(200, thinking_budget=15, grammar=f'root ::= "{call}" "</think>"?', stop="everywhere")
    params = replace(params, logit_bias={tag: 100.0})  # rather than its letters
    n = params.thinking_budget or 0
    for name in ("begun", "may"):
        grammar = params.grammar or ""
        options = replace(params, grammar=grammar if name == "begun" else grammar.replace('"so', '"<think>so'))
        done = chats[name].chat(HELLO, options)
        assert done.text.endswith("there and ")  # stop strings match in a call
        assert len(done.token_ids) > n, "otherwise the budget had no effect"
        assert 0 < done.stats.thinking_tokens <= 3


def test_thinking_of_a_request_with_log_probabilities_is_closed_while_other_requests_run(llms: list[LLM]) -> None:
    params = [SamplingParams(20, thinking_budget=2, logprobs=n) for n in (None, 0, 2)]
    done = [llm.generate([OPEN] * 3, params) for llm in llms]
    assert len({tuple(one.token_ids) for each in done for one in each}) == 1
    assert [len(one.logprobs or ()) for one in done[0]] == [0, 20, 20]


def test_output_does_not_end_before_its_grammar_begins(llm: LLM) -> None:
    (end,) = llm.model.tokenize(llm.model.eos_token, add_special=False)
    params = SamplingParams(60, logit_bias={end: 1000.0}, thinking_budget=5)
    assert llm.generate(OPEN, params).token_ids == [end]
    done = llm.generate(OPEN, replace(params, json_schema=SCHEMA))
    assert done.stats.thinking_tokens == 5
    assert set(json.loads(done.text.partition("</think>")[2])) == {"v"}
