"""Tests of OutputParser: reasoning, content, tool calls, and the values of their arguments."""

from __future__ import annotations

import json

import pytest
from helpers.outputs import TOOLS, parse, parse_value, xml_call

from pymtp.chat import (
    ContentDelta,
    OutputFormat,
    OutputParser,
    ParsedOutput,
    ReasoningDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)


def test_parser_returns_deltas_as_soon_as_they_are_certain() -> None:
    parser = OutputParser(TOOLS, thinking=True)
    assert parser.push("\nI th") == [ReasoningDelta("I th", 1, 5)]
    assert parser.push("ink\n</thi") == [ReasoningDelta("ink", 5, 8)]
    assert parser.push("nk>\n\nSo ") == [ContentDelta("So", 19, 21)]
    assert parser.push("be it:\n<tool") == [ContentDelta(" ", 21, 22), ContentDelta("be it:", 22, 28)]
    assert parser.push("_call>\n<function=f>\n<para") == []
    assert parser.push("meter=a>\none") == [ToolCallStart(0, "f"), ToolCallDelta(0, '{"a": "'), ToolCallDelta(0, "one")]
    assert parser.push('\n"two"</para') == [ToolCallDelta(0, '\\n\\"two\\"')]
    assert parser.push("meter>!\n</parameter>\n<parameter=b>\n1") == [
        ToolCallDelta(0, "</parameter>!"),
        ToolCallDelta(0, '"'),
    ]
    assert parser.push("2\n</parameter>\n</function>\n</tool_call>") == [
        ToolCallDelta(0, ', "b": 12'),
        ToolCallDelta(0, "}"),
    ]
    assert parser.finish() == []
    assert parser.output == ParsedOutput(
        "I think", "So be it:", (ToolCall("f", '{"a": "one\\n\\"two\\"</parameter>!", "b": 12}'),)
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
def test_reasoning_ends_at_the_tag_that_closes_the_thinking(
    text: str, thinking: str | None, content: str | None
) -> None:
    assert parse(text, thinking=True) == ParsedOutput(thinking, content)


def test_model_may_open_the_thinking_itself() -> None:
    assert parse("\n<think>\none\n</think>\n\ntwo") == ParsedOutput("one", "two")
    assert parse("a <think>\none\n</think>\n\ntwo") == ParsedOutput(None, "a <think>\none\n</think>\n\ntwo")


def test_reasoning_that_is_not_separated_is_content_with_its_tags() -> None:
    text = "\none\n</think>\n\ntwo"
    assert parse(text, thinking=True, separate_reasoning=False) == ParsedOutput(None, text)
    both = parse(f"<think>{text}\n{xml_call('')}", separate_reasoning=False)
    assert both == ParsedOutput(None, f"<think>{text}", (ToolCall("f", "{}"),))


def test_call_within_thinking_counts_and_the_thinking_continues() -> None:
    text = f'one\n{xml_call("")}\n<tool_call>\n{{"name": "g"}}\n</tool_call>\ntwo</think>three'
    assert parse(text, thinking=True) == ParsedOutput(
        "one\n\n\ntwo", "three", (ToolCall("f", "{}"), ToolCall("g", "{}"))
    )


def test_whitespace_around_calls_is_content_only_between_content() -> None:
    one = ToolCall("g", "{}")
    each = xml_call("", "g")
    assert parse(f"\n {each}\n\n{each}\n ") == ParsedOutput(None, None, (one, one))
    assert parse(f" a \n{each}\n\n{each}\nb ") == ParsedOutput(None, " a \n\n\n\nb", (one, one))
    assert parse(f"{each}\nb") == ParsedOutput(None, "b", (one,))
    assert parse(" a \n") == ParsedOutput(None, " a \n")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "a <tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</function>\n</tool_call>",
    ],
)
def test_tags_are_content_without_tools(text: str) -> None:
    assert parse(text, []) == ParsedOutput(None, text)
    parser = OutputFormat(None, "", tools=TOOLS, tool_choice="none").parser()
    parser.push(text)
    parser.finish()
    assert parser.output == ParsedOutput(None, text)


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
        "a <",
        "a <tool",
    ],
)
def test_text_that_only_looks_like_a_call_is_content(text: str) -> None:
    assert parse(text) == ParsedOutput(None, text)


