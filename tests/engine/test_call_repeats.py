"""Tests of the end of a text before a tool call that the text already has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pymtp import LLM, SamplingParams
from pymtp.engine.call_repeats import CallRepeats


def xml(value: str) -> str:
    return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


def hermes(value: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{value}"}}}}\n</tool_call>'


def released(text: str, size: int) -> tuple[str, bool]:
    repeats = CallRepeats()
    parts = [repeats.push(text[i : i + size]) for i in range(0, len(text), size)]
    return "".join(parts) + repeats.flush(), repeats.found


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("call", [xml, hermes])
def test_text_ends_before_a_repeated_call(call: Any, size: int) -> None:
    before = f"{call('1')}\n{call('2')}\n"
    assert released(f"{before}{call('1')}\n{call('3')}", size) == (before, True)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        f"{xml('1')}\n{xml('12')}\n{xml('')}\n{xml('2')}",
        f"{xml('1')}\n{xml('1')[:-1]}",
        f"a < b <tool_call> c {xml('1')} < {hermes('1')}",
        # the two calls differ only after text that looks like the end of a call
        f"{xml('</tool_call>1')}\n{xml('</tool_call>2')}",
        f"{hermes('</function>1')}\n{hermes('</function>2')}",
    ],
)
def test_text_of_distinct_calls_is_unchanged(text: str, size: int) -> None:
    assert released(text, size) == (text, False)


def test_text_is_held_back_only_while_it_may_be_a_repeated_call() -> None:
    repeats = CallRepeats()
    assert repeats.push(xml("1")) == xml("1")
    assert repeats.push("\n<tool_call>\n<function=f>\n<parameter=a>\n") == "\n"
    assert repeats.push("2") == "<tool_call>\n<function=f>\n<parameter=a>\n2"


@pytest.mark.parametrize("draft_tokens", [0, None])
def test_completion_ends_before_a_repeated_call(llm: LLM, draft_tokens: int | None) -> None:
    """The grammar allows calls until max_tokens. The finish reason and the text are the same with drafts."""
    grammar = 'root ::= c ("\\n" c)*\nc ::= "<tool_call>\\n<function=f>\\n</function>\\n</tool_call>"\n'
    params = SamplingParams(200, grammar=grammar, draft_tokens=draft_tokens, ignore_eos=True)
    call = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
    first = llm.generate("a", params)
    assert first.text.count(call) > 1
    distinct = llm.generate("a", replace(params, distinct_calls=True))
    assert (distinct.text, distinct.finish_reason) == (f"{call}\n", "stop")
