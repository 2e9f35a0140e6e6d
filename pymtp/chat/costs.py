"""Estimates of what an operation of a chat template makes, before it is made: characters of its text.

Most operations make no more than a few times what they are given. Those that multiply are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from pymtp.chat.limits import BITS, PART, READ, Budget, OverrunError, bits

ATTRIBUTES = 32  # dots and commas of an attribute's name in a filter

_DIGITS = re.compile(r"\d+")
_NESTED = re.compile(r"\{[^{}]*:[^{}]*\{")  # a field whose width is a value itself


def operator_cost(budget: Budget, operator: str, left: object, right: object) -> int:
    """Estimate `left operator right`. Raises OverrunError for whole numbers that get too large."""
    if operator == "%" and isinstance(left, (str, bytes)):
        return _percent_cost(budget, left, right)
    if operator == "+":
        return _length(left) + _length(right)
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(bits(left) + bits(right) - 1)
        return max(_length(left) * _whole(right), _length(right) * _whole(left))
    if operator == "**" and isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        _check_bits(bits(left) * abs(right))
    return 0


def method_cost(budget: Budget, method: object, args: Sequence[Any], more: Mapping[str, Any]) -> int:
    """Estimate a call of a method of a text or a number; 0 for other calls."""
    owner = getattr(method, "__self__", None)
    if owner is None:
        method = getattr(method, "__wrapped__", None)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if isinstance(owner, int):
        return sum(map(_whole, (*args, *more.values()))) if name == "to_bytes" else 0
    if not isinstance(owner, (str, bytes)):
        return 0
    budget.read(owner)
    if name in _QUADRATIC:
        budget.step(len(owner) * sum(map(_length, (*args, *more.values()))) // READ)
    if name in ("encode", "decode"):
        _check_codec(*args, **more)
    if name in ("format", "format_map"):
        return _format_cost(budget, str(owner), (*args, *more.values()))
    return _METHODS[name](budget, owner, *args, **more) if name in _METHODS else 0


def filter_cost(budget: Budget, name: str, value: Any, args: Sequence[Any], more: Mapping[str, Any]) -> int:
    """Estimate `value | name(…)`. Raises OverrunError for sums of lists."""
    budget.read(value, *args, *more.values())
    if name in _PLAIN:
        return 0
    if name not in _CONSTANT and not isinstance(value, (str, bytes)):
        budget.step(_length(value) // PART)  # a filter goes through a list faster than a loop
    if name in _BY_ATTRIBUTE:
        at = _BY_ATTRIBUTE[name]
        budget.step(_attributes(more.get("attribute", args[at] if len(args) > at else None)) * _length(value))
    if name == "trim":
        budget.step(_length(value) * sum(map(_length, (*args, *more.values()))) // READ)
    if name in _SLOW:  # a few characters take as long as a step
        budget.step(budget.weigh(value) // PART)
    if name == "format":
        return _percent_cost(budget, str(value), more or tuple(args))
    if name == "sum" and not isinstance(more.get("start", args[1] if len(args) > 1 else 0), (int, float)):
        raise OverrunError("it sums up what are no numbers")
    return _FILTERS[name](budget, value, *args, **more) if name in _FILTERS else 0


def _check_bits(n: int) -> None:
    if n > BITS:
        raise OverrunError(f"it computes a number of more than {BITS} bits")


def _attributes(names: object) -> int:
    """Count the further attributes in "a.b,c", which are looked for in each part of a list. Raise OverrunError for more
    than ATTRIBUTES."""
    n = names.count(".") + names.count(",") if isinstance(names, str) else 0
    if n > ATTRIBUTES:
        raise OverrunError(f"it asks for an attribute with {n} dots and commas, and {ATTRIBUTES} are the most")
    return n


def _check_codec(encoding: object = "utf-8", errors: object = None) -> None:
    """Raise OverrunError for encodings that texts are not in: "punycode" takes hours for a long text."""
    if str(encoding).lower().replace("_", "-") not in _ENCODINGS:
        raise OverrunError(f"it asks for the encoding {str(encoding)[:100]!r}: {', '.join(_ENCODINGS)} are taken")


def _whole(value: object) -> int:
    return abs(int(value)) if isinstance(value, int) else 0


def _length(value: object) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _widths(form: str) -> int:
    """All numbers in a format: any may be the width of a field."""
    return sum(int(digits) if len(digits) < len(str(2**63)) else 2**63 for digits in _DIGITS.findall(form))


def _percent_cost(budget: Budget, form: str | bytes, values: object) -> int:
    text = form if isinstance(form, str) else form.decode("latin-1")
    given = sum(map(_whole, values if isinstance(values, tuple) else (values,))) if "*" in text else 0
    return len(text) + _widths(text) + text.count("%") * (budget.weigh(values) + given)


def _format_cost(budget: Budget, form: str, values: Sequence[object]) -> int:
    if _NESTED.search(form):
        raise OverrunError("it takes the width of a field from a value")
    return len(form) + _widths(form) + form.count("{") * sum(map(budget.weigh, values))


def _width_cost(budget: Budget, text: Any, width: object = 80, *_: object, **__: object) -> int:
    return budget.weigh(text) + _whole(width)


def _replace_cost(budget: Budget, s: Any, old: Any = "", new: Any = "", *_: object, **__: object) -> int:
    text = s if isinstance(s, (str, bytes)) else str(s)
    return len(text) + text.count(old if isinstance(old, type(text)) else str(old)) * budget.weigh(new)  # type: ignore[arg-type]


def _translate_cost(budget: Budget, text: Any, table: object = None, *_: object, **__: object) -> int:
    return len(text) * (1 + max(map(budget.weigh, table.values()), default=0) if isinstance(table, Mapping) else 1)


def _tabs_cost(budget: Budget, text: Any, tabsize: object = 8) -> int:
    return len(text) * (1 + _whole(tabsize))


def _join_cost(budget: Budget, value: Any, d: object = "", attribute: object = None) -> int:
    return budget.weigh(value) + _length(value) * budget.weigh(d)


def _indent_cost(budget: Budget, s: Any, width: object = 4, *_: object, **__: object) -> int:
    return budget.weigh(s) + (str(s).count("\n") + 1) * (_length(width) or _whole(width))


def _wrap_cost(
    budget: Budget, s: Any, width: object = 79, _: object = True, wrapstring: object = "\n", *__: object, **___: object
) -> int:
    longest = max(map(len, str(s).splitlines()), default=0)
    budget.step(longest**2 // max(1, _whole(width)) // READ)  # what is left of a long word is copied for each line
    lines = str(s).count("\n") + 2 * budget.weigh(s) // max(1, _whole(width)) + 1
    return budget.weigh(s) + lines * _length(wrapstring)


def _batch_cost(budget: Budget, value: object, linecount: object = 1, fill_with: object = None) -> int:
    return PART * _whole(linecount)


def _round_cost(budget: Budget, value: object, precision: object = 0, method: object = "common") -> int:
    _check_bits(bits(10) * _whole(precision))
    return 0


def _json_cost(
    budget: Budget,
    value: Any,
    ensure_ascii: object = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: object = False,
) -> int:
    weight = budget.weigh(value)
    around = sum(map(_length, separators)) if isinstance(separators, (list, tuple)) else 0
    if indent is not None:
        around += max(1, _depth(value)) * (_length(indent) or _whole(indent))
    return weight + (1 + weight // PART) * around


def _depth(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 0


_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width_cost),
    "expandtabs": _tabs_cost,
    "join": lambda budget, text, parts=(): _join_cost(budget, parts, text),
    "replace": _replace_cost,
    "translate": _translate_cost,
}
_FILTERS: dict[str, Callable[..., int]] = {
    "batch": _batch_cost,
    "center": _width_cost,
    "indent": _indent_cost,
    "join": _join_cost,
    "replace": _replace_cost,
    "round": _round_cost,
    "tojson": _json_cost,
    "wordwrap": _wrap_cost,
}
# which look for each character of what they are given from each place
_QUADRATIC = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"})
_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1")
# filters that look for an attribute, and where they are given it
_BY_ATTRIBUTE = dict.fromkeys(("groupby", "rejectattr", "selectattr", "sum"), 0)
_BY_ATTRIBUTE |= {**dict.fromkeys(("join", "max", "min", "unique"), 1), "sort": 2, "map": 2**31}
_CONSTANT = frozenset({"count", "d", "default", "first", "last", "length"})  # whatever the length of a list
_PLAIN = frozenset({"items", "lower", "safe", "string", "upper"})  # by far the most
_SLOW = frozenset({"pprint", "striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"})