def test_call_of_an_unknown_tool_is_still_a_call() -> None:
    """Check this because the client can report an unknown tool to the model; with content, the chat would end."""
    one = parse(xml_call("<parameter=a>\n1\n</parameter>\n<parameter=b>\none\n</parameter>\n", "other"))
    assert one == ParsedOutput(None, None, (ToolCall("other", '{"a": 1, "b": "one"}'),))


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
    "</parameter> twice": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</parameter>\n</function>\n"
    "</tool_call>",
    "</parameter> thrice": "<tool_call><function=f><parameter=a>one</parameter></parameter></parameter></function>"
    "</tool_call>",
    "</parameter> on its line and before": "<tool_call>\n<function=f>\n<parameter=a>\none</parameter>\n</parameter>\n"
    "</function>\n</tool_call>",
    "</parameter> twice, then no tag": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</parameter>\n"
    "</function>",
    "</function> twice": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</function>\n</function>\n"
    "</tool_call>",
    "</tool_call> twice": "<tool_call>\n<function=f>\n<parameter=a>\none\n</parameter>\n</function>\n</tool_call>\n"
    "</tool_call>",
    "names in quotes": "<tool_call>\n<function=\"f\">\n<parameter='a'>\none\n</parameter>\n</function>\n</tool_call>",
    "spaces around names": "<tool_call>\n<function= f >\n<parameter= a >\none\n</parameter>\n</function>\n</tool_call>",
    "a quoted name without <tool_call>": '<function="f">\n<parameter=a>\none\n</parameter>\n</function>',
    "CRLF": "<tool_call>\r\n<function=f>\r\n<parameter=a>\r\none\r\n</parameter>\r\n</function>\r\n</tool_call>\r\n",
    "CRLF before the tags only": "<tool_call>\r\n<function=f>\r\n<parameter=a>one\r\n</parameter>\r\n</function>\r\n"
    "</tool_call>",
    "CRLF, </parameter> twice": "<tool_call>\r\n<function=f>\r\n<parameter=a>\r\none\r\n</parameter>\r\n"
    "</parameter>\r\n</function>\r\n</tool_call>",
    "JSON in single quotes": "<tool_call>\n{'name': 'f', 'arguments': {'a': 'one'}}\n</tool_call>",
    "an empty number": "<tool_call>\n<function=f>\n<parameter=b>\n\n</parameter>\n"
    "<parameter=a>\none\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("case", BROKEN)
def test_call_is_parsed_in_all_variants_that_models_write(case: str) -> None:
    assert parse(BROKEN[case]) == ParsedOutput(None, None, (ToolCall("f", '{"a": "one"}'),))


@pytest.mark.parametrize("end", ["\n</parameter>", "</parameter>", "\n</parameter>\n</parameter>"])
def test_repeated_end_tag_leaves_the_type_of_a_value(end: str) -> None:
    assert parse_value(f"5{end}", {"type": "integer"}) == 5
    assert parse_value(f"[1]{end}", {"type": "array"}) == [1]


def test_lines_of_a_value_end_as_the_lines_of_its_tags() -> None:
    """Tags on lines that end with CRLF show that the model ends all lines so. Otherwise a CR belongs to the value."""
    crlf = parse(
        "<tool_call>\r\n<function=f>\r\n<parameter=a>\r\n1\r\n2\r3\r\n\r\n</parameter>\r\n</function>\r\n</tool_call>"
    )
    assert json.loads(crlf.tool_calls[0].arguments) == {"a": "1\n2\r3\n"}
    assert parse_value("1\r\n2\r", {"type": "string"}) == "1\r\n2\r"
    assert parse("\r\nhm\r\n</think>\r\n\r\nyes", thinking=True) == ParsedOutput("hm", "yes")


def test_name_that_has_quotes_of_its_own_is_kept() -> None:
    tool = Tool("f", "", {"properties": {"'a'": {"type": "string"}}})
    one = parse(xml_call("<parameter='a'>\nx\n</parameter>\n"), [tool])
    assert json.loads(one.tool_calls[0].arguments) == {"'a'": "x"}


@pytest.mark.parametrize("end", ["</function>\n</tool_call>", "</tool_call>", "</function>", "</function></function>"])
def test_call_without_parameters_is_parsed_whatever_closing_tag_is_missing(end: str) -> None:
    assert parse(f"<tool_call>\n<function=g>\n{end}").tool_calls == (ToolCall("g", "{}"),)


