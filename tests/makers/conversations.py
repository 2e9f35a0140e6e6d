"""Forty conversations of the kinds that clients send, in OpenAI's format, for tests of chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Conversation(NamedTuple):
    """A conversation. variables: those of the template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: Mapping[str, Any] | None = None


def _says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _calls(*calls: tuple[str, Any], content: Any = "", **more: Any) -> dict[str, Any]:
    made = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    return _says("assistant", content, tool_calls=made, **more)


def _result(content: Any, call: int = 0) -> dict[str, Any]:
    return _says("tool", content, tool_call_id=f"call_{call}")


def _tool(name: str, about: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


SYSTEM = _says("system", "You are brief.")
HELLO, AGAIN = _says("user", "Why is the sky blue?"), _says("user", "And at night?")
BLUE = _says("assistant", "Air scatters blue light most.")
THOUGHT = _says("assistant", "It is dark.", reasoning_content="No sun, no light.")
INLINE = _says("assistant", "<think>\nNo sun, no light.\n</think>\n\nIt is dark.")
WEATHER = _tool("get_weather", "Look up the weather.", city={"type": "string"}, days={"type": "integer"})
SEARCH = _tool(
    "search",
    "Search <the web> & more: “é”, 日本.",
    query={"type": "string", "enum": ["a", "b"]},
    options={"type": "object"},
)
TOOLS = [WEATHER, SEARCH]
CALL = _calls(("get_weather", {"city": "Paris", "days": 2}))
OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}

CONVERSATIONS: dict[str, Conversation] = {
    "one question": Conversation([HELLO]),
    "system": Conversation([SYSTEM, HELLO]),
    "empty system": Conversation([_says("system", ""), HELLO]),
    "developer": Conversation([_says("developer", "You are brief."), HELLO]),
    "two systems first": Conversation([SYSTEM, _says("system", "Write English."), HELLO]),
    "system in the middle": Conversation([SYSTEM, HELLO, BLUE, _says("system", "Now in French."), AGAIN]),
    "system last": Conversation([HELLO, _says("system", "Only JSON.")]),
    "developer in the middle": Conversation([HELLO, BLUE, _says("developer", "Now in French."), AGAIN]),
    "several turns": Conversation([SYSTEM, HELLO, BLUE, AGAIN]),
    "assistant last": Conversation([HELLO, BLUE]),
    "two users": Conversation([HELLO, AGAIN]),
    "thinking off": Conversation([HELLO], variables=OFF),
    "thinking on": Conversation([HELLO], variables=ON),
    "thinking off in a second turn": Conversation([HELLO, THOUGHT, AGAIN], variables=OFF),
    "thought before": Conversation([HELLO, THOUGHT, AGAIN]),
    "thought before, kept": Conversation([HELLO, THOUGHT, AGAIN], variables={"preserve_thinking": True}),
    "thought within the content": Conversation([HELLO, INLINE, AGAIN]),
    "thought, and nothing said": Conversation([HELLO, _says("assistant", "", reasoning_content="Hm."), AGAIN]),
    "thought last": Conversation([HELLO, THOUGHT]),
    "effort low": Conversation([HELLO], variables={"reasoning_effort": "low"}),
    "effort high, thinking on": Conversation([HELLO], variables={"reasoning_effort": "high", **ON}),
    "tools": Conversation([HELLO], TOOLS),
    "tools and system": Conversation([SYSTEM, HELLO], TOOLS),
    "tools, thinking off": Conversation([HELLO], [WEATHER], OFF),
    "no tools": Conversation([HELLO], []),
    "call": Conversation([HELLO, CALL, _result("Sunny.")], TOOLS),
    "call with thought and text": Conversation(
        [HELLO, {**CALL, "content": "I look.", "reasoning_content": "Ask."}, _result("Sunny.")], TOOLS
    ),
    "call with arguments as text": Conversation(
        [HELLO, _calls(("get_weather", '{"city":"Paris","days":2}')), _result("Sunny.")], TOOLS
    ),
    "call with nested arguments": Conversation(
        [
            HELLO,
            _calls(("search", {"query": "a", "options": {"deep": [1, 2.5, None, True], "é": "日"}})),
            _result("[]"),
        ],
        TOOLS,
    ),
    "call without arguments": Conversation([HELLO, _calls(("now", {})), _result("12:00")], TOOLS),
    "two calls, two results": Conversation(
        [
            HELLO,
            _calls(("get_weather", {"city": "Rome", "days": 1}), ("search", {"query": "b"})),
            _result("Rain."),
            _result("None.", 1),
        ],
        TOOLS,
    ),
    "call, answer, question": Conversation([SYSTEM, HELLO, CALL, _result("Sunny."), BLUE, AGAIN], TOOLS),
    "call without content": Conversation(
        [HELLO, {name: value for name, value in CALL.items() if name != "content"}, _result("Sunny.")], TOOLS
    ),
    "call with content None": Conversation([HELLO, {**CALL, "content": None}, _result("Sunny.")], TOOLS),
    "result in parts": Conversation([HELLO, CALL, _result([{"type": "text", "text": "Sunny."}])], TOOLS),
    "content in parts": Conversation(
        [_says("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}])]
    ),
    "no user": Conversation([SYSTEM, CALL, _result("Sunny.")], TOOLS),
    "only a system": Conversation([SYSTEM]),
    "unicode, tags, blanks": Conversation(
        [
            _says("user", "  é 日本 \U0001f600 <|im_end|> <b>&amp;</b> \r\n\t{{ x }} \u2028 "),
            _says("assistant", "\n ok \n"),
            HELLO,
        ]
    ),
    "empty contents": Conversation([_says("user", ""), _says("assistant", ""), _says("user", "")]),
}
