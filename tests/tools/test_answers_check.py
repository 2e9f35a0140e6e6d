"""Tests of tools/checks/answers.py: a short run, and wrong answers that it must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import answers
import pytest
from answers import Asked, requests_for, wrong

from pymtp import LLM, SamplingParams
from pymtp.chat import NamedTool
from pymtp.context.context import Context
from pymtp.sampling import Sampler


@pytest.fixture(scope="module", params=answers.TEMPLATES, ids=["XML", "JSON"])
def llms(request: pytest.FixtureRequest) -> Iterator[list[LLM]]:
    """Return an LLM without drafts and one with."""
    with ExitStack() as stack:
        yield [stack.enter_context(llm) for llm in answers.open_llms(request.param)[:2]]


def checked(llms: Sequence[LLM], seed: int) -> tuple[Counter[str], list[str]]:
    rows: dict[str, Counter[str]] = {}
    problems = answers.check(llms, seed, rows)
    return sum(rows.values(), Counter()), problems


def test_answers_fulfil_their_schemas_within_the_thinking_budget(llms: list[LLM]) -> None:
    counts, problems = checked(llms, 5)
    assert problems == []
    assert counts["texts"] == 2 * 10
    assert counts["rounds"] == counts["closed"] > 5


def test_check_finds_wrong_tool_calls(llms: list[LLM]) -> None:
    (named,) = (one for one in requests_for(llms[0], 0) if one.choice == NamedTool("third"))
    tools = [replace(tool, parameters={"type": "object", "required": ["never"]}) for tool in named.tools]
    asked = replace(named, tools=tools)
    as_json = "JSON" in (llms[0].chat_template.source or "")
    call = '{{"name": "{}", "arguments": {{}}}}' if as_json else "<function={}>\n</function>"
    call = f"{thought(asked)}<tool_call>\n{call}\n</tool_call>"
    assert "is a required property" in wrong(asked, call.format("third"))
    assert "it calls first" in wrong(asked, call.format("first"))
    assert "not one call" in wrong(asked, call.format("third")[:-20])
    assert "not one call" in wrong(asked, call.format("third") + "text")
    assert "not one call" in wrong(asked, thought(asked) + "text")
    assert wrong(asked, call.format("third"), complete=False)


def test_check_finds_wrong_json(llms: list[LLM]) -> None:
    for asked in requests_for(llms[0], 0):
        if asked.kind in ("JSON", "prompt, JSON"):
            asked = replace(asked, schema={"type": "object", "required": ["never"]})
            assert "is a required property" in wrong(asked, thought(asked) + "{}")
            assert wrong(asked, thought(asked) + "{")


def test_check_finds_tokens_that_drafts_change(llms: list[LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    set_sampling = Context.set_sampling

    def broken(self: Context, sampler: Sampler, seq: int = 0) -> None:
        if self.draft_tokens and isinstance(sampler.params, SamplingParams):
            sampler = Sampler(replace(sampler.params, logit_bias={32: 20.0}))
        set_sampling(self, sampler, seq)

    monkeypatch.setattr(Context, "set_sampling", broken)
    monkeypatch.setattr(answers, "requests_for", only_text)
    counts, problems = checked(llms, 0)
    assert counts["differ"] > 5
    assert problems


def test_check_finds_thinking_beyond_the_budget(llms: list[LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    generate = answers.generate

    def without_budget(llm: LLM, batch: Sequence[Asked]) -> Iterator[object]:
        yield from generate(llm, [replace(one, params=replace(one.params, thinking_budget=None)) for one in batch])

    monkeypatch.setattr(answers, "generate", without_budget)
    monkeypatch.setattr(answers, "requests_for", only_text)
    counts, problems = checked(llms[:1], 0)
    assert counts["beyond"] == 2
    assert len(problems) == 2


def thought(asked: Asked) -> str:
    """Return the end of a thinking; "" where the prompt holds it, for a budget of 0."""
    return "</think>\n\n" if asked.params.thinking_budget or asked.form is None else ""


def only_text(llm: LLM, seed: int) -> Iterator[Asked]:
    """Yield the requests that need no grammar, with a small budget."""
    for asked in requests_for(llm, seed):
        if asked.kind in ("text", "prompt, penalties"):
            yield replace(asked, params=replace(asked.params, thinking_budget=2))
