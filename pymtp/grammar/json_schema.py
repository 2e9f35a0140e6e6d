"""Conversion of JSON schemas to grammars.

Where a grammar cannot express everything that a schema allows, the grammar allows only a part of it: properties in the
schema's order, no more items than `prefixItems` lists, no escapes in the names of additional properties, numbers of at
most 16 digits, and strings and arrays of at most 2,000 characters or items if the schema sets a maximum. `oneOf` is
treated like `anyOf`.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.grammar.keywords import TYPE_KEYWORDS, TYPES, SchemaError, check_keywords, find_ref, is_number, types_of
from pymtp.grammar.regex import MAX_REPETITIONS, NOT_PLAIN, inverse, pattern_grammar, quoted, range_grammar
from pymtp.grammar.rules import Rules

MAX_NAME_CHARACTERS = 10_000  # in all property names of an object that also allows additional properties

FORMATS = ("date", "date-time", "time", "uuid")


def schema_gbnf(schema: object) -> str:
    """Convert a schema to GBNF. Raises SchemaError, which names the place in the schema and the fault."""
    converter = SchemaConverter(schema, Rules(), None)
    converter.refs["#"] = "root"
    converter.pending_refs.append("#")
    converter.finish()
    return converter.rules.gbnf()


class SchemaConverter:
    """A converter that turns the schemas within one JSON document into rules of a grammar."""

    def __init__(self, root: object, rules: Rules, weaker: Callable[[object, object], Iterable[object]] | None) -> None:
        """Prepare the conversion.

        root: the document, into which the references of its schemas point.
        rules: the rules to which the converter adds its rules.
        weaker: a function that takes a schema and the document, and returns weaker schemas to try in place of the
            schema. The first one that a grammar can express is used; if there is none, the grammar allows any value.
            With weaker=None, a schema that no grammar can express raises SchemaError.
        """
        self.root = root
        self.rules = rules
        self.weaker = weaker
        self.refs: dict[str, str] = {}
        # References whose rules are not made yet. A queue instead of recursion: a chain of references may be longer
        # than Python can recurse.
        self.pending_refs: deque[str] = deque()

    def finish(self) -> None:
        """Make the rules of all references in the converted schemas."""
        while self.pending_refs:
            ref = self.pending_refs.popleft()
            self.rules.bodies[self.refs[ref]] = self.schema(find_ref(self.root, ref, ref), ref)

    # Each of the methods below returns the alternatives of a rule, as GBNF.

    def schema(self, schema: object, path: str) -> str:
        """Convert a schema, or the first of its weaker schemas that a grammar can express.

        path: the schema's place in the document, for error messages.
        """
        if self.weaker is None:
            return self.exact(schema, path)
        for weaker_schema in self.weaker(schema, self.root):
            with suppress(SchemaError):
                return self.exact(weaker_schema, path)
        return self.rules.known("value")

    def exact(self, schema: object, path: str) -> str:
        """Convert exactly this schema. Raises SchemaError if no grammar can express it."""
        if not isinstance(schema, dict):
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        types = types_of(schema, path)
        check_keywords(schema, types, path)
        if "$ref" in schema:
            return self.ref(schema["$ref"], path)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                parts = non_empty_list(schema, keyword, path)
                return " | ".join(self.schema(part, f"{path}/{keyword}/{i}") for i, part in enumerate(parts))
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else non_empty_list(schema, "enum", path)
            values = [v for v in values if not types or any(TYPES[name](v) for name in types)]
            if not values:
                raise SchemaError(f"{path}: its const or enum has no value of its type")
            return " | ".join(map(literal, values))
        if not types:
            types = [next((name for name, keywords in TYPE_KEYWORDS.items() if keywords & schema.keys()), "value")]
        converters = {"object": self.object, "array": self.array, "string": self.string, "integer": self.integer}
        return " | ".join(converters[t](schema, path) if t in converters else self.rules.known(t) for t in types)

    def rule_for(self, schema: object, path: str) -> str:
        """Convert a schema to a rule, and return the name of the rule."""
        return self.rules.rule(self.schema(schema, path), path.rpartition("/")[2])

    def ref(self, ref: object, path: str) -> str:
        """Return the name of the rule for a reference. `finish` makes the rule of a new reference."""
        if not isinstance(ref, str) or ref not in self.refs:
            find_ref(self.root, ref, path)
            assert isinstance(ref, str)
            self.refs[ref] = self.rules.fresh_name(ref)
            self.pending_refs.append(ref)
        return self.refs[ref]

    def object(self, schema: dict[str, Any], path: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError(f"{path}/properties must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError(f"{path}/required must be a list of names")
        required_names = set(required)
        if missing := sorted(required_names - properties.keys()):
            raise SchemaError(f"{path} requires {missing}, which 'properties' does not have")
        extra = schema.get("additionalProperties", "properties" not in schema)
        if extra is True and not properties:
            return self.rules.known("object")
        if extra is not False and sum(map(len, properties)) > MAX_NAME_CHARACTERS:
            raise SchemaError(
                f"the property names of {path} have more than {MAX_NAME_CHARACTERS} characters, too many where "
                "additionalProperties are allowed: shorten them, or set additionalProperties to false"
            )
        space = self.rules.known("space")
        members = [
            self.rules.rule(
                f'{literal(name)} {space} ":" {space} {self.rule_for(part, f"{path}/properties/{name}")}', name
            )
            for name, part in properties.items()
        ]
        rest = ""  # GBNF of the members that may follow a member
        if extra is not False:
            value = self.rules.known("value") if extra is True else self.rule_for(extra, f"{path}/additionalProperties")
            other = self.rules.rule(f'{self.extra_name(properties)} {space} ":" {space} {value}', "other")
            members.append(other)
            rest = self.rules.rule(f'( "," {space} {other} )*', "others")
        first: list[str] = []  # for each member that may be the first: GBNF of it and the members after it
        for name, member in reversed([*zip([*properties, None], members, strict=False)]):
            if name in required_names:
                first.clear()
            first.append(f"{member} {rest}")
            if name in required_names:
                rest = self.rules.rule(f'"," {space} {member} {rest}', "then")
            elif name is not None:
                rest = self.rules.rule(f'( "," {space} {member} )? {rest}', "then")
        if not first:
            return f'"{{" {space} "}}"'
        some = f"( {' | '.join(reversed(first))} ) {space}"
        return f'"{{" {space} {some if required_names else f"( {some} )?"} "}}"'

    def extra_name(self, names: dict[str, Any]) -> str:
        """Return GBNF for a JSON string that equals none of the names. Adds a rule for each prefix of a name."""
        children: list[dict[str, int]] = [{}]
        ends = set()
        for name in names:
            node = 0
            for c in name:
                if c not in children[node]:
                    children.append({})
                    children[node][c] = len(children) - 1
                node = children[node][c]
            ends.add(node)
        rules = [""] * len(children)
        for i in reversed(range(len(children))):  # backwards, because the rule of a node uses the rules of its children
            known = [(c, child) for c, child in children[i].items() if not any(a <= ord(c) <= b for a, b in NOT_PLAIN)]
            other = range_grammar(inverse([*NOT_PLAIN, *((ord(c), ord(c)) for c, _ in known)]))
            alternatives = [f"{range_grammar([(ord(c), ord(c))])} {rules[child]}" for c, child in known]
            alternatives.append(f"{other} {self.rules.known('plain')}*")
            rules[i] = self.rules.rule(" | ".join([*alternatives, *([] if i in ends else ['""'])]), "name")
        return rf'"\"" {rules[0]} "\""'

    def array(self, schema: dict[str, Any], path: str) -> str:
        space = self.rules.known("space")
        minimum, maximum = size_bounds(schema, "Items", path)
        keyword = "items" if "items" in schema else "prefixItems"
        items = schema.get(keyword)
        if isinstance(items, list):
            if not minimum <= len(items) <= (len(items) if maximum is None else maximum):
                raise SchemaError(f"{path} lists {len(items)} items, which its minItems or maxItems forbids")
            parts = [self.rule_for(item, f"{path}/{keyword}/{i}") for i, item in enumerate(items)]
            some = f' "," {space} '.join(parts)
            return f'"[" {space} {some} {space} "]"' if parts else f'"[" {space} "]"'
        item = self.rules.known("value") if keyword not in schema else self.rule_for(items, f"{path}/{keyword}")
        if maximum == 0:
            return f'"[" {space} "]"'
        more = self.rules.rule(f'"," {space} {item}', "more")
        some = f"{item} {more}{_repetitions(max(minimum, 1) - 1, None if maximum is None else maximum - 1)} {space}"
        return f'"[" {space} {some if minimum else f"( {some} )?"} "]"'

    def string(self, schema: dict[str, Any], path: str) -> str:
        if "pattern" in schema:
            try:
                if not isinstance(schema["pattern"], str):
                    raise ValueError("it is not a string")
                return rf'"\"" ( {pattern_grammar(schema["pattern"])} ) "\""'
            except ValueError as error:
                raise SchemaError(
                    f"{path}: the pattern {schema['pattern']!r:.80} cannot be enforced: {error}"
                ) from error
        if "format" in schema:
            if schema["format"] not in FORMATS:
                raise SchemaError(
                    f"{path} has the format {schema['format']!r:.40}, which is none of {', '.join(FORMATS)}"
                )
            return rf'"\"" {self.rules.known(schema["format"])} "\""'
        if not schema.keys() & {"minLength", "maxLength"}:
            return self.rules.known("string")
        return rf'"\"" {self.rules.known("char")}{_repetitions(*size_bounds(schema, "Length", path))} "\""'

    def integer(self, schema: dict[str, Any], path: str) -> str:
        bounds: dict[str, int] = {}
        for keyword in TYPE_KEYWORDS["integer"] & schema.keys():
            value = schema[keyword]
            if not is_number(value):
                raise SchemaError(f"{path}/{keyword} must be a number")
            lower, exclusive = keyword.lower().endswith("minimum"), keyword.startswith("exclusive")
            bounds[keyword] = (
                (math.floor(value) + 1 if lower else math.ceil(value) - 1)
                if exclusive
                else (math.ceil(value) if lower else math.floor(value))
            )
        if not bounds:
            return self.rules.known("integer")
        minimum = max((bounds[k] for k in ("minimum", "exclusiveMinimum") if k in bounds), default=None)
        maximum = min((bounds[k] for k in ("maximum", "exclusiveMaximum") if k in bounds), default=None)
        try:
            return integer_grammar(minimum, maximum)
        except ValueError as error:
            raise SchemaError(f"{path}: {error}") from error


def non_empty_list(schema: dict[str, Any], keyword: str, path: str) -> list[Any]:
    """Return the value of a keyword that must be a list. Raises SchemaError if it is empty or not a list."""
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{path}/{keyword} must be a list that is not empty")
    return values


def size_bounds(schema: dict[str, Any], of: str, path: str) -> tuple[int, int | None]:
    """Return the smallest and the largest size that a schema allows; None as the largest size means no limit.

    of: "Length" to read minLength and maxLength, "Items" to read minItems and maxItems.
    """
    for keyword in {f"min{of}", f"max{of}"} & schema.keys():
        value = schema[keyword]
        if not is_number(value) or value < 0 or value != math.floor(value):
            raise SchemaError(f"{path}/{keyword} must be an integer, 0 or more")
    minimum, maximum = int(schema.get(f"min{of}", 0)), int(schema[f"max{of}"]) if f"max{of}" in schema else None
    if minimum > MAX_REPETITIONS:
        raise SchemaError(f"{path}/min{of} is more than {MAX_REPETITIONS}")
    if maximum is not None and minimum > maximum:
        raise SchemaError(f"{path}/max{of} is less than min{of}")
    return minimum, maximum


def _repetitions(minimum: int, maximum: int | None) -> str:
    return f"{{{minimum},{'' if maximum is None else min(maximum, MAX_REPETITIONS)}}}"


def literal(value: object) -> str:
    """Return GBNF that allows exactly the JSON text of a value."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return quoted(re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text))


