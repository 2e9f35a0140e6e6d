"""Rules for the text of an answer, by the names that clients of vLLM, SGLang and llama.cpp's server use.

A rule is a JSON schema, a regular expression, a list of choices, or a grammar. It holds for the answer after the
thinking. The field `grammar` is no such rule: as in llama.cpp's server, it holds for the whole output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pymtp.errors import InvalidRequestError
from pymtp.grammar.characters import Ranges, inverse, quoted, range_grammar
from pymtp.grammar.json_schema import MAX_TEXT
from pymtp.grammar.regex import pattern_grammar
from pymtp.validation import shown

RuleKind = Literal["json", "regex", "choice", "grammar"]
STRUCTURED_OUTPUTS = "structured_outputs"
# Fields with a rule, and its kind: vLLM's former names, SGLang's names, and llama.cpp's `json_schema`.
RULE_FIELDS: dict[str, RuleKind] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
    "json_schema": "json",
}
_STRUCTURED_KINDS: dict[str, RuleKind] = {"json": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
# Entries of structured_outputs that change the output and are not supported, each with its value that changes nothing
_UNSUPPORTED_ENTRIES = {
    "structural_tag": None,
    "whitespace_pattern": None,
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
}
_NO_EFFECT = ("disable_fallback", "_backend", "_backend_was_auto")  # entries about vLLM's own implementations
_NOT_IN_TEXT: Ranges = [(0x00, 0x00), (0xD800, 0xDFFF)]  # characters that no output contains


@dataclass(frozen=True)
class AnswerRule:
    """A rule for the answer.

    field: the name of the body's field that has the rule, for messages.
    value: a schema, the text of a regular expression or of a grammar, or a tuple of choices.
    """

    field: str
    kind: RuleKind
    value: Any

    # kept with the rule, which all prompts of a request share, and not for requests of other clients
    @cached_property
    def gbnf(self) -> str:
        """Return the rule as GBNF. Raises InvalidRequestError for a regular expression that no grammar can express."""
        return _gbnf(self.field, self.kind, self.value)


def read_rules(body: Mapping[str, Any]) -> list[AnswerRule]:
    """Return the rules of a body. Raises InvalidRequestError, which names the field, for one that is malformed."""
    fields = [(name, kind, body.get(name)) for name, kind in RULE_FIELDS.items()]
    return [
        AnswerRule(name, kind, _read_value(name, kind, value))
        for name, kind, value in [*fields, *_structured_outputs(body.get(STRUCTURED_OUTPUTS))]
        if value is not None
    ]


def has_rule(body: Mapping[str, Any]) -> bool:
    """Return whether a body has a rule or a schema for its answer, which can take seconds to read."""
    return any(body.get(name) is not None for name in ("response_format", STRUCTURED_OUTPUTS, *RULE_FIELDS))


def _structured_outputs(entries: object) -> Iterator[tuple[str, RuleKind, Any]]:
    """Yield the rules of vLLM's structured_outputs: names of fields, kinds and values."""
    if entries is None:
        return
    if not isinstance(entries, Mapping):
        raise InvalidRequestError(
            f"{STRUCTURED_OUTPUTS} must be an object, not {type(entries).__name__}", STRUCTURED_OUTPUTS
        )
    for name, value in entries.items():
        field = f"{STRUCTURED_OUTPUTS}.{name}"
        if name in _STRUCTURED_KINDS:
            yield field, _STRUCTURED_KINDS[name], value
        elif name == "json_object":
            if value not in (None, False, True):
                raise InvalidRequestError(f"{field} must be true or false, not {shown(value)}", field)
            yield field, "json", {"type": "object"} if value else None
        elif name not in _NO_EFFECT and value is not None and value != _UNSUPPORTED_ENTRIES.get(name):
            known = ", ".join((*_STRUCTURED_KINDS, "json_object"))
            raise InvalidRequestError(f"{field:.80}: not supported: use one of {known}", field)


def _read_value(field: str, kind: RuleKind, value: object) -> Any:
    if kind == "json":
        return _read_schema(field, value)
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(choice, str) for choice in value):
            raise InvalidRequestError(f"{field} must be a list of strings that is not empty", field)
        return tuple(value)
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(f"{field} must be a string that is not empty, not {shown(value)}", field)
    return value


def _read_schema(field: str, value: object) -> Mapping[str, Any]:
    """Return a schema that is given as an object or, as SGLang's clients give it, as its JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{field} is not JSON: {error}", field) from error
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{field} must be a JSON schema: an object, or its text", field)
    return value


def _gbnf(field: str, kind: RuleKind, value: Any) -> str:
    if kind != "choice" and len(value) > MAX_TEXT:
        raise InvalidRequestError(f"{field} is longer than {MAX_TEXT} characters", field)
    if kind == "grammar":
        return str(value)
    if kind == "choice":
        text = f"root ::= {' | '.join(map(quoted, value))}\n"
    else:
        try:
            text = f"root ::= {pattern_grammar(_anchored(value), _plain_characters)}\n"
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{field}={shown(value)} cannot be enforced: {error}", field) from error
    if len(text) > MAX_TEXT:
        raise InvalidRequestError(f"the grammar for {field} has more than {MAX_TEXT} characters", field)
    return text


def _anchored(regex: str) -> str:
    """Return a regular expression that matches the whole answer, with its anchors around all of its alternatives."""
    inner = regex.removeprefix("^")
    n_backslashes = len(inner) - 1 - len(inner[:-1].rstrip("\\")) if inner.endswith("$") else 1
    return f"^(?:{inner[:-1] if n_backslashes % 2 == 0 else inner})$"


def _plain_characters(ranges: Ranges) -> str:
    """Return GBNF for one character of some ranges."""
    characters = inverse([*inverse(ranges), *_NOT_IN_TEXT])
    if not characters:
        raise ValueError("a character class matches no character")
    single = characters[0][0] == characters[-1][1]
    return quoted(chr(characters[0][0])) if single else range_grammar(characters)
