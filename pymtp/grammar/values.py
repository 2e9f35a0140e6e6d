"""Validation of the values that a schema lists, against its other keywords."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pymtp.grammar.automaton import PatternMatcher
from pymtp.grammar.keywords import TYPES, SchemaError, Several, find_ref, is_number
from pymtp.grammar.numbers import is_multiple

MAX_STEPS = 32  # levels of schemas that are followed
MAX_VISITS = 10_000  # schemas that are followed for one value; short schemas may combine endlessly many


def value_key(value: object) -> str:
    """Return a text that is the same for two JSON values if and only if they are equal: 1 is 1.0, and not true."""
    return json.dumps(_normalized(value), sort_keys=True)


def _normalized(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [*map(_normalized, value)]
    return {name: _normalized(item) for name, item in value.items()} if isinstance(value, dict) else value


class Validator:
    """A validator of values against the schemas in one document. Unknown and malformed keywords are ignored."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._matchers: dict[str, PatternMatcher | None] = {}
        self._enums: dict[int, tuple[object, set[str]]] = {}  # by id; the list is kept, so that its id stays its own

    def fits(self, value: Any, schema: object) -> bool:
        """Return whether a value fulfils a schema."""
        return self._fits(value, schema, MAX_STEPS, iter(range(MAX_VISITS)))

    def _fits(self, value: Any, schema: object, steps: int, visits: Iterator[int]) -> bool:
        if not isinstance(schema, dict) or not steps or next(visits, None) is None:
            return schema is not False

        def inner(part: object, item: Any = value) -> bool:
            return self._fits(item, part, steps - 1, visits)

        types = schema.get("type")
        names = [name for name in (types if isinstance(types, list) else [types]) if isinstance(name, str)]
        if names and not any(TYPES[name](value) for name in names if name in TYPES):
            return schema.get("nullable") is True and value is None
        try:
            referred = find_ref(self._root, schema["$ref"], "#") if "$ref" in schema else True
        except SchemaError:
            referred = True
        return (
            inner(referred)
            and ("const" not in schema or value_key(value) == value_key(schema["const"]))
            and (not isinstance(schema.get("enum"), list) or value_key(value) in self._keys(schema["enum"]))
            and all(map(inner, _listed(schema, "allOf")))
            and ("not" not in schema or not inner(schema["not"]))
            and (not (options := _listed(schema, "anyOf")) or any(map(inner, options)))
            and (not (options := _listed(schema, "oneOf")) or sum(map(inner, options)) == 1)
            and self._fits_type(value, schema, inner)
        )

    def _keys(self, values: list[Any]) -> set[str]:
        if id(values) not in self._enums:
            self._enums[id(values)] = values, {value_key(value) for value in values}
        return self._enums[id(values)][1]

    def _fits_type(self, value: Any, schema: dict[str, Any], inner: Any) -> bool:
        """Return whether a value fulfils the keywords of its type."""
        if isinstance(value, str):
            patterns = Several.of(schema["pattern"]) if "pattern" in schema else ()
            return _fits_size(len(value), schema, "Length") and all(self._found(each, value) for each in patterns)
        if isinstance(value, list):
            prefix, items = _listed(schema, "prefixItems"), schema.get("items", schema.get("unevaluatedItems", True))
            contained = Several.of(schema["contains"]) if "contains" in schema else ()
            return (
                _fits_size(len(value), schema, "Items")
                and all(any(inner(part, item) for item in value) for part in contained)
                and all(inner(prefix[i] if i < len(prefix) else items, item) for i, item in enumerate(value))
                and (schema.get("uniqueItems") is not True or len({*map(value_key, value)}) == len(value))
            )
        if isinstance(value, dict):
            return (
                _fits_size(len(value), schema, "Properties")
                and all(name in value for name in _listed(schema, "required") if isinstance(name, str))
                and all(inner(part, item) for name, item in value.items() for part in self._parts(schema, name))
                and all(inner(schema.get("propertyNames", True), name) for name in value)
            )
        return not is_number(value) or _fits_bounds(value, schema)

    def _parts(self, schema: dict[str, Any], name: str) -> list[object]:
        """Return the schemas that the value of a property must fulfil."""
        parts, patterns = ({**_mapping(schema, keyword)} for keyword in ("properties", "patternProperties"))
        found = [parts[name]] if name in parts else []
        found += [part for pattern, part in patterns.items() if self._found(pattern, name)]
        rest = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        return found or [rest]

    def _found(self, pattern: object, text: str) -> bool:
        if not isinstance(pattern, str):
            return True
        if pattern not in self._matchers:
            try:
                self._matchers[pattern] = PatternMatcher(pattern)
            except (ValueError, RecursionError):
                self._matchers[pattern] = None
        try:
            matcher = self._matchers[pattern]
            return matcher is None or matcher.matches(text)
        except (ValueError, RecursionError):
            return True


def _mapping(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _listed(schema: dict[str, Any], keyword: str) -> list[Any]:
    values = schema.get(keyword)
    return values if isinstance(values, list) else []


def _fits_size(size: int, schema: dict[str, Any], of: str) -> bool:
    low, high = schema.get(f"min{of}", 0), schema.get(f"max{of}", math.inf)
    return (not is_number(low) or low <= size) and (not is_number(high) or size <= high)


def _fits_bounds(value: float, schema: dict[str, Any]) -> bool:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    return (
        (not is_number(low) or (low <= value and not (above is True and low == value)))
        and (not is_number(high) or (value <= high and not (below is True and high == value)))
        and (not is_number(above) or value > above)
        and (not is_number(below) or value < below)
        and (
            "multipleOf" not in schema
            or not is_number(schema["multipleOf"])
            or is_multiple(value, schema["multipleOf"])
        )
    )
