"""Messages for validation errors in the words of the API.

pydantic's own messages name pydantic's types, and the alternatives of unions in the paths of fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Step = str | int
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
MAX_PATH_STEPS = 8  # the most steps that a message shows of a field's path
MAX_NAME_CHARACTERS = 40  # the most characters that a message shows of a name; for a value, twice this number
_MISSING = object()

# The types that messages say are expected, by the `type` of pydantic's error.
_TYPE_NAMES = {
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
_CONSTRAINTS = {
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


class FieldError(NamedTuple):
    """The message of a validation error.

    field: the path of the wrong field, such as messages[0].content; None if the body itself is wrong.
    """

    field: str | None
    message: str


class _LocatedError(NamedTuple):
    path: tuple[Step, ...]
    value: Any
    error: Mapping[str, Any]


def first_field_error(errors: Sequence[Mapping[str, Any]], body: object) -> FieldError:
    """Return the message for the first wrong field.

    If a field may have one of several types, pydantic reports errors for each type. Here only the errors that lie
    deepest in the value are reported, because they belong to the type that the client meant.
    """
    first_field = errors[0]["loc"][:2]  # ("body", name of a field), or ("body",)
    located_errors = [_locate(error, body) for error in errors if error["loc"][:2] == first_field]
    best = max(
        located_errors,
        key=lambda located: (len(located.path), [step if isinstance(step, int) else 0 for step in located.path]),
    )
    errors_at_field = [located for located in located_errors if located.path == best.path]
    # A constraint is only checked for a value of the right type: then errors about other types are left out.
    errors_at_field = [
        located for located in errors_at_field if located.error["type"] not in _TYPE_NAMES
    ] or errors_at_field
    field = _field_path(best.path) or None
    return FieldError(field, _message(field or "the body", errors_at_field))


def _locate(error: Mapping[str, Any], body: object) -> _LocatedError:
    """Return the path and the value to which an error refers; the path has no steps for the alternatives of unions."""
    error_type, steps = error["type"], error["loc"][1:]
    path: list[Step] = []
    value = body if error["loc"][0] == "body" else error["input"]
    for i, step in enumerate(steps):
        if error_type == "missing" and i == len(steps) - 1:
            path.append(step)
            value = _MISSING
        elif (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int)):
            path.append(step)
            value = value[step]
    if error_type in ("union_tag_invalid", "union_tag_not_found"):
        if not isinstance(value, dict):
            return _LocatedError(tuple(path), value, {"type": "dict_type"})
        tag = error["ctx"]["discriminator"].strip("'")
        path.append(tag)
        value = value.get(tag, _MISSING)
        if value is _MISSING:
            error = {"type": "missing"}
    return _LocatedError(tuple(path), value, error)


def _message(subject: str, errors_at_field: Sequence[_LocatedError]) -> str:
    error, given = errors_at_field[0].error, _shown_value(errors_at_field[0].value)
    error_type, ctx = error["type"], error.get("ctx") or {}
    if error.get("loc", ())[-1:] == ("[key]",):
        return f"{subject}: each name in it must have the form {ctx.get('pattern', 'of the schema')}"
    if error_type in _TYPE_NAMES:
        expected = dict.fromkeys(
            _TYPE_NAMES[located.error["type"]].format(**_expected_values(located.error))
            for located in errors_at_field
            if located.error["type"] in _TYPE_NAMES
        )
        return f"{subject} must be {_join_words(list(expected))}, not {given}"
    if error_type in _CONSTRAINTS:
        return f"{subject} {_CONSTRAINTS[error_type].format(given=given, **ctx)}"
    return f"{subject}: {error['msg']}"


def _expected_values(error: Mapping[str, Any]) -> dict[str, str]:
    """Return the expected values as JSON spells them."""
    expected = (error.get("ctx") or {}).get("expected", "")
    return {"expected": "false" if expected == "False" else expected}


def _join_words(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown_value(value: object) -> str:
    """Return the text by which messages show a value."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = repr(value)
    except ValueError:  # repr() raises ValueError for integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 2 * MAX_NAME_CHARACTERS else f"{text[: 2 * MAX_NAME_CHARACTERS]}…"


def _field_path(path: Sequence[Step]) -> str:
    text = ""
    for step in path[:MAX_PATH_STEPS]:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step) and len(step) <= MAX_NAME_CHARACTERS:
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step if len(step) <= MAX_NAME_CHARACTERS else step[:MAX_NAME_CHARACTERS] + '…')}]"
    return text