MAX_DEPTH = 64  # levels of nested values in a schema; limited because the converter recurses
MAX_TEXT = 2**20  # length of a schema's JSON, and of a grammar that is made from schemas


def schema_text(schema: str | Mapping[str, Any]) -> str:
    """Return a schema as JSON text. Raises InvalidRequestError for a schema that is not JSON, too long or too deep."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema is not JSON: {error}") from error
    if len(text) > MAX_TEXT:
        raise InvalidRequestError(f"json_schema is longer than {MAX_TEXT} bytes")
    _check_depth(json.loads(text), 0)
    return text


def schema_grammar(text: str) -> str:
    """Convert a schema, as JSON text, to GBNF. Raises InvalidRequestError for a schema that no grammar can express."""
    try:
        return schema_gbnf(json.loads(text))
    except (SchemaError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema: {error}") from error


def _check_depth(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"json_schema is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


MAX_DIGITS = 16  # digits of an integer that the schema does not bound
MAX_INTEGER = 10**30  # the largest absolute value of a bound


def integer_grammar(minimum: int | None, maximum: int | None) -> str:
    """Return GBNF for the integers from `minimum` to `maximum`.

    If a bound is None, the integers have up to MAX_DIGITS digits, or one digit more than the other bound. Raises
    ValueError if there is no integer between the bounds, and for bounds beyond MAX_INTEGER.
    """
    if any(bound is not None and abs(bound) > MAX_INTEGER for bound in (minimum, maximum)):
        raise ValueError(f"a bound is beyond {MAX_INTEGER:.0e}")
    far = max(10**MAX_DIGITS, *(10 * abs(bound) for bound in (minimum, maximum) if bound is not None), 0) - 1
    low, high = -far if minimum is None else minimum, far if maximum is None else maximum
    if low > high:
        raise ValueError(f"there is no integer from {low} to {high}")
    alternatives = []
    if low < 0:
        alternatives.append(f'"-" ( {_natural_numbers(max(1, -high), -low)} )')
    if high >= 0:
        alternatives.append(_natural_numbers(max(low, 0), high))
    return " | ".join(alternatives)


def _natural_numbers(low: int, high: int) -> str:
    lengths = range(len(str(low)), len(str(high)) + 1)
    bounds = ((max(low, 10 ** (n - 1) if n > 1 else 0), min(high, 10**n - 1)) for n in lengths)
    return " | ".join(_same_length_numbers(str(a), str(b)) for a, b in bounds)


def _same_length_numbers(low: str, high: str) -> str:
    """Return GBNF for the numbers between two bounds with the same number of digits."""
    more = len(low) - 1
    if low[0] == high[0]:
        return f"[{low[0]}] ( {_same_length_numbers(low[1:], high[1:])} )" if more else f"[{low[0]}]"
    zeros, nines = "0" * more, "9" * more
    first, last = int(low[0]), int(high[0])
    alternatives = []
    if low[1:] != zeros:
        alternatives.append(f"[{first}] ( {_same_length_numbers(low[1:], nines)} )")
        first += 1
    if high[1:] != nines:
        alternatives.append(f"[{last}] ( {_same_length_numbers(zeros, high[1:])} )")
        last -= 1
    if first <= last:
        alternatives.append(f"[{first}-{last}] [0-9]{{{more}}}" if more else f"[{first}-{last}]")
    return " | ".join(alternatives)