def test_two_functions_in_one_tool_call_are_two_calls() -> None:
    first = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    assert parse(f"{first}<function=g>\n</function>\n</tool_call>") == ParsedOutput(
        None, None, (ToolCall("f", '{"a": "1"}'), ToolCall("g", "{}"))
    )


def test_second_tag_of_a_parameter_is_text_of_the_current_value() -> None:
    """Such tags occur where the model writes about calls."""
    text = "one\n</parameter>\n<parameter=a>\ntwo"
    assert parse_value(text, {"type": "string"}) == text


def test_next_parameter_needs_an_end_tag_before_it_or_a_known_name() -> None:
    both = parse(xml_call("<parameter=a>\n1\n<parameter=z>\n2\n</parameter>\n<parameter=y>\n3\n</parameter>\n"))
    assert json.loads(both.tool_calls[0].arguments) == {"a": "1\n<parameter=z>\n2", "y": 3}
    known = parse(xml_call("<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n"))
    assert json.loads(known.tool_calls[0].arguments) == {"a": "1", "b": 2}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call",
        " <tool_",
        "<tool_call>\n<function=f>\n",
        "\n\n<tool_call>\n<func",
        "\n<function=f>\n<para",
        '<tool_call>\n{"name": "f", "arguments": {',
    ],
)
def test_beginning_of_a_call_at_the_end_of_the_output_is_not_content(text: str) -> None:
    assert parse(f"one{text}").content == "one"
    assert parse(f"{xml_call('')}{text}").content is None


@pytest.mark.parametrize("tag", ["<tool_call><function=", "<tool_call>"])
def test_unclosed_tag_that_is_longer_than_any_tag_is_content(tag: str) -> None:
    parser = OutputParser(TOOLS)
    text = tag + ("a" if tag.endswith("=") else " ") * 5000
    parser.push(text)
    parser.push("x")
    assert parser.output.content == text + "x"


@pytest.mark.parametrize("end", ["", "\n", "\n</param", "\n</parameter>", "\n</parameter>\n</func"])
def test_unfinished_call_never_has_complete_arguments(end: str) -> None:
    """Otherwise a client could run half of a command, which may do something else than the whole command."""
    cut = parse("<tool_call>\n<function=f>\n<parameter=a>\nrm -rf /" + end)
    assert (cut.tool_calls, cut.content) == ((), None)
    assert cut.unfinished_call is not None
    assert cut.unfinished_call.arguments.startswith('{"a": "rm -rf /')
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.unfinished_call.arguments)


def test_unfinished_hermes_call_has_the_arguments_so_far() -> None:
    cut = parse('<tool_call>\n{"name": "f", "arguments": {"a": "rm')
    assert cut == ParsedOutput(unfinished_call=ToolCall("f", '{"a": "rm'))


@pytest.mark.parametrize("end", ["}", "}\n", "}, ", '}, "id": "'])
def test_hermes_call_that_is_cut_off_after_its_arguments_is_unfinished(end: str) -> None:
    cut = parse('<tool_call>\n{"name": "f", "arguments": {"a": "}"' + end)
    assert cut == ParsedOutput(unfinished_call=ToolCall("f", '{"a": "}"'))


def test_finish_returns_the_events_of_an_unfinished_hermes_call() -> None:
    parser = OutputParser(TOOLS)
    events = parser.push('Look.\n<tool_call>\n{"name": "f", "arguments": {"a": "rm')
    assert events == [ContentDelta("Look.", 0, 5)]
    assert parser.finish() == [ToolCallStart(0, "f"), ToolCallDelta(0, '{"a": "rm')]
    named = OutputParser(TOOLS)
    assert named.push('<tool_call>{"name": "f", "argu') == []
    assert named.finish() == [ToolCallStart(0, "f")]
    unnamed = OutputParser(TOOLS)
    assert unnamed.push('<tool_call>{"name": "f') == []
    assert (unnamed.finish(), unnamed.output) == ([], ParsedOutput())


def test_unfinished_call_of_an_unknown_tool_within_thinking_is_reasoning() -> None:
    cut = '<tool_call>{"name": "other", "arguments": {'
    parser = OutputParser(TOOLS, thinking=True)
    parser.push(cut)
    assert "".join(event.text for event in parser.finish() if isinstance(event, ReasoningDelta)) == cut
    assert parser.output == ParsedOutput(reasoning=cut)
