"""Schemas that combine others (`$ref`, `allOf`, `anyOf`, `if`, `not`, …) as a list of plain schemas.

A plain schema has keywords for types only. A value is valid for the combination if it is valid for one of the list.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from pymtp.grammar import keywords
from pymtp.grammar.automaton import PatternMatcher
from pymtp.grammar.complement import complement
from pymtp.grammar.endings import Endings
from pymtp.grammar.endless import EndlessReferences
from pymtp.grammar.exclusive import ExclusiveOptions
from pymtp.grammar.keywords import (
    ANNOTATIONS,
    COMBINERS,
    PLAIN_KEYWORDS,
    KeywordReport,
    NoValueError,
    SchemaError,
    Several,
    find_ref,
    is_number,
    non_empty_list,
    types_of,
)
from pymtp.grammar.values import value_key

MAX_OPTIONS = 2000  # options of one anyOf beside other keywords
MAX_ALTERNATIVES = 64  # combinations of the options of several keywords
MAX_STEPS = 64  # levels of references and combinations that are followed
MAX_VISITS = 4096  # schemas that are visited for one; short schemas may combine endlessly many
_OBJECT_KEYWORDS = {"properties", "patternProperties", "additionalProperties"}
_UNCOMBINED = PLAIN_KEYWORDS | ANNOTATIONS
Plain = dict[str, Any]


# What is not evaluated by a schema and its parts. Schemas beside it, such as those beside its `$ref`, do not count.
_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}


class Combiner:
    """A converter of the combinations in one JSON document.

    endless: the references in the document whose values never end. They add no alternatives.
    """

    def __init__(self, root: object, report: KeywordReport, *, exact: bool = True) -> None:
        """Prepare the conversion. exact: whether `oneOf` is held exactly; otherwise it is treated as `anyOf`."""
        self._root, self._report = root, report
        self.endless = EndlessReferences(root)
        self._exclusive: ExclusiveOptions | None = None
        if exact:
            rough = Combiner(root, KeywordReport("weaken"), exact=False)
            self._exclusive = ExclusiveOptions(
                root,
                report,
                lambda part: rough.alternatives(part, "#"),
                lambda one, other: rough._both(one, other, "#"),
            )
            self.endings = Endings(lambda part: rough.alternatives(part, "#"))
        self._visits = 0
        self._open = set[str]()  # the references that are being followed

    def one_of(self, schema: Plain, path: str) -> list[Any]:
        """Return schemas that mean as `anyOf` what those of a schema's `oneOf` mean.

        Raises SchemaError for a `oneOf` that is no list, and in strict mode for one that no grammar can express.
        """
        return (
            non_empty_list(schema, "oneOf", path) if self._exclusive is None else self._exclusive.options(schema, path)
        )

    def alternatives(self, schema: object, path: str, steps: int = MAX_STEPS) -> list[Plain]:
        """Return the plain schemas of a combination; [] if no value is valid.

        Raises SchemaError for a malformed combination, and in strict mode for one that no grammar can express.
        """
        found = self._combined(schema, path, steps)
        if isinstance(schema, dict) and not _UNEVALUATED.keys().isdisjoint(schema):
            return [*map(_with_evaluated, found)]
        return found

    def _combined(self, schema: object, path: str, steps: int) -> list[Plain]:
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, dict):
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        self._visits = 1 if steps == MAX_STEPS else self._visits + 1
        if not steps or self._visits > MAX_VISITS:
            raise SchemaError(f"{path:.200} combines too many schemas")
        found = [self._own_keywords(schema, path)]
        if COMBINERS.isdisjoint(schema):
            return found
        if schema.get("nullable") is True and {"type", "enum", "const"} & schema.keys():
            found.append({"type": "null"})
        for keyword, options in self._options(schema, path, steps):
            limit = MAX_OPTIONS if len(found) == 1 else MAX_ALTERNATIVES
            if len(found) * len(options) > limit:
                self._report.leave_out(path, keyword, f"it makes more than {limit} alternatives")
                continue
            found = [both for one in found for other in options if (both := self._both(one, other, path)) is not None]
        return found

    def _own_keywords(self, schema: Plain, path: str) -> Plain:
        """Return the keywords of a schema that restrict values and combine no schemas."""
        if schema.keys() <= _UNCOMBINED:
            return schema
        own = {}
        for keyword, value in schema.items():
            if keyword in PLAIN_KEYWORDS or isinstance(value, Several):
                own[keyword] = value
            elif keyword not in COMBINERS | ANNOTATIONS and not keyword.startswith("x-"):
                self._report.leave_out(path, keyword, "it is not known")
        return own

    def _options(self, schema: Plain, path: str, steps: int) -> Iterable[tuple[str, list[Plain]]]:
        """Yield the keywords that combine schemas, each with the plain schemas of which one must hold."""

        def plain(part: object, place: str) -> list[Plain]:
            try:
                return self.alternatives(part, f"{path}/{place}", steps - 1)
            except SchemaError as error:
                self._report.skip_malformed(path, place, error)
                return [{}]

        if "$ref" in schema:
            yield "$ref", self._referred(schema["$ref"], path, plain)
        for keyword in ("allOf", "anyOf", "oneOf"):
            try:
                parts = [] if keyword not in schema else non_empty_list(schema, keyword, path)
                if parts and keyword == "oneOf":
                    parts = self.one_of(schema, path)
            except SchemaError as error:
                self._report.skip_malformed(path, keyword, error)
                continue
            each = [(f"{keyword}/{i}", part) for i, part in enumerate(parts)]
            if keyword == "allOf":
                known = set[str]()
                for place, part in each:
                    text = json.dumps(part, sort_keys=True)
                    if text not in known:
                        yield place, plain(part, place)
                    known.add(text)
            elif parts:
                options = [one for place, part in each for one in plain(part, place)]
                yield keyword, [*{json.dumps(one, sort_keys=True): one for one in options}.values()]
        if "not" in schema:
            others = complement(schema["not"])
            if others is None:
                self._report.leave_out(path, "not", "it forbids more than types, values and bounds")
            else:
                yield "not", [one for part in others for one in plain(part, "not")]
        if "if" in schema and {"then", "else"} & schema.keys():
            others = complement(schema["if"])
            if others is None:
                self._report.leave_out(path, "if", "its opposite is more than types, values and bounds")
            else:
                then = {"allOf": [schema["if"], schema.get("then", True)]}
                cases = [then, *({"allOf": [part, schema.get("else", True)]} for part in others)]
                yield "if", [one for case in cases for one in plain(case, "if")]
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if keyword not in schema:
                continue
            if not isinstance(dependencies := schema[keyword], Mapping):
                self._report.skip_malformed(path, keyword, SchemaError(f"{path}/{keyword} must be an object"))
                continue
            for name, needed in dependencies.items():
                present = {"required": [name, *needed]} if isinstance(needed, list) else {"required": [name]}
                part = present if isinstance(needed, list) else {"allOf": [present, needed]}
                yield keyword, [{"properties": {name: False}}, *plain(part, keyword)]

    def _referred(self, ref: object, path: str, plain: Callable[[object, str], list[Plain]]) -> list[Plain]:
        """Return the plain schemas of a reference. A reference within itself adds no value to its alternatives."""
        try:
            part = find_ref(self._root, ref, path)
        except SchemaError as error:
            self._report.skip_malformed(path, "$ref", error)
            return [{}]
        if ref in self._open or self.endless.is_endless(ref):
            return []
        self._open.add(str(ref))
        try:
            return plain(part, "$ref")
        finally:
            self._open.remove(str(ref))

    def _both(self, one: Plain, other: Plain, path: str) -> Plain | None:
        """Return the schema of the values that are valid for both; None if there are none."""
        if not one or not other:
            return one or other
        try:
            return self._merged(one, other, path)
        except NoValueError:
            return None

    def _merged(self, one: Plain, other: Plain, path: str) -> Plain:
        merged = {**other, **one}
        for keyword in one.keys() & other.keys():
            a, b = one[keyword], other[keyword]
            if a == b and type(a) is type(b):
                continue
            match keyword:
                case "type":
                    merged[keyword] = _common_types(one, other, path)
                case "enum" | "const":
                    theirs = {value_key(value) for value in _values(other, keyword)}
                    values = [value for value in _values(one, keyword) if value_key(value) in theirs]
                    if not values:
                        raise NoValueError(f"{path}/{keyword}: no value is valid for all schemas")
                    merged.pop(keyword)
                    merged["enum"] = values
                case "required":
                    merged[keyword] = [*dict.fromkeys([*_names(a), *_names(b)])]
                case "pattern" | "format" | "contains" | keywords.EXCLUDED_VALUES | keywords.EXCLUDED_PATTERNS:
                    merged[keyword] = Several.of(a).joined(Several.of(b))
                case "uniqueItems":
                    merged[keyword] = a is True or b is True
                case "items" | "propertyNames" | "unevaluatedItems" | "unevaluatedProperties":
                    merged[keyword] = all_of(a, b)
                case "multipleOf" if is_number(a) and is_number(b) and a > 0 and b > 0:
                    merged[keyword] = _common_multiple(a, b)
                case _ if is_number(a) and is_number(b):
                    if keyword.startswith(("min", "exclusiveMin")):
                        merged[keyword] = max(a, b)
                    elif keyword.startswith(("max", "exclusiveMax")):
                        merged[keyword] = min(a, b)
        if "const" in merged and "enum" in merged:
            if value_key(merged["const"]) not in {value_key(value) for value in _values(merged, "enum")}:
                raise NoValueError(f"{path}/const: no value is valid for all schemas")
            merged.pop("enum")
        if "prefixItems" in merged:
            merged |= _merged_items(one, other)
        if _OBJECT_KEYWORDS & one.keys() and _OBJECT_KEYWORDS & other.keys():
            merged |= self._merged_properties(one, other, merged, path)
        return merged

    def _merged_properties(self, one: Plain, other: Plain, merged: Plain, path: str) -> Plain:
        """Return the keywords for the properties of the values that are valid for both."""
        parts = [_mapping(schema, "properties") for schema in (one, other)]
        patterns = [_mapping(schema, "patternProperties") for schema in (one, other)]
        rests = [schema.get("additionalProperties", True) for schema in (one, other)]
        required = _names(merged.get("required", []))
        for own, theirs, pattern, rest in zip(parts, parts[::-1], patterns, [*rests], strict=True):
            forbidden = [name for name in required if name in theirs.keys() - own.keys()]
            if rest is False and not pattern and forbidden:
                why = f"one schema of allOf forbids {forbidden[0]!r:.40}, and another one requires it"
                self._report.leave_out(path, "additionalProperties", why)
                rests = [True, True]  # both are meant as parts of one object
        result: Plain = {
            "properties": {
                name: all_of(
                    *(
                        part.get(name, True if pattern else rest)
                        for part, pattern, rest in zip(parts, patterns, rests, strict=True)
                    )
                )
                for name in dict.fromkeys([*parts[0], *parts[1]])
            }
        }
        if patterns[0] or patterns[1]:
            result["patternProperties"] = {
                pattern: all_of(
                    *(
                        own[pattern] if pattern in own else self._rest_for(pattern, part, own, rest, path)
                        for part, own, rest in zip(parts, patterns, rests, strict=True)
                    )
                )
                for pattern in dict.fromkeys([*patterns[0], *patterns[1]])
            }
        if "additionalProperties" in merged:
            result["additionalProperties"] = all_of(*(part.get("additionalProperties", True) for part in (one, other)))
        return result

    def _rest_for(self, pattern: str, parts: Plain, patterns: Plain, rest: object, path: str) -> object:
        """Return what a schema demands of the properties whose names match a pattern that it does not have.

        parts, patterns, rest: its properties, its patternProperties, and the schema of all others.
        """
        if rest is not True and (patterns or _may_match(pattern, parts)):
            self._report.leave_out(path, "additionalProperties", f"another schema has names that match {pattern!r:.40}")
            return True
        return rest


def _may_match(pattern: str, names: Iterable[str]) -> bool:
    try:
        matcher = PatternMatcher(pattern)
        return any(map(matcher.matches, names))
    except (ValueError, RecursionError):
        return True


def _with_evaluated(schema: Plain) -> Plain:
    """Return a schema whose parts are all known, with `additionalProperties` and `items` for what none evaluates."""
    result = dict(schema)
    for keyword, known in _UNEVALUATED.items():
        if keyword in schema and known not in schema and not (known == "items" and "contains" in schema):
            result[known] = result.pop(keyword)
    return result


def all_of(one: object, other: object) -> object:
    """Return a schema for the values that are valid for both schemas."""
    parts: dict[str, object] = {}
    for schema in (one, other):
        several = schema["allOf"] if isinstance(schema, dict) and schema.keys() == {"allOf"} else [schema]
        for part in several if isinstance(several, list) else [several]:
            if part is False:
                return False
            if part is not True and part != {}:
                parts[json.dumps(part, sort_keys=True)] = part
    if len(parts) < 2:
        return next(iter(parts.values()), True)
    return {"allOf": [*parts.values()]}


def _common_types(one: Plain, other: Plain, path: str) -> list[str]:
    a, b = types_of(one, path), types_of(other, path)
    common = [name for name in a if name in b or (name == "integer" and "number" in b)]
    common += [name for name in b if name == "integer" and "number" in a and name not in common]
    if not common:
        raise NoValueError(f"{path}/type: no value has the types of all schemas")
    return common


def _values(schema: Plain, keyword: str) -> list[Any]:
    value = schema[keyword]
    return [value] if keyword == "const" else value if isinstance(value, list) else []


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _mapping(schema: Plain, keyword: str) -> Plain:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _common_multiple(a: float, b: float) -> int | float:
    one, other = (Fraction(repr(value)) for value in (a, b))
    scale = math.lcm(one.denominator, other.denominator)
    common = Fraction(math.lcm(int(one * scale), int(other * scale)), scale)
    return int(common) if common.denominator == 1 else float(common)


def _merged_items(one: Plain, other: Plain) -> Plain:
    prefixes = [_listed(schema, "prefixItems") for schema in (one, other)]
    rests = [schema.get("items", True) for schema in (one, other)]
    prefix = [
        all_of(*(part[i] if i < len(part) else rest for part, rest in zip(prefixes, rests, strict=True)))
        for i in range(max(map(len, prefixes)))
    ]
    return {"prefixItems": prefix} | ({"items": all_of(*rests)} if "items" in one or "items" in other else {})


def _listed(schema: Plain, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
