"""Estimates of the characters that an operation of a chat template will make, before the operation runs.

The result of most operations is at most a few times as long as their input. The operations here may multiply the input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

from pymtp.chat.render_budget import (
    CHARACTERS_PER_STEP,
    ITEM_WEIGHT,
    RenderBudget,
    RenderLimitError,
    bit_count,
    check_bits,
)

MAX_ATTRIBUTES = 32  # dots and commas in the attribute path of a filter

_DIGITS = re.compile(r"\d+")
_NESTED = re.compile(r"\{[^{}]*:[^{}]*\{")  # a field whose width is taken from another value


def operator_cost(budget: RenderBudget, operator: str, left: object, right: object) -> int:
    """Estimate the characters of `left operator right`. Raises RenderLimitError for integers that grow too large."""
    if operator == "%" and isinstance(left, (str, bytes)):
        return _percent_format_cost(budget, left, right)
    if operator == "+":
        return _length(left) + _length(right)
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            check_bits(bit_count(left) + bit_count(right) - 1)
        return max(_length(left) * _magnitude(right), _length(right) * _magnitude(left))
    if operator == "**" and isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
        check_bits(bit_count(left) * abs(right))
    return 0


def method_cost(budget: RenderBudget, method: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Estimate the characters of the result of a string's or a number's method; 0 for other calls. Counts steps."""
    owner = getattr(method, "__self__", None)
    if owner is None:
        method = getattr(method, "__wrapped__", None)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if isinstance(owner, int):
        return sum(map(_magnitude, (*args, *kwargs.values()))) if name == "to_bytes" else 0
    if not isinstance(owner, (str, bytes)):
        return 0
    budget.count_input(owner)
    if name in _QUADRATIC_METHODS:
        budget.step(len(owner) * sum(map(_length, (*args, *kwargs.values()))) // CHARACTERS_PER_STEP)
    if name in ("encode", "decode"):
        _check_codec(*args, **kwargs)
    if name in ("format", "format_map"):
        return _format_cost(budget, str(owner), (*args, *kwargs.values()))
    return _METHOD_COSTS[name](budget, owner, *args, **kwargs) if name in _METHOD_COSTS else 0


def filter_cost(budget: RenderBudget, name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Estimate the characters of `value | name(…)`, and count steps. Raises RenderLimitError for sums of lists."""
    budget.count_input(value, *args, *kwargs.values())
    if name in _NO_COST:
        return 0
    if name not in _CONSTANT_TIME and not isinstance(value, (str, bytes)):
        budget.step(_length(value) // ITEM_WEIGHT)  # few steps: a filter iterates faster than a loop
    if name in _ATTRIBUTE_POSITIONS:
        at = _ATTRIBUTE_POSITIONS[name]
        budget.step(
            _count_further_attributes(kwargs.get("attribute", args[at] if len(args) > at else None)) * _length(value)
        )
    if name == "trim":
        budget.step(_length(value) * sum(map(_length, (*args, *kwargs.values()))) // CHARACTERS_PER_STEP)
    if name in _SLOW_FILTERS:  # these take long per character, so the budget counts a step for every few characters
        budget.step(budget.weigh(value) // ITEM_WEIGHT)
    if name == "format":
        return _percent_format_cost(budget, str(value), kwargs or tuple(args))
    if name == "sum" and not isinstance(kwargs.get("start", args[1] if len(args) > 1 else 0), (int, float)):
        raise RenderLimitError("the template sums up values that are not numbers")
    return _FILTER_COSTS[name](budget, value, *args, **kwargs) if name in _FILTER_COSTS else 0


def _count_further_attributes(names: object) -> int:
    """Count the dots and commas in an attribute path such as "a.b,c". Each means one more lookup in each list item.

    Raises RenderLimitError for more than MAX_ATTRIBUTES.
    """
    n = names.count(".") + names.count(",") if isinstance(names, str) else 0
    if n > MAX_ATTRIBUTES:
        raise RenderLimitError(f"an attribute path has {n} dots and commas, and at most {MAX_ATTRIBUTES} are allowed")
    return n


def _check_codec(encoding: object = "utf-8", errors: object = None) -> None:
    """Raise RenderLimitError for an unusual encoding: "punycode" takes hours for a long text."""
    if str(encoding).lower().replace("_", "-") not in _ENCODINGS:
        raise RenderLimitError(f"the encoding {str(encoding)[:100]!r} is not one of {', '.join(_ENCODINGS)}")


def _magnitude(value: object) -> int:
    return abs(int(value)) if isinstance(value, int) else 0


def _length(value: object) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _total_width(form: str) -> int:
    """Add up all numbers in a format string: each may be the width of a field."""
    return sum(int(digits) if len(digits) < len(str(2**63)) else 2**63 for digits in _DIGITS.findall(form))


def _percent_format_cost(budget: RenderBudget, form: str | bytes, values: object) -> int:
    text = form if isinstance(form, str) else form.decode("latin-1")
    star_widths = sum(map(_magnitude, values if isinstance(values, tuple) else (values,))) if "*" in text else 0
    return len(text) + _total_width(text) + text.count("%") * (budget.weigh(values) + star_widths)


def _format_cost(budget: RenderBudget, form: str, values: Sequence[object]) -> int:
    if _NESTED.search(form):
        raise RenderLimitError("a format takes the width of a field from a value")
    return len(form) + _total_width(form) + form.count("{") * sum(map(budget.weigh, values))


def _width_cost(budget: RenderBudget, text: Any, width: object = 80, *_: object, **__: object) -> int:
    return budget.weigh(text) + _magnitude(width)


def _replace_cost(budget: RenderBudget, s: Any, old: Any = "", new: Any = "", *_: object, **__: object) -> int:
    text = s if isinstance(s, (str, bytes)) else str(s)
    return len(text) + text.count(old if isinstance(old, type(text)) else str(old)) * budget.weigh(new)  # type: ignore[arg-type]


def _translate_cost(budget: RenderBudget, text: Any, table: object = None, *_: object, **__: object) -> int:
    return len(text) * (1 + max(map(budget.weigh, table.values()), default=0) if isinstance(table, Mapping) else 1)


def _expandtabs_cost(budget: RenderBudget, text: Any, tabsize: object = 8) -> int:
    return len(text) * (1 + _magnitude(tabsize))


def _join_cost(budget: RenderBudget, value: Any, d: object = "", attribute: object = None) -> int:
    return budget.weigh(value) + _length(value) * budget.weigh(d)


def _indent_cost(budget: RenderBudget, s: Any, width: object = 4, *_: object, **__: object) -> int:
    return budget.weigh(s) + (str(s).count("\n") + 1) * (_length(width) or _magnitude(width))


def _wordwrap_cost(
    budget: RenderBudget,
    s: Any,
    width: object = 79,
    _: object = True,
    wrapstring: object = "\n",
    *__: object,
    **___: object,
) -> int:
    longest = max(map(len, str(s).splitlines()), default=0)
    # for each line, textwrap copies the rest of a long word
    budget.step(longest**2 // max(1, _magnitude(width)) // CHARACTERS_PER_STEP)
    lines = str(s).count("\n") + 2 * budget.weigh(s) // max(1, _magnitude(width)) + 1
    return budget.weigh(s) + lines * _length(wrapstring)


def _batch_cost(budget: RenderBudget, value: object, linecount: object = 1, fill_with: object = None) -> int:
    return ITEM_WEIGHT * _magnitude(linecount)


def _round_cost(budget: RenderBudget, value: object, precision: object = 0, method: object = "common") -> int:
    check_bits(bit_count(10) * _magnitude(precision))
    return 0


def _tojson_cost(
    budget: RenderBudget,
    value: Any,
    ensure_ascii: object = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: object = False,
) -> int:
    weight = budget.weigh(value)
    decoration = sum(map(_length, separators)) if isinstance(separators, (list, tuple)) else 0
    if indent is not None:
        decoration += max(1, _depth(value)) * (_length(indent) or _magnitude(indent))
    return weight + (1 + weight // ITEM_WEIGHT) * decoration


def _depth(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 0


_METHOD_COSTS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width_cost),
    "expandtabs": _expandtabs_cost,
    "join": lambda budget, text, parts=(): _join_cost(budget, parts, text),
    "replace": _replace_cost,
    "translate": _translate_cost,
}
_FILTER_COSTS: dict[str, Callable[..., int]] = {
    "batch": _batch_cost,
    "center": _width_cost,
    "indent": _indent_cost,
    "join": _join_cost,
    "replace": _replace_cost,
    "round": _round_cost,
    "tojson": _tojson_cost,
    "wordwrap": _wordwrap_cost,
}
# Methods whose time grows with the length of the string multiplied by the length of the argument.
_QUADRATIC_METHODS = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"})
_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1")
# Filters with an argument `attribute`, and its position; `map` takes it only by name.
_ATTRIBUTE_POSITIONS = dict.fromkeys(("groupby", "rejectattr", "selectattr", "sum"), 0)
_ATTRIBUTE_POSITIONS |= {**dict.fromkeys(("join", "max", "min", "unique"), 1), "sort": 2, "map": 2**31}
# Filters whose time does not depend on the length of the value.
_CONSTANT_TIME = frozenset({"count", "d", "default", "first", "last", "length"})
# The most frequent filters, whose result is about as long as the value.
_NO_COST = frozenset({"items", "lower", "safe", "string", "upper"})
# Filters that take as long as a step for every few characters.
_SLOW_FILTERS = frozenset({"pprint", "striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"})
