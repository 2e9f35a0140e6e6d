"""Claims about what is read of an answer: thinking, content, calls, and the values of their arguments."""

from __future__ import annotations

import json

import pytest
from helpers.answers import TOOLS, answer, call, value

from pymtp.chat import Answer, AnswerFormat, AnswerReader, Call, CallArguments, CallBegun, Said, Thought


def test_pieces_are_given_out_as_soon_as_they_are_certain() -> None:
    reader = AnswerReader(TOOLS, thinking=True)
    assert reader.push("\nI th") == [Thought("I th", 1, 5)]
    assert reader.push("ink\n</thi") == [Thought("ink", 5, 8)]
    assert reader.push("nk>\n\nSo ") == [Said("So", 19, 21)]
    assert reader.push("be it:\n<tool") == [Said(" ", 21, 22), Said("be it:", 22, 28)]
    assert reader.push("_call>\n<function=f>\n<para") == []
    assert reader.push("meter=a>\none") == [CallBegun(0, "f"), CallArguments(0, '{"a": "'), CallArguments(0, "one")]
    assert reader.push('\n"two"</para') == [CallArguments(0, '\\n\\"two\\"')]
    assert reader.push("meter>\n</parameter>\n<parameter=b>\n1") == [
        CallArguments(0, "</parameter>"),
        CallArguments(0, '"'),
    ]
    assert reader.push("2\n</parameter>\n</function>\n</tool_call>") == [
        CallArguments(0, ', "b": 12'),
        CallArguments(0, "}"),
    ]
    assert reader.finish() == []
    assert reader.answer == Answer(
        "I think", "So be it:", (Call("f", '{"a": "one\\n\\"two\\"</parameter>", "b": 12}'),)
    )


@pytest.mark.parametrize(
    ("text", "thinking", "content"),
    [
        ("one\n</think>\n\ntwo\n", "one", "two\n"),
        ("\n</think>\n\n", None, None),
        ("one", "one", None),
        ("one\n\n</think>  two", "one", "  two"),
        ("one <tool_call> two</think>three", "one <tool_call> two", "three"),
        (
            "<tool_call>\n<function=other>\n<parameter=a>\n</think>x",
            "<tool_call>\n<function=other>\n<parameter=a>",
            "x",
        ),
    ],
)
def test_thinking_ends_at_its_tag(text: str, thinking: str | None, content: str | None) -> None:
    assert answer(text, thinking=True) == Answer(thinking, content)


def test_a_model_may_begin_the_thinking_itself() -> None:
    assert answer("\n<think>\none\n</think>\n\ntwo") == Answer("one", "two")
    assert answer("a <think>\none\n</think>\n\ntwo") == Answer(None, "a <think>\none\n</think>\n\ntwo")


def test_thinking_that_is_not_told_apart_is_content_with_its_tags() -> None:
    text = "\none\n</think>\n\ntwo"
    assert answer(text, thinking=True, splits_thinking=False) == Answer(None, text)
    both = answer(f"<think>{text}\n{call('')}", splits_thinking=False)
    assert both == Answer(None, f"<think>{text}", (Call("f", "{}"),))


def test_a_call_within_the_thinking_is_one_and_the_thinking_goes_on() -> None:
    text = f'one\n{call("")}\n<tool_call>\n{{"name": "g"}}\n</tool_call>\ntwo</think>three'
    assert answer(text, thinking=True) == Answer("one\n\n\ntwo", "three", (Call("f", "{}"), Call("g", "{}")))


def test_whitespace_around_calls_is_content_between_content_alone() -> None:
    one = Call("g", "{}")
    each = call("", "g")
    assert answer(f"\n {each}\n\n{each}\n ") == Answer(None, None, (one, one))
    assert answer(f" a \n{each}\n\n{each}\nb ") == Answer(None, " a \n\n\n\nb", (one, one))
    assert answer(f"{each}\nb") == Answer(None, "b", (one,))
    assert answer(" a \n") == Answer(None, " a \n")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "a <tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</function>\n</tool_call>",
    ],
)
def test_without_tools_tags_are_content(text: str) -> None:
    assert answer(text, []) == Answer(None, text)
    reader = AnswerFormat(None, "", tools=TOOLS, tool_choice="none").reader()
    reader.push(text)
    reader.finish()
    assert reader.answer == Answer(None, text)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nf(1)\n</tool_call>",
        "<tool_call>\n<function=f>\nf(1)\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        '<tool_call>\n{"name": 1}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "one"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {]}\n</tool_call> x',
        "a <function=f>\n</function>",
        "\n<function=unknown>\n</function>",
        "\n</parameter></function>",
    ],
)
def test_what_looks_like_a_call_and_is_none_is_content(text: str) -> None:
    assert answer(text) == Answer(None, text)


def test_a_tool_that_was_not_offered_is_called_all_the_same() -> None:
    """The client tells the model, which knows by the answer; as content it would end the chat."""
    one = answer(call("<parameter=a>\n1\n</parameter>\n<parameter=b>\none\n</parameter>\n", "other"))
    assert one == Answer(None, None, (Call("other", '{"a": 1, "b": "one"}'),))


