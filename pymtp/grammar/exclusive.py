"""`oneOf` as a list of schemas of which no value fulfils two, so that it means the same as `anyOf`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from pymtp.grammar.complement import complement
from pymtp.grammar.keywords import ANNOTATIONS, TYPES, KeywordReport, SchemaError, non_empty_list
from pymtp.grammar.values import Validator, value_key

MAX_PAIRS = 20_000  # pairs of options that are compared
MAX_MERGES = 2_000  # pairs of plain schemas that are merged to compare them, of which each may take a millisecond
MAX_DEPTH = 4  # levels of properties in which two options are compared
_BOUNDS = {
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_TOO_MANY = "it has too many options to compare"
Plain = dict[str, Any]
Alternatives = Callable[[object], list[Plain]]


class ExclusiveOptions:
    """Rewrites the `oneOf` of the schemas in one JSON document."""

    def __init__(
        self,
        root: object,
        report: KeywordReport,
        alternatives: Alternatives,
        both: Callable[[Plain, Plain], Plain | None],
    ) -> None:
        """Prepare the rewriting.

        alternatives: returns the plain schemas of a combination; they may allow more values, but not less.
        both: returns the plain schema of the values that are valid for two plain ones; None if there are none.
        """
        self._report, self._alternatives, self._both, self._validator = report, alternatives, both, Validator(root)
        self._merges = 0  # pairs of plain schemas that were merged for one `oneOf`

    def options(self, schema: Mapping[str, Any], path: str) -> list[object]:
        """Return schemas of which one at most holds for a value, and of which one holds if the `oneOf` does.

        Two options that overlap are kept apart by the opposite of the other one, if schemas can express it. If they
        cannot, the keyword is reported as left out, and the options are returned as they are.

        Raises SchemaError for a `oneOf` that is no list, and in strict mode for one that is left out.
        """
        parts = non_empty_list(dict(schema), "oneOf", path)
        if _list_different_values(parts):
            return parts
        if len(parts) * (len(parts) - 1) // 2 > MAX_PAIRS:
            self._report.leave_out(path, "oneOf", _TOO_MANY)
            return parts
        self._merges = 0
        plain = [self._of_part(part) for part in parts]
        named = _discriminator(schema)
        if named is not None:
            parts, plain = self._with_required(parts, plain, named)
        others: list[list[object]] = [[] for _ in parts]
        for i, j in combinations(range(len(parts)), 2):
            if all(self._are_disjoint(one, other) for one in plain[i] for other in plain[j]):
                continue
            if self._merges > MAX_MERGES:
                self._report.leave_out(path, "oneOf", _TOO_MANY)
                return parts
            opposites = [complement({"anyOf": [*map(_restricting, plain[k])]}) for k in (i, j)]
            # schemas cannot exclude integers from numbers
            mixed = any(_mixes_numbers(one, other) for one in plain[i] for other in plain[j])
            if mixed or opposites[0] is None or opposites[1] is None:
                why = f"a value may be valid for both options {i} and {j}, and their difference cannot be written"
                self._report.leave_out(path, "oneOf", why)
                return parts
            others[i] += [{"anyOf": opposites[1]} if opposites[1] else False]
            others[j] += [{"anyOf": opposites[0]} if opposites[0] else False]
        return [{"allOf": [part, *rest]} if rest else part for part, rest in zip(parts, others, strict=True)]

    def _of_part(self, part: object) -> list[Plain]:
        try:
            return self._alternatives(part)
        except SchemaError:  # raised again where the part is converted
            return [{}]

    def _with_required(
        self, parts: list[Any], plain: list[list[Plain]], name: str
    ) -> tuple[list[Any], list[list[Plain]]]:
        """Return the options with the property that tells them apart, which a value must have."""
        need = {"required": [name]}
        lacks = [any(name not in one.get("required", ()) for one in each) for each in plain]
        return (
            [{"allOf": [part, need]} if lack else part for part, lack in zip(parts, lacks, strict=True)],
            [
                [{**one, "required": [*one.get("required", ()), name]} for one in each] if lack else each
                for each, lack in zip(plain, lacks, strict=True)
            ],
        )

    def _are_disjoint(self, one: Plain, other: Plain) -> bool:
        """Return whether surely no value is valid for both plain schemas."""
        if _forbids_required(one, other) or _forbids_required(other, one) or _differ_in_constant(one, other):
            return True
        self._merges += 1
        if self._merges > MAX_MERGES:
            return False
        merged = self._both(one, other)
        return merged is None or self._is_empty(merged, MAX_DEPTH)

    def _is_empty(self, schema: Plain, depth: int) -> bool:
        """Return whether surely no value is valid for a plain schema."""
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return not any(self._validator.fits(value, schema) for value in values)
        types = schema.get("type")
        names = [types] if isinstance(types, str) else types if isinstance(types, list) else []
        return bool(names) and all(self._type_is_empty(name, schema, depth) for name in names)

    def _type_is_empty(self, name: object, schema: Plain, depth: int) -> bool:
        low, high = (schema.get(keyword) for keyword in _BOUNDS.get(str(name), ("", "")))
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            return True
        properties, required = schema.get("properties"), schema.get("required")
        if name != "object" or not depth or not isinstance(properties, dict) or not isinstance(required, list):
            return False
        needed = [properties[each] for each in required if isinstance(each, str) and each in properties]
        return any(all(self._is_empty(one, depth - 1) for one in self._of_part(part)) for part in needed)


def _discriminator(schema: Mapping[str, Any]) -> str | None:
    named = schema.get("discriminator")
    name = named.get("propertyName") if isinstance(named, dict) else None
    return name if isinstance(name, str) else None


def _list_different_values(parts: list[Any]) -> bool:
    """Return whether each option lists its values, and no value is in two lists."""
    seen = set[str]()
    for part in parts:
        if not isinstance(part, dict) or ("const" in part) == isinstance(part.get("enum"), list):
            return False
        keys = {*map(value_key, [part["const"]] if "const" in part else part["enum"])}
        if seen & keys:
            return False
        seen |= keys
    return True


def _differ_in_constant(one: Plain, other: Plain) -> bool:
    """Return whether both are objects, and a required property has another constant in each: the usual case."""
    if one.get("type") != "object" or other.get("type") != "object":
        return False
    mine, theirs, required = (one.get("properties"), other.get("properties"), one.get("required"))
    if not isinstance(mine, dict) or not isinstance(theirs, dict) or not isinstance(required, list):
        return False
    constants = [
        (mine[name], theirs[name]) for name in required if isinstance(name, str) and name in mine and name in theirs
    ]
    return any(
        isinstance(a, dict)
        and isinstance(b, dict)
        and "const" in a
        and "const" in b
        and value_key(a["const"]) != value_key(b["const"])
        for a, b in constants
    )


def _mixes_numbers(one: Plain, other: Plain) -> bool:
    """Return whether one schema allows integers and no other numbers, and the other one allows all numbers."""
    a, b = (_type_names(schema) for schema in (one, other))
    return ("integer" in a and "number" not in a and "number" in b) or (
        "integer" in b and "number" not in b and "number" in a
    )


def _type_names(schema: Plain) -> list[Any]:
    types = schema.get("type", [*TYPES])
    return types if isinstance(types, list) else [types]


def _restricting(schema: Plain) -> Plain:
    return {keyword: value for keyword, value in schema.items() if keyword not in ANNOTATIONS}


def _forbids_required(one: Plain, other: Plain) -> bool:
    """Return whether both are objects, and one requires a property that the other forbids."""
    if one.get("type") != "object" or other.get("type") != "object" or other.get("additionalProperties") is not False:
        return False
    known, required = other.get("properties"), one.get("required")
    if other.get("patternProperties") or not isinstance(required, list):
        return False
    return any(isinstance(name, str) and name not in (known if isinstance(known, dict) else {}) for name in required)
