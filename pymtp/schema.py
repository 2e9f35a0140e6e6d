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
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from pymtp.integers import integers
from pymtp.pattern import MAX_REPETITIONS, NOT_PLAIN, inverse, pattern_grammar, quoted, range_grammar

MAX_NAMES = 10_000  # characters of names beside which others are allowed

_SILENT = {  # keywords that no value has to follow
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions"),
}
_HEEDED = {  # by type
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
# what is followed, and then no other, the type at most
_ALONE = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern", "format", "prefixItems")
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and value == math.floor(value),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
# rules that are always the same, and those that they need
_RULES = {
    "space": (r'| " " | "\n"{1,2} [ \t]{0,20}', ()),
    "value": ("object | array | string | number | boolean | null", ("object", "array", "number", "boolean", "null")),
    "object": ('"{" space ( member ( "," space member )* space )? "}"', ("space", "member")),
    "member": ('string space ":" space value', ("space", "string", "value")),
    "array": ('"[" space ( value ( "," space value )* space )? "]"', ("space", "value")),
    "string": (r'"\"" char* "\""', ("char",)),
    "char": (r'[^"\\\x7F\x00-\x1F] | [\\] ( ["\\bfnrt] | "u" hex )', ("hex",)),
    # not half a character: two would be one for the schema, and two for the grammar
    "hex": ("[0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}", ()),
    "plain": (r'[^"\\\x7F\x00-\x1F]', ()),
    "number": ('integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?', ("integer",)),
    "integer": ('"-"? ( [0] | [1-9] [0-9]{0,15} )', ()),
    "boolean": ('"true" | "false"', ()),
    "null": ('"null"', ()),
    "date": (
        '[0-9]{4} "-" ( ( "0" [13-9] | "1" [0-2] ) "-" ( "0" [1-9] | [12] [0-9] | "30" )'
        ' | ( "0" [13578] | "1" [02] ) "-31" | "02-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] ) )',
        (),
    ),
    "time": ('hour ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{3} )? ( "Z" | [-+] hour ":" [0-5] [0-9] )', ("hour",)),
    "hour": ('[01] [0-9] | "2" [0-3]', ()),
    "date-time": ('date "T" time', ("date", "time")),
    "uuid": ('digit{8} "-" digit{4} "-" digit{4} "-" digit{4} "-" digit{12}', ("digit",)),
    "digit": ("[0-9a-fA-F]", ()),
}
_FORMATS = ("date", "date-time", "time", "uuid")


class SchemaError(ValueError):
    """A schema that is none, or that no grammar can hold a text to."""


def schema_gbnf(schema: object) -> str:
    """The GBNF of a schema. Raises SchemaError, which names the place in the schema and what is wrong."""
    return _Converter(schema).gbnf()


class _Converter:
    def __init__(self, root: object) -> None:
        self.root = root
        self.rules: dict[str, str] = {}
        self.names: dict[str, str] = {}  # of rules, by what they say
        self.refs = {"#": "root"}
        self.todo = deque(["#"])  # references whose rules are to be made: no recursion, which schemas could make deep

    def gbnf(self) -> str:
        while self.todo:
            ref = self.todo.popleft()
            self.rules[self.refs[ref]] = self.schema(self.target(ref, ref), ref)
        return "".join(f"{name} ::= {rule}\n" for name, rule in self.rules.items())

    def rule(self, says: str, hint: str = "part") -> str:
        """The name of a rule."""
        if says not in self.names:
            self.names[says] = self.fresh_name(hint)
            self.rules[self.names[says]] = says
        return self.names[says]

    def fresh_name(self, hint: str) -> str:
        hint = re.sub("[^a-zA-Z0-9]+", "-", hint[-40:]).strip("-") or "part"
        return f"{hint}-{len(self.rules) + len(self.refs)}"

    def known(self, name: str) -> str:
        """The name of one of _RULES, which is a rule from now on."""
        todo = [name]
        while todo:
            needed = todo.pop()
            if needed not in self.rules:
                self.rules[needed], more = _RULES[needed]
                todo += more
        return name

    # each of these gives alternatives

    def schema(self, schema: object, path: str) -> str:
        if not isinstance(schema, dict):
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        types = _types(schema, path)
        _check_keywords(schema, types, path)
        if "$ref" in schema:
            return self.ref(schema["$ref"], path)
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                parts = _listed(schema, keyword, path)
                return " | ".join(self.schema(part, f"{path}/{keyword}/{i}") for i, part in enumerate(parts))
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else _listed(schema, "enum", path)
            values = [v for v in values if not types or any(_TYPES[name](v) for name in types)]
            if not values:
                raise SchemaError(f"{path} has no value of its type")
            return " | ".join(map(_literal, values))
        if not types:
            types = [next((name for name, keywords in _HEEDED.items() if keywords & schema.keys()), "value")]
        makers = {"object": self.object, "array": self.array, "string": self.string, "integer": self.integer}
        return " | ".join(makers[t](schema, path) if t in makers else self.known(t) for t in types)

    def part(self, schema: object, path: str) -> str:
        return self.rule(self.schema(schema, path), path.rpartition("/")[2])

    def ref(self, ref: object, path: str) -> str:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise SchemaError(f"{path}: $ref {ref!r:.80} is not one into the same document, as '#/$defs/name'")
        if ref not in self.refs:
            self.target(ref, path)
            self.refs[ref] = self.fresh_name(ref)
            self.todo.append(ref)
        return self.refs[ref]

    def target(self, ref: str, path: str) -> object:
        found = self.root
        for step in ref.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and len(name) < 10 and int(name) < len(found):
                found = found[int(name)]
            else:
                raise SchemaError(f"{path}: cannot resolve $ref {ref!r:.80}: there is no {name!r:.40}")
        return found

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
            return self.known("object")
        space = self.known("space")
        members = [
            self.rule(f'{_literal(name)} {space} ":" {space} {self.part(part, f"{path}/properties/{name}")}', name)
            for name, part in properties.items()
        ]
        after = ""  # what may follow a member
        if others is not False:
            value = self.known("value") if others is True else self.part(others, f"{path}/additionalProperties")
            other = self.rule(f'{self.other_name(properties)} {space} ":" {space} {value}', "other")
            members.append(other)
            after = self.rule(f'( "," {space} {other} )*', "others")
        first: list[str] = []  # members that may come first, and what may follow each
        for name, member in reversed([*zip([*properties, None], members, strict=False)]):
            if name in needed:
                first.clear()
            first.append(f"{member} {after}")
            if name in needed:
                after = self.rule(f'"," {space} {member} {after}', "then")
            elif name is not None:
                after = self.rule(f'( "," {space} {member} )? {after}', "then")
        if not first:
            return f'"{{" {space} "}}"'
        some = f"( {' | '.join(reversed(first))} ) {space}"
        return f'"{{" {space} {some if needed else f"( {some} )?"} "}}"'

    def other_name(self, names: dict[str, Any]) -> str:
        """The name, as JSON, of a property with another name: a rule for each beginning of those that are known."""
        if sum(map(len, names)) > MAX_NAMES:
            raise SchemaError(f"names beside additionalProperties have more than {MAX_NAMES} characters")
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
            ways.append(f"{other} {self.known('plain')}*")
            rules[i] = self.rule(" | ".join([*ways, *([] if i in ends else ['""'])]), "name")
        return rf'"\"" {rules[0]} "\""'

    def array(self, schema: dict[str, Any], path: str) -> str:
        space = self.known("space")
        least, most = _counts(schema, "Items", path)
        keyword = "items" if "items" in schema else "prefixItems"
        items = schema.get(keyword)
        if isinstance(items, list):
            if not least <= len(items) <= (len(items) if most is None else most):
                raise SchemaError(f"{path} has {len(items)} items, and bounds that forbid it")
            parts = [self.part(item, f"{path}/{keyword}/{i}") for i, item in enumerate(items)]
            some = f' "," {space} '.join(parts)
            return f'"[" {space} {some} {space} "]"' if parts else f'"[" {space} "]"'
        item = self.known("value") if keyword not in schema else self.part(items, f"{path}/{keyword}")
        if most == 0:
            return f'"[" {space} "]"'
        more = self.rule(f'"," {space} {item}', "more")
        some = f"{item} {more}{_times(max(least, 1) - 1, None if most is None else most - 1)} {space}"
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
            if schema["format"] not in _FORMATS:
                raise SchemaError(
                    f"{path} has the format {schema['format']!r:.40}, which is none of {', '.join(_FORMATS)}"
                )
            return rf'"\"" {self.known(schema["format"])} "\""'
        if not schema.keys() & {"minLength", "maxLength"}:
            return self.known("string")
        return rf'"\"" {self.known("char")}{_times(*_counts(schema, "Length", path))} "\""'

    def integer(self, schema: dict[str, Any], path: str) -> str:
        bounds: dict[str, int] = {}
        for keyword in _HEEDED["integer"] & schema.keys():
            value = schema[keyword]
            if not _is_number(value):
                raise SchemaError(f"{path}/{keyword} must be a number")
            lower, exclusive = keyword.lower().endswith("minimum"), keyword.startswith("exclusive")
            bounds[keyword] = (
                (math.floor(value) + 1 if lower else math.ceil(value) - 1)
                if exclusive
                else (math.ceil(value) if lower else math.floor(value))
            )
        if not bounds:
            return self.known("integer")
        least = max((bounds[k] for k in ("minimum", "exclusiveMinimum") if k in bounds), default=None)
        most = min((bounds[k] for k in ("maximum", "exclusiveMaximum") if k in bounds), default=None)
        try:
            return integers(least, most)
        except ValueError as error:
            raise SchemaError(f"{path}: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _types(schema: dict[str, Any], path: str) -> list[str]:
    """Those that a schema names, each once."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if (
        not isinstance(types, list)
        or not all(isinstance(name, str) for name in types)
        or ("type" in schema and not types)
    ):
        raise SchemaError(f"{path}/type must be a type, or a list of them")
    if unknown := [name for name in types if name not in _TYPES]:
        raise SchemaError(f"{path} has the type {unknown[0]!r:.40}, which is none of {', '.join(_TYPES)}")
    return list(dict.fromkeys(types))


def _check_keywords(schema: dict[str, Any], types: list[str], path: str) -> None:
    keywords = schema.keys() - _SILENT
    alone = next((keyword for keyword in _ALONE if keyword in schema), None)
    if alone:
        heeded = {alone} if alone in ("$ref", "oneOf", "anyOf") else {alone, "type"}
    elif types:
        heeded = {"type"}.union(*(_HEEDED.get(name, set()) for name in types))
    else:
        heeded = next((known for known in _HEEDED.values() if known & keywords), set())
        if heeded is _HEEDED["integer"]:  # without the type, any number would do
            heeded = set()
    for keyword in sorted(keywords - heeded):
        beside = f" beside {alone!r}" if alone else ""
        raise SchemaError(f"{path} has the keyword {keyword!r:.40}, which is not supported{beside}")


def _listed(schema: dict[str, Any], keyword: str, path: str) -> list[Any]:
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{path}/{keyword} must be a list that is not empty")
    return values


def _counts(schema: dict[str, Any], of: str, path: str) -> tuple[int, int | None]:
    """The least and the most, None for any number."""
    for keyword in {f"min{of}", f"max{of}"} & schema.keys():
        value = schema[keyword]
        if not _is_number(value) or value < 0 or value != math.floor(value):
            raise SchemaError(f"{path}/{keyword} must be an integer, 0 or more")
    least, most = int(schema.get(f"min{of}", 0)), int(schema[f"max{of}"]) if f"max{of}" in schema else None
    if least > MAX_REPETITIONS:
        raise SchemaError(f"{path}/min{of} is more than {MAX_REPETITIONS}")
    if most is not None and least > most:
        raise SchemaError(f"{path}/max{of} is less than min{of}")
    return least, most


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else min(most, MAX_REPETITIONS)}}}"


def _literal(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return quoted(re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text))
