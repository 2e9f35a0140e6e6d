"""The tags in which Qwen's chat templates write thinking and tool calls.

A call in XML:

    <tool_call>
    <function=NAME>
    <parameter=name>
    value
    </parameter>
    </function>
    </tool_call>

A call in Hermes' form: `<tool_call>`, {"name": …, "arguments": {…}} and `</tool_call>`, each on lines of its own.
Without a grammar, models also write other whitespace, leave out tags, and write a closing tag several times.
"""

from __future__ import annotations

from functools import cache

from pymtp.chat.tags import Tag, TagSet

THINK_START, THINK_END = "<think>", "</think>"
TOOL_CALL_START, TOOL_CALL_END = "<tool_call>", "</tool_call>"
FUNCTION_END = "</function>"

THINK_START_TAG = Tag(f" {THINK_START}", at_start=True)
THINK_END_TAG = Tag(THINK_END)
HERMES_CALL_TAG = Tag(f"{TOOL_CALL_START} {{")
# `<function=NAME>` begins a call only if the first parameter, or the end of the call, follows. If not, it is text.
_AFTER_NAME = ("<parameter=NAME>", "</function>")
XML_CALL_TAGS = [Tag(f"{TOOL_CALL_START} <function=NAME> {then}") for then in (*_AFTER_NAME, TOOL_CALL_END)]
# The same for models that leave out `<tool_call>`.
BARE_FUNCTION_TAGS = [Tag(f"\n<function=NAME> {then}") for then in _AFTER_NAME]
# The tags that may stand directly after a call. Models repeat both.
AFTER_CALL_TAGS = [Tag(f" {end}", at_start=True) for end in (FUNCTION_END, TOOL_CALL_END)]

# `</function>` may be part of a value. It ends the function only if it is followed by one of these tags.
_AFTER_FUNCTION = (TOOL_CALL_END, TOOL_CALL_START, "<function=")
_FUNCTION_END = [f"</function>+ {then}" for then in _AFTER_FUNCTION]
_AFTER_VALUE = ["<parameter=NAME>", TOOL_CALL_END, *_FUNCTION_END]
_AFTER_UNCLOSED_VALUE = ["<parameter=NAME>", *_FUNCTION_END]  # for models that leave out </parameter>
# The ends of a value that has lines of its own, as in the example above.
BLOCK_VALUE_END_TAGS = [
    *(Tag(f"\n</parameter>+ {then}") for then in _AFTER_VALUE),
    *(Tag(f"</parameter>+\n {then}") for then in _AFTER_VALUE),
    *(Tag(f"\n{then}") for then in _AFTER_UNCLOSED_VALUE),
]
# The same where the model ends its lines with \r\n.
_CRLF_VALUE_END_TAGS = [
    *(Tag(tag.pattern.replace("\n", "\r\n")) for tag in BLOCK_VALUE_END_TAGS),
    *BLOCK_VALUE_END_TAGS,
]
# What a grammar must forbid in a value besides the ends above: repeated closing tags, which would not belong to it.
REPEATED_END_TAGS = [
    Tag("</parameter> </parameter>"),
    *(Tag(f"</function> </function> {then}") for then in _AFTER_FUNCTION),
]
# The ends of a value that begins on the line of its `<parameter=name>`.
_LINE_ENDS = ("\r\n", "\n", "")
INLINE_VALUE_END_TAGS = [
    *(Tag(f"{end}</parameter>+ {then}") for end in _LINE_ENDS for then in _AFTER_VALUE),
    *(Tag(f"{end}{then}") for end in _LINE_ENDS for then in _AFTER_UNCLOSED_VALUE),
]

BLOCK_VALUE_TAGS, INLINE_VALUE_TAGS = TagSet(BLOCK_VALUE_END_TAGS), TagSet(INLINE_VALUE_END_TAGS)
CRLF_VALUE_TAGS = TagSet(_CRLF_VALUE_END_TAGS)


@cache
def tags_outside_calls(*, at_start: bool, thinking: bool, calls: bool, after_call: bool) -> TagSet:
    """Return the tags to scan for outside of tool calls.

    at_start: whether the output begins here, perhaps with `<think>`.
    thinking: whether the text is within the thinking.
    calls: whether tool calls may follow.
    after_call: whether a call has just ended, so that its closing tags may follow.
    """
    tags = [THINK_END_TAG] if thinking else [THINK_START_TAG] if at_start else []
    if calls:
        tags += [*XML_CALL_TAGS, *BARE_FUNCTION_TAGS, HERMES_CALL_TAG]
    if after_call:
        tags += AFTER_CALL_TAGS
    return TagSet(tags)
