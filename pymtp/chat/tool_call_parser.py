"""Parsers of single tool calls: XML parameters one by one, and calls in Hermes' JSON form."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from contextlib import suppress
from functools import partial
from typing import Any

from pymtp.chat.json_scanner import JsonObjectScanner
from pymtp.chat.lenient_json import NotJsonError, parse_json, parse_python_literal
from pymtp.chat.output_events import ToolCall
from pymtp.chat.tags import SPACES
from pymtp.chat.tool_parameters import ToolParameter, ToolParameters

_NAME = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"arguments"\s*:\s*(?=\{)')


def read_name(written: str, known: Container[str]) -> str:
    """Return the name in a tag, without the quotes and spaces that models may write around it.

    known: the known names. They are returned as they are, because a name may have quotes of its own.
    """
    bare = written.strip(SPACES + "\"'`")
    return written if written in known or not bare else bare


class ToolCallBuilder:
    """A builder of one XML call from its parameters. Each method returns the next piece of the JSON arguments."""

    def __init__(self, index: int, name: str, parameters: ToolParameters) -> None:
        self.index, self.name, self.parameters = index, name, parameters
        self.seen_parameters: set[str] = set()
        self._pieces: list[str] = []
        self._parameter_name, self._parameter = "", ToolParameter({}, {})
        self._value: list[str] = []  # pieces of the current value, if it is not a string

    @property
    def call(self) -> ToolCall:
        """Return the call as far as it is built."""
        return ToolCall(self.name, "".join(self._pieces))

    def begin_parameter(self, name: str) -> str:
        """Begin the next parameter."""
        self._parameter_name, self._parameter = name, self.parameters[name]
        self._value = []
        self.seen_parameters.add(name)
        return self._emit(self._key() + '"') if self._parameter.is_string else ""

    def add_text(self, text: str) -> str:
        """Add text to the value of the parameter."""
        if self._parameter.is_string:
            return self._emit(json.dumps(text, ensure_ascii=False)[1:-1])
        self._value.append(text)
        return ""

    def end_parameter(self) -> str:
        """End the parameter. A parameter without text is left out if its schema allows no string."""
        if self._parameter.is_string:
            return self._emit('"')
        value = "".join(self._value)
        if not value.strip() and "string" not in self._parameter.types:
            return ""
        return self._emit(self._key() + self._parameter.to_json(value))

    def _key(self) -> str:
        return f"{', ' if self._pieces else '{'}{json.dumps(self._parameter_name, ensure_ascii=False)}: "

    def end_call(self) -> str:
        """End the call."""
        return self._emit("}" if self._pieces else "{}")

    def _emit(self, text: str) -> str:
        self._pieces.append(text)
        return text


def parse_hermes_call(text: str) -> ToolCall | None:
    """Parse a complete call in Hermes' form; return None for JSON that is not a call."""
    value = _parse_object(text)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parse_object(arguments)
    elif arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _parse_object(text: str) -> Any:
    """Parse JSON, or a Python literal: models also write 'single quotes'. Return None for other text."""
    for parse in (partial(parse_json, strict=False), parse_python_literal):
        with suppress(NotJsonError):
            return parse(text)
    return None


def parse_unfinished_hermes_call(text: str) -> ToolCall | None:
    """Parse a call in Hermes' form that was cut off; return None if even its name is incomplete."""
    name = _NAME.match(text)
    if not name:
        return None
    arguments = _ARGUMENTS.match(text, name.end())
    return ToolCall(json.loads(name[1], strict=False), _unclosed(text[arguments.end() :]) if arguments else "")


def _unclosed(text: str) -> str:
    """Return the text of an object without its last brace, so that it cannot pass for the object of a whole call."""
    scanner = JsonObjectScanner()
    return text if scanner.push(text) is None else scanner.text.removesuffix("}")
