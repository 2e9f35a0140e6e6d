"""What is wrong with a body, in plain words: pydantic's errors name its own types, and ways through unions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Step = str | int
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DEEP = 8  # steps of a path that are told
_LONG = 40  # characters of a name, and twice as many of a value, that are told
_MISSING = object()

# what a value has to be, by the types of pydantic's errors
_KINDS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
}
_RANGES = {
    "greater_than_equal": "must be at least {ge}, not {given}",
    "greater_than": "must be more than {gt}, not {given}",
    "less_than_equal": "must be at most {le}, not {given}",
    "less_than": "must be less than {lt}, not {given}",
    "finite_number": "must be a finite number, not {given}",
    "too_short": "must have {min_length} or more entries, not {actual_length}",
    "too_long": "must have at most {max_length} entries, not {actual_length}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must have the form {pattern}, not {given}",
    "string_unicode": "must be valid Unicode",
    "union_tag_invalid": "must be one of {expected_tags}, not {given}",
    "none_required": "is not supported here: leave it out",
    "missing": "is missing",
}


class Wrong(NamedTuple):
    """field: as one writes it, such as messages[0].content; None for the body itself."""

    field: str | None
    message: str


class _Found(NamedTuple):
    path: tuple[Step, ...]
    value: Any
    error: Mapping[str, Any]


def wrong_field(errors: Sequence[Mapping[str, Any]], body: object) -> Wrong:
    """The first field that is wrong. Of a field that may be one of several types, the one is told that fits it best: it
    has no fault so far into the value."""
    first = errors[0]["loc"][:2]  # of several fields the first one
    found = [_found(error, body) for error in errors if error["loc"][:2] == first]
    best = max(found, key=lambda one: (len(one.path), [step if isinstance(step, int) else 0 for step in one.path]))
    same = [one for one in found if one.path == best.path]
    # a value of one of the types, but out of its range, is of that type
    same = [one for one in same if one.error["type"] not in _KINDS] or same
    field = _written(best.path) or None
    return Wrong(field, _said(field or "the body", same))


def _found(error: Mapping[str, Any], body: object) -> _Found:
    """Where an error is. Of its path those steps are left out that are none of the body: types of a union."""
    kind, steps = error["type"], error["loc"][1:]
    path: list[Step] = []
    value = body if error["loc"][0] == "body" else error["input"]
    for i, step in enumerate(steps):
        if kind == "missing" and i == len(steps) - 1:
            path.append(step)
            value = _MISSING
        elif (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int)):
            path.append(step)
            value = value[step]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        if not isinstance(value, dict):
            return _Found(tuple(path), value, {"type": "dict_type"})
        tag = error["ctx"]["discriminator"].strip("'")
        path.append(tag)
        value = value.get(tag, _MISSING)
        if value is _MISSING:
            error = {"type": "missing"}
    return _Found(tuple(path), value, error)


def _said(where: str, same: Sequence[_Found]) -> str:
    error, given = same[0].error, _given(same[0].value)
    kind, ctx = error["type"], error.get("ctx") or {}
    if error.get("loc", ())[-1:] == ("[key]",):
        return f"{where}: a name in it must have the form {ctx.get('pattern', 'that is asked for')}"
    if kind in _KINDS:
        wanted = dict.fromkeys(
            _KINDS[one.error["type"]].format(**_plain(one.error)) for one in same if one.error["type"] in _KINDS
        )
        return f"{where} must be {_listed(list(wanted))}, not {given}"
    if kind in _RANGES:
        return f"{where} {_RANGES[kind].format(given=given, **ctx)}"
    return f"{where}: {error['msg']}"


def _plain(error: Mapping[str, Any]) -> dict[str, str]:
    """The values that are right, as JSON has them."""
    expected = (error.get("ctx") or {}).get("expected", "")
    return {"expected": "false" if expected == "False" else expected}


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _given(value: object) -> str:
    """What came, for a message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 2 * _LONG else f"{text[: 2 * _LONG]}…"


def _written(path: Sequence[Step]) -> str:
    text = ""
    for step in path[:_DEEP]:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step) and len(step) <= _LONG:
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step if len(step) <= _LONG else step[:_LONG] + '…')}]"
    return text
