"""How Qwen's templates write thinking and calls of tools, in marks. A call in XML:

    <tool_call>
    <function=NAME>
    <parameter=name>
    value
    </parameter>
    </function>
    </tool_call>

and in Hermes' form: `<tool_call>`, {"name": …, "arguments": {…}} and `</tool_call>`, on lines of their own. Models
without a grammar write it with other whitespace, and leave tags out.
"""

from __future__ import annotations

from functools import cache

from pymtp.chat.tags import Mark, Marks

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"

THINKS = Mark(f" {THINK}", at_start=True)
THINKS_NO_MORE = Mark(THOUGHT)
HERMES = Mark(f"{CALL} {{")
# a call is one when its first parameter begins, or it has none
XML = [Mark(f"{CALL} <function=NAME> {then}") for then in ("<parameter=NAME>", "</function>")]
BARE = [Mark(f"\n<function=NAME> {then}") for then in ("<parameter=NAME>", "</function>")]
ENDS_CALL = Mark(f" {CALLED}", at_start=True)
PARAMETER = Mark(" <parameter=NAME>", at_start=True)
ENDS_FUNCTION = [Mark(f" {end}", at_start=True) for end in ("</function>", CALLED)]

# What ends a function: in a value where somebody writes about functions, it stands without what follows.
_END = [f"</function> {then}" for then in (CALLED, CALL, "<function=")]
_NEXT = ["<parameter=NAME>", CALLED, *_END]
_UNCLOSED = ["<parameter=NAME>", *_END]  # where </parameter> was left out
# of a value on lines of its own
ENDS_LINES = [
    *(Mark(f"\n</parameter> {then}") for then in _NEXT),
    *(Mark(f"</parameter>\n {then}") for then in _NEXT),
    *(Mark(f"\n{then}") for then in _UNCLOSED),
]
# of one that begins right behind its tag
ENDS_VALUE = [
    *(Mark(f"{end} {then}") for end in ("\n</parameter>", "</parameter>") for then in _NEXT),
    *(Mark(f"{end}{then}") for end in ("\n", "") for then in _UNCLOSED),
]

FUNCTION_GOES_ON = Marks([PARAMETER, *ENDS_FUNCTION])
VALUE_ON_LINES, VALUE_IN_LINE = Marks(ENDS_LINES), Marks(ENDS_VALUE)


@cache
def tags(*, begins: bool, thinking: bool, calls: bool, called: bool) -> Marks:
    """What is watched for outside of calls. begins: at the beginning. calls: whether there may be any. called: behind
    one."""
    found = [THINKS_NO_MORE] if thinking else [THINKS] if begins else []
    if calls:
        found += [*XML, *BARE, HERMES]
    if called:
        found.append(ENDS_CALL)
    return Marks(found)
