"""The arguments of a call as JSON, from what stands in its tags."""

from __future__ import annotations

import json
import re

from pymtp.chat.events import Call
from pymtp.chat.json_end import JsonText
from pymtp.chat.literals import NoValueError, json_value
from pymtp.chat.tool_parameters import Parameter, Parameters

_NAME = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"arguments"\s*:\s*(?=\{)')


class CallText:
    """A call whose parameters come one by one. What methods return are the pieces of its arguments."""

    def __init__(self, index: int, name: str, parameters: Parameters) -> None:
        self.index, self.name, self.parameters = index, name, parameters
        self.given: set[str] = set()
        self._pieces: list[str] = []
        self._name, self._parameter = "", Parameter({}, {})
        self._value: list[str] = []  # of what is no string

    @property
    def call(self) -> Call:
        return Call(self.name, "".join(self._pieces))

    def begin(self, name: str) -> str:
        """The next parameter."""
        self._name, self._parameter = name, self.parameters[name]
        self._value = []
        self.given.add(name)
        return self._piece(self._key() + '"') if self._parameter.is_text else ""

    def text(self, text: str) -> str:
        """More of its value."""
        if self._parameter.is_text:
            return self._piece(json.dumps(text, ensure_ascii=False)[1:-1])
        self._value.append(text)
        return ""

    def end(self) -> str:
        """The value is complete. One that is no string and has no text was left out."""
        if self._parameter.is_text:
            return self._piece('"')
        value = "".join(self._value)
        if not value.strip() and "string" not in self._parameter.types:
            return ""
        return self._piece(self._key() + self._parameter.json(value))

    def _key(self) -> str:
        return f"{', ' if self._pieces else '{'}{json.dumps(self._name, ensure_ascii=False)}: "

    def close(self) -> str:
        """The call is complete."""
        return self._piece("}" if self._pieces else "{}")

    def _piece(self, text: str) -> str:
        self._pieces.append(text)
        return text


def hermes_call(text: str) -> Call | None:
    """The call that JSON is; None where it is none."""
    try:
        value = json_value(text, strict=False)
    except NoValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json_value(arguments)
        except NoValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def unfinished_hermes_call(text: str) -> Call | None:
    """What there is of a call that was cut short."""
    name = _NAME.match(text)
    if not name:
        return None
    arguments = _ARGUMENTS.match(text, name.end())
    return Call(json.loads(name[1], strict=False), _open(text[arguments.end() :]) if arguments else "")


def _open(text: str) -> str:
    """The text of an object up to its last bracket, so that it is not taken for that of a whole call."""
    whole = JsonText()
    return text if whole.push(text) is None else whole.text.removesuffix("}")