BROKEN = {
    "no <tool_call>": "<function=f>\n<parameter=a>\none\n</parameter>\n</function>\n</tool_call>",
    "no newlines": "<tool_call><function=f><parameter=a>one</parameter></function></tool_call>",
    "newlines on one side": "<tool_call><function=f>\n<parameter=a>\none</parameter>\n</function></tool_call>",
    "no </parameter>": "<tool_call>\n<function=f>\n<parameter=a>\none\n</function>\n</tool_call>",
    "no </function>": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</tool_call>",
    "no </tool_call>": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</function>",
    "half of </tool_call>": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</function>\n</tool",
    "JSON": '<tool_call>{"arguments": {"a": "one"}, "name": "f"}</tool_call>',
    "JSON in JSON": '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": \\"one\\"}"}\n</tool_call>',
    "JSON without </tool_call>": '<tool_call>\n{"name": "f", "parameters": {"a": "one"}}',
    "an empty number": "<tool_call>\n<function=f>\n<parameter=b>\n\n</parameter>\n"
    "<parameter=a>\none\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_call_is_read_however_a_model_writes_it(case: str) -> None:
    assert answer(BROKEN[case]) == Answer(None, None, (Call("f", '{"a": "one"}'),))


def test_two_functions_in_one_call_are_two_calls() -> None:
    first = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    assert answer(f"{first}<function=g>\n</function>\n</tool_call>") == Answer(
        None, None, (Call("f", '{"a": "1"}'), Call("g", "{}"))
    )


def test_a_parameter_comes_once() -> None:
    """A second one is text of the value that it stands in: somebody writes about calls."""
    text = "one\n</parameter>\n<parameter=a>\ntwo"
    assert value(text, {"type": "string"}) == text


def test_another_parameter_needs_the_end_of_the_one_before_or_to_be_known() -> None:
    both = answer(call("<parameter=a>\n1\n<parameter=z>\n2\n</parameter>\n<parameter=y>\n3\n</parameter>\n"))
    assert json.loads(both.calls[0].arguments) == {"a": "1\n<parameter=z>\n2", "y": 3}
    known = answer(call("<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n"))
    assert json.loads(known.calls[0].arguments) == {"a": "1", "b": 2}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n<function=f>\n",
        "\n\n<tool_call>\n<func",
        "\n<function=f>\n<para",
        '<tool_call>\n{"name": "f", "arguments": {',
    ],
)
def test_what_a_call_begins_with_is_no_content_where_the_text_ends(text: str) -> None:
    assert answer(f"one{text}").content == "one"
    assert answer(f"{call('')}{text}").content is None


@pytest.mark.parametrize("tag", ["<tool_call><function=", "<tool_call>"])
def test_what_goes_on_for_too_long_is_no_tag(tag: str) -> None:
    reader = AnswerReader(TOOLS)
    text = tag + ("a" if tag.endswith("=") else " ") * 5000
    reader.push(text)
    reader.push("x")
    assert reader.answer.content == text + "x"


@pytest.mark.parametrize("end", ["", "\n", "\n</param", "\n</parameter>", "\n</parameter>\n</func"])
def test_a_call_that_is_cut_short_is_never_whole(end: str) -> None:
    """As half a command is another."""
    cut = answer("<tool_call>\n<function=f>\n<parameter=a>\nrm -rf /" + end)
    assert (cut.calls, cut.content) == ((), None)
    assert cut.unfinished is not None
    assert cut.unfinished.arguments.startswith('{"a": "rm -rf /')
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.unfinished.arguments)


def test_of_a_call_as_json_that_is_cut_short_there_is_what_came() -> None:
    cut = answer('<tool_call>\n{"name": "f", "arguments": {"a": "rm')
    assert cut == Answer(unfinished=Call("f", '{"a": "rm'))


@pytest.mark.parametrize("end", ["}", "}\n", "}, ", '}, "id": "'])
def test_a_call_as_json_that_is_cut_short_behind_its_arguments_is_not_whole(end: str) -> None:
    cut = answer('<tool_call>\n{"name": "f", "arguments": {"a": "}"' + end)
    assert cut == Answer(unfinished=Call("f", '{"a": "}"'))


def test_a_call_as_json_that_is_cut_short_is_told_in_events_too() -> None:
    reader = AnswerReader(TOOLS)
    events = reader.push('Look.\n<tool_call>\n{"name": "f", "arguments": {"a": "rm')
    assert events == [Said("Look.", 0, 5)]
    assert reader.finish() == [CallBegun(0, "f"), CallArguments(0, '{"a": "rm')]
    named = AnswerReader(TOOLS)
    assert named.push('<tool_call>{"name": "f", "argu') == []
    assert named.finish() == [CallBegun(0, "f")]
    unnamed = AnswerReader(TOOLS)
    assert unnamed.push('<tool_call>{"name": "f') == []
    assert (unnamed.finish(), unnamed.answer) == ([], Answer())


def test_within_thinking_only_a_call_of_a_known_tool_is_cut_short() -> None:
    cut = '<tool_call>{"name": "other", "arguments": {'
    reader = AnswerReader(TOOLS, thinking=True)
    reader.push(cut)
    assert "".join(event.text for event in reader.finish() if isinstance(event, Thought)) == cut
    assert reader.answer == Answer(thinking=cut)
