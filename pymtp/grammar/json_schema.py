"""JSON schemas as grammars.

Where a grammar cannot say all that a schema allows, it says a part: properties in the schema's order, no more items
than `prefixItems`, no escapes in names that the schema leaves open, numbers of 16 digits, strings and arrays of at most
2,000 where there is a maximum. `oneOf` is taken as `anyOf`.
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
from pymtp.grammar.keywords import HEEDED, TYPES, SchemaError, check_keywords, find, is_number, types_of
from pymtp.grammar.regex import MAX_REPETITIONS, NOT_PLAIN, inverse, pattern_grammar, quoted, range_grammar
from pymtp.grammar.rules import Rules

MAX_NAMES = 10_000  # characters of names beside which others are allowed

FORMATS = ("date", "date-time", "time", "uuid")


def schema_gbnf(schema: object) -> str:
    """The GBNF of a schema. Raises SchemaError, which names the place in the schema and what is wrong."""
    converter = Converter(schema, Rules(), None)
    converter.refs["#"] = "root"
    converter.todo.append("#")
    converter.finish()
    return converter.rules.gbnf()


class Converter:
    """Makes rules of schemas within one document.

    weaker: of a schema and the document, schemas that may stand for it, the first that a grammar can hold a text to;
        any value, where there is none. None where it stands for itself, or is refused.
    """

    def __init__(self, root: object, rules: Rules, weaker: Callable[[object, object], Iterable[object]] | None) -> None:
        self.root = root
        self.rules = rules
        self.weaker = weaker
        self.refs: dict[str, str] = {}
        # references whose rules are to be made: no recursion, which schemas could make deep
        self.todo: deque[str] = deque()

    def finish(self) -> None:
        """Makes the rules of what was referred to."""
        while self.todo:
            ref = self.todo.popleft()
            self.rules.says[self.refs[ref]] = self.schema(find(self.root, ref, ref), ref)

    # each of these gives alternatives

    def schema(self, schema: object, path: str) -> str:
        if self.weaker is None:
            return self.exact(schema, path)
        for way in self.weaker(schema, self.root):
            with suppress(SchemaError):
                return self.exact(way, path)
        return self.rules.known("value")

    def exact(self, schema: object, path: str) -> str:
        if not isinstance(schema, dict):
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        types = types_of(schema, path)
        check_keywords(schema, types, path)
        if "$ref" in schema:
            return self.ref(schema["$ref"], path)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                parts = listed(schema, keyword, path)
                return " | ".join(self.schema(part, f"{path}/{keyword}/{i}") for i, part in enumerate(parts))
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else listed(schema, "enum", path)
            values = [v for v in values if not types or any(TYPES[name](v) for name in types)]
            if not values:
                raise SchemaError(f"{path} has no value of its type")
            return " | ".join(map(literal, values))
        if not types:
            types = [next((name for name, keywords in HEEDED.items() if keywords & schema.keys()), "value")]
        makers = {"object": self.object, "array": self.array, "string": self.string, "integer": self.integer}
        return " | ".join(makers[t](schema, path) if t in makers else self.rules.known(t) for t in types)

    def part(self, schema: object, path: str) -> str:
        return self.rules.rule(self.schema(schema, path), path.rpartition("/")[2])

    def ref(self, ref: object, path: str) -> str:
        if not isinstance(ref, str) or ref not in self.refs:
            find(self.root, ref, path)
            assert isinstance(ref, str)
            self.refs[ref] = self.rules.fresh_name(ref)
            self.todo.append(ref)
        return self.refs[ref]

    def object(self, schema: dict[str, Any], path: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError(f"{path}/properties must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError(f"{path}/required must be a list of names")
        needed = set(required)
        if missing := sorted(needed - properties.keys()):
            raise SchemaError(f"{path} requires {missing}, which 'properties' does not have")
        others = schema.get("additionalProperties", "properties" not in schema)
        if others is True and not properties:
            return self.rules.known("object")
        if others is not False and sum(map(len, properties)) > MAX_NAMES:
            raise SchemaError(f"{path} has names of more than {MAX_NAMES} characters beside additionalProperties")
        space = self.rules.known("space")
        members = [
            self.rules.rule(f'{literal(name)} {space} ":" {space} {self.part(part, f"{path}/properties/{name}")}', name)
            for name, part in properties.items()
        ]
        after = ""  # what may follow a member
        if others is not False:
            value = self.rules.known("value") if others is True else self.part(others, f"{path}/additionalProperties")
            other = self.rules.rule(f'{self.other_name(properties)} {space} ":" {space} {value}', "other")
            members.append(other)
            after = self.rules.rule(f'( "," {space} {other} )*', "others")
        first: list[str] = []  # members that may come first, and what may follow each
        for name, member in reversed([*zip([*properties, None], members, strict=False)]):
            if name in needed:
                first.clear()
            first.append(f"{member} {after}")
            if name in needed:
                after = self.rules.rule(f'"," {space} {member} {after}', "then")
            elif name is not None:
                after = self.rules.rule(f'( "," {space} {member} )? {after}', "then")
        if not first:
            return f'"{{" {space} "}}"'
        some = f"( {' | '.join(reversed(first))} ) {space}"
        return f'"{{" {space} {some if needed else f"( {some} )?"} "}}"'

    def other_name(self, names: dict[str, Any]) -> str:
        """The name, as JSON, of a property with another name: a rule for each beginning of those that are known."""
        after: list[dict[str, int]] = [{}]
        ends = set()
        for name in names:
            at = 0
            for c in name:
                if c not in after[at]:
                    after.append({})
                    after[at][c] = len(after) - 1
                at = after[at][c]
            ends.add(at)
        rules = [""] * len(after)
        for i in reversed(range(len(after))):  # what stands below was added later
            known = [(c, below) for c, below in after[i].items() if not any(a <= ord(c) <= b for a, b in NOT_PLAIN)]
            other = range_grammar(inverse([*NOT_PLAIN, *((ord(c), ord(c)) for c, _ in known)]))
            ways = [f"{range_grammar([(ord(c), ord(c))])} {rules[below]}" for c, below in known]
            ways.append(f"{other} {self.rules.known('plain')}*")
            rules[i] = self.rules.rule(" | ".join([*ways, *([] if i in ends else ['""'])]), "name")
        return rf'"\"" {rules[0]} "\""'

    def array(self, schema: dict[str, Any], path: str) -> str:
        space = self.rules.known("space")
        least, most = counts(schema, "Items", path)
        keyword = "items" if "items" in schema else "prefixItems"
        items = schema.get(keyword)
        if isinstance(items, list):
            if not least <= len(items) <= (len(items) if most is None else most):
                raise SchemaError(f"{path} has {len(items)} items, and bounds that forbid it")
            parts = [self.part(item, f"{path}/{keyword}/{i}") for i, item in enumerate(items)]
            some = f' "," {space} '.join(parts)
            return f'"[" {space} {some} {space} "]"' if parts else f'"[" {space} "]"'
        item = self.rules.known("value") if keyword not in schema else self.part(items, f"{path}/{keyword}")
        if most == 0:
            return f'"[" {space} "]"'
        more = self.rules.rule(f'"," {space} {item}', "more")
        some = f"{item} {more}{times(max(least, 1) - 1, None if most is None else most - 1)} {space}"
        return f'"[" {space} {some if least else f"( {some} )?"} "]"'

    def string(self, schema: dict[str, Any], path: str) -> str:
        if "pattern" in schema:
            try:
                if not isinstance(schema["pattern"], str):
                    raise ValueError("it is no text")
                return rf'"\"" ( {pattern_grammar(schema["pattern"])} ) "\""'
            except ValueError as error:
                raise SchemaError(
                    f"{path}: the pattern {schema['pattern']!r:.80} cannot be held to: {error}"
                ) from error
        if "format" in schema:
            if schema["format"] not in FORMATS:
                raise SchemaError(
                    f"{path} has the format {schema['format']!r:.40}, which is none of {', '.join(FORMATS)}"
                )
            return rf'"\"" {self.rules.known(schema["format"])} "\""'
        if not schema.keys() & {"minLength", "maxLength"}:
            return self.rules.known("string")
        return rf'"\"" {self.rules.known("char")}{times(*counts(schema, "Length", path))} "\""'

    def integer(self, schema: dict[str, Any], path: str) -> str:
        bounds: dict[str, int] = {}
        for keyword in HEEDED["integer"] & schema.keys():
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
        least = max((bounds[k] for k in ("minimum", "exclusiveMinimum") if k in bounds), default=None)
        most = min((bounds[k] for k in ("maximum", "exclusiveMaximum") if k in bounds), default=None)
        try:
            return integers(least, most)
        except ValueError as error:
            raise SchemaError(f"{path}: {error}") from error


def listed(schema: dict[str, Any], keyword: str, path: str) -> list[Any]:
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{path}/{keyword} must be a list that is not empty")
    return values


def counts(schema: dict[str, Any], of: str, path: str) -> tuple[int, int | None]:
    """The least and the most, None for any number."""
    for keyword in {f"min{of}", f"max{of}"} & schema.keys():
        value = schema[keyword]
        if not is_number(value) or value < 0 or value != math.floor(value):
            raise SchemaError(f"{path}/{keyword} must be an integer, 0 or more")
    least, most = int(schema.get(f"min{of}", 0)), int(schema[f"max{of}"]) if f"max{of}" in schema else None
    if least > MAX_REPETITIONS:
        raise SchemaError(f"{path}/min{of} is more than {MAX_REPETITIONS}")
    if most is not None and least > most:
        raise SchemaError(f"{path}/max{of} is less than min{of}")
    return least, most


def times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else min(most, MAX_REPETITIONS)}}}"


def literal(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return quoted(re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text))


MAX_DEPTH = 64  # of nested values, which are walked by recursion
MAX_TEXT = 2**20


def schema_text(schema: str | Mapping[str, Any]) -> str:
    """A schema as JSON text. Raises InvalidRequestError for what is none."""
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
    """The GBNF of `schema_text`. Raises InvalidRequestError for a schema that no grammar can hold a text to."""
    try:
        return schema_gbnf(json.loads(text))
    except (SchemaError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema: {error}") from error


def _check_depth(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"json_schema is nested more than {MAX_DEPTH} deep")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


MAX_DIGITS = 16  # of numbers without a bound
MOST = 10**30


def integers(least: int | None, most: int | None) -> str:
    """GBNF for the decimal numbers from `least` to `most`; without one of these, up to MAX_DIGITS digits, or one digit
    more than the other bound. Raises ValueError where there are none, and for bounds beyond MOST."""
    if any(bound is not None and abs(bound) > MOST for bound in (least, most)):
        raise ValueError(f"a bound is beyond {MOST:.0e}")
    far = max(10**MAX_DIGITS, *(10 * abs(bound) for bound in (least, most) if bound is not None), 0) - 1
    low, high = -far if least is None else least, far if most is None else most
    if low > high:
        raise ValueError(f"there is no integer from {low} to {high}")
    ways = []
    if low < 0:
        ways.append(f'"-" ( {_naturals(max(1, -high), -low)} )')
    if high >= 0:
        ways.append(_naturals(max(low, 0), high))
    return " | ".join(ways)


def _naturals(low: int, high: int) -> str:
    lengths = range(len(str(low)), len(str(high)) + 1)
    bounds = ((max(low, 10 ** (n - 1) if n > 1 else 0), min(high, 10**n - 1)) for n in lengths)
    return " | ".join(_digits(str(a), str(b)) for a, b in bounds)


def _digits(low: str, high: str) -> str:
    """Numbers of as many digits as both bounds have."""
    more = len(low) - 1
    if low[0] == high[0]:
        return f"[{low[0]}] ( {_digits(low[1:], high[1:])} )" if more else f"[{low[0]}]"
    zeros, nines = "0" * more, "9" * more
    first, last = int(low[0]), int(high[0])
    ways = []
    if low[1:] != zeros:
        ways.append(f"[{first}] ( {_digits(low[1:], nines)} )")
        first += 1
    if high[1:] != nines:
        ways.append(f"[{last}] ( {_digits(zeros, high[1:])} )")
        last -= 1
    if first <= last:
        ways.append(f"[{first}-{last}] [0-9]{{{more}}}" if more else f"[{first}-{last}]")
    return " | ".join(ways)
