"""Conversion of JSON schemas to grammars.

Where a grammar cannot express everything that a schema allows, the grammar allows only a part of it: properties in the
schema's order, tuples with all of their items, sets of listed values in the order of the list, no escapes in the names
of additional properties, numbers of at most 16 digits (15 and no exponent if the schema bounds them), some strings of a
format, and strings and arrays of at most 2,000 characters or items if the schema sets a maximum.

What no grammar can hold to is refused or left out, as the mode of the conversion demands, and reported by its place.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pymtp.errors import InvalidRequestError
from pymtp.grammar.arrays import ArrayRules, lists_values
from pymtp.grammar.characters import json_characters
from pymtp.grammar.cycles import ReferenceCycles
from pymtp.grammar.json_text import literal
from pymtp.grammar.keywords import (
    ANNOTATIONS,
    COMBINERS,
    EXCLUDED_VALUES,
    TYPE_KEYWORDS,
    TYPES,
    KeywordReport,
    Mode,
    NoValueError,
    SchemaError,
    Several,
    find_ref,
    non_empty_list,
    types_of,
)
from pymtp.grammar.merge import Combiner
from pymtp.grammar.numbers import number_rule
from pymtp.grammar.objects import ObjectRules
from pymtp.grammar.regex import repetitions
from pymtp.grammar.rules import Rules
from pymtp.grammar.strings import CONDITIONS, StringConditions, Writing, read_lengths
from pymtp.grammar.values import Validator, value_key

_DEFERRED = COMBINERS - {"anyOf", "oneOf"}
_LISTING = {"type", "enum", "const", "format"}
MAX_DEPTH = 64  # levels of nested values in a schema; limited because the converter recurses
MAX_TEXT = 2**20  # length of a schema's JSON, and of a grammar that is made from schemas


class SchemaGrammar(NamedTuple):
    """The grammar of a schema.

    left_out: the places of the keywords that the grammar does not hold to, such as "#/properties/a/uniqueItems".
    """

    gbnf: str
    left_out: tuple[str, ...]


class SchemaConverter:
    """A converter that turns the schemas within one JSON document into rules of a grammar.

    report: the keywords that are left out.
    """

    def __init__(self, root: object, rules: Rules, mode: Mode) -> None:
        """Prepare the conversion.

        root: the document, into which the references of its schemas point.
        rules: the rules to which the converter adds its rules.
        mode: what is done about keywords that no grammar can express: see `Mode`.
        """
        self.root, self.rules, self.report = root, rules, KeywordReport(mode)
        self.refs: dict[str, str] = {}
        # References and combinations of schemas whose rules are not made yet. A queue instead of recursion: a chain of
        # references may be longer than Python can recurse, and combinations of recursive schemas contain themselves.
        self._pending: deque[tuple[str, object, str]] = deque()
        self._combined: dict[str, str] = {}
        self._cycles = ReferenceCycles(root)
        self.combiner = Combiner(root, self.report)
        self._arrays = ArrayRules(rules, self.report, self.rule_for, self._values_of)
        self._validator = Validator(root)
        self._objects = ObjectRules(rules, self.report, self.rule_for, self.combiner.alternatives, self._validator.fits)
        self._strings = StringConditions(rules, self.report, [Writing(json_characters)])

    def finish(self) -> None:
        """Make the rules of all references in the converted schemas."""
        while self._pending:
            name, schema, path = self._pending.popleft()
            self.rules.bodies[name] = self.schema(schema, path)

    # Each of the methods below returns the alternatives of a rule, as GBNF.

    def schema(self, schema: object, path: str) -> str:
        """Convert a schema.

        path: the schema's place in the document, for messages.

        Raises NoValueError for a schema that no value fulfils, and SchemaError for one that is malformed, or has a
        keyword that no grammar can express. In lenient mode, the schema's types are used then, or any value.
        """
        try:
            return self._exact(schema, path)
        except NoValueError:
            if self.report.mode != "lenient" or schema is False:
                raise
        except SchemaError:
            if self.report.mode != "lenient":
                raise
        self.report.note_schema(path)
        types = schema.get("type") if isinstance(schema, dict) else None
        names = [name for name in (types if isinstance(types, list) else [types]) if isinstance(name, str)]
        return " | ".join(self.rules.known(name) for name in names if name in TYPES) or self.rules.known("value")

    def _exact(self, schema: object, path: str) -> str:
        if schema is True or schema == {}:
            return self.rules.known("value")
        if schema is False:
            raise NoValueError(f"{path} is false: it allows no value")
        if not isinstance(schema, dict):
            raise SchemaError(f"{path} must be an object, not {schema!r:.40}")
        if COMBINERS.isdisjoint(schema):
            return self._plain(self.combiner.alternatives(schema, path)[0], path)
        keywords = schema.keys() - ANNOTATIONS
        if keywords == {"$ref"} and not self._cycles.refers_to_itself(schema["$ref"]):
            return self.ref(schema["$ref"], path)
        if len(keywords) == 1 and (keyword := next(iter(keywords))) in ("anyOf", "oneOf", "allOf"):
            parts = self.combiner.one_of(schema, path) if keyword == "oneOf" else non_empty_list(schema, keyword, path)
            if len(parts) == 1 or (keyword != "allOf" and not self._cycles.has_loop(schema)):
                return " | ".join(self._parts(parts, f"{path}/{keyword}"))
        found = self.combiner.alternatives(schema, path)
        if not found:
            raise NoValueError(f"{path}: no value is valid for all of its parts")
        if not self.combiner.endings.has_end(schema):
            raise NoValueError(f"{path}: each of its values contains another one, without an end")
        return " | ".join(dict.fromkeys(self._parts(found, path, numbered=False)))

    def _parts(self, parts: list[Any], path: str, *, numbered: bool = True) -> Iterator[str]:
        """Yield the GBNF of the schemas of which one must hold, without those that no value fulfils."""
        error: NoValueError | None = None
        found = False
        for i, part in enumerate(parts):
            try:
                yield self.schema(part, f"{path}/{i}") if numbered else self._plain(part, path)
                found = True
            except NoValueError as problem:
                error = error or problem
        if error and not found:
            raise error

    def _plain(self, schema: dict[str, Any], path: str) -> str:
        """Convert a plain schema, which combines no others."""
        values = self.listed_values(schema, path)
        if values is not None:
            return " | ".join(map(literal, values))
        types = self.types(schema, path)
        if not types:
            return self.rules.known("value")
        excluded = schema.get(EXCLUDED_VALUES, ())
        options, error = [], None
        for name in types:
            try:
                options.append(self._of_type(name, schema, [v for v in excluded if TYPES[name](v)], path))
            except NoValueError as problem:
                error = problem
        if not options and error:
            raise error
        return " | ".join(options)

    def listed_values(self, schema: dict[str, Any], path: str) -> list[Any] | None:
        """Return the values that a plain schema lists, if it lists any and if they fulfil its other keywords."""
        if "const" not in schema and "enum" not in schema:
            return None
        try:
            values = [schema["const"]] if "const" in schema else non_empty_list(schema, "enum", path)
            types = types_of(schema, path)
        except SchemaError as error:
            self.report.skip_malformed(path, "const" if "const" in schema else "enum", error)
            return None
        listed = "const" if "const" in schema else "enum"
        rest = {keyword: value for keyword, value in schema.items() if keyword not in (listed, "format")}
        if schema.keys() <= _LISTING | ANNOTATIONS and not ("const" in schema and "enum" in schema):
            fitting = [v for v in values if any(TYPES[name](v) for name in types)] if types else values
        else:
            excluded = {*map(value_key, schema.get(EXCLUDED_VALUES, ()))}
            fitting = [v for v in values if self._validator.fits(v, rest) and value_key(v) not in excluded]
        if not fitting:
            what = "of its type" if types and not any(TYPES[t](v) for t in types for v in values) else "that is valid"
            raise NoValueError(f"{path}: its const or enum has no value {what}")
        return fitting

    def types(self, schema: dict[str, Any], path: str) -> list[str]:
        """Return the types of a plain schema; [] for any value."""
        try:
            types = types_of(schema, path)
        except SchemaError as error:
            self.report.skip_malformed(path, "type", error)
            named = schema["type"] if isinstance(schema["type"], list) else []
            types = [name for name in named if isinstance(name, str) and name in TYPES]
            if not types:
                raise
        if not types:
            types = [name for name, keywords in TYPE_KEYWORDS.items() if keywords & schema.keys()]
            if not types and EXCLUDED_VALUES in schema:
                types = [name for name in TYPES if name != "integer"]
        return [name for name in types if name != "integer" or "number" not in types]

    def _of_type(self, name: str, schema: dict[str, Any], excluded: list[Any], path: str) -> str:
        """Return the GBNF of one type. excluded: values of the type that are not allowed."""
        if name == "string":
            return self.string(schema, path)
        if name in ("integer", "number"):
            return self._number(name, schema, excluded, path)
        if name == "boolean" and excluded:
            return " | ".join(literal(value) for value in (True, False) if value not in excluded) or self._none(path)
        if name == "null" and excluded:
            return self._none(path)
        if excluded:
            self.report.leave_out(path, "not", f"a grammar cannot exclude an {name}")
        if name == "object":
            return self._objects.grammar(schema, path)
        return self._arrays.grammar(schema, path) if name == "array" else self.rules.known(name)

    def _none(self, path: str) -> str:
        raise NoValueError(f"{path}: no value is left")

    def string(self, schema: dict[str, Any], path: str) -> str:
        """Return the GBNF of the strings of a plain schema."""
        if not CONDITIONS.isdisjoint(schema):
            written = self._strings.grammar(schema, path)
            if written is not None:
                return rf'"\"" {written} "\""'
        if "minLength" not in schema and "maxLength" not in schema:
            return self.rules.known("string")
        low, high = read_lengths(schema, path, self.report)
        return rf'"\"" {self.rules.known("char")}{repetitions(low, high)} "\""'

    def _number(self, name: str, schema: dict[str, Any], excluded: list[Any], path: str) -> str:
        bounds = TYPE_KEYWORDS["number"] & schema.keys()
        if not bounds and not excluded:
            return self.rules.known(name)
        kept = {keyword: schema[keyword] for keyword in bounds}
        while True:
            try:
                return number_rule(kept, self.rules, whole=name == "integer", excluded=excluded, path=path)
            except NoValueError:
                raise
            except SchemaError as error:
                # The first keyword that is to blame is left out, and the others are tried again.
                keyword = next((k for k in kept if k in str(error)), next(iter(kept), None))
                if keyword is None:
                    raise
                if f"{keyword} must be" in str(error):
                    self.report.skip_malformed(path, keyword, error)
                else:
                    self.report.leave_out(path, keyword, str(error))
                del kept[keyword]
                if not kept and not excluded:
                    return self.rules.known(name)

    def rule_for(self, schema: object, path: str) -> str:
        """Convert a schema to a rule, and return the name of the rule."""
        if schema is True:
            return self.rules.known("value")
        hint = path.rpartition("/")[2]
        combines = isinstance(schema, dict) and not _DEFERRED.isdisjoint(schema)
        if combines and isinstance(schema, dict) and schema.keys() - ANNOTATIONS != {"$ref"}:
            return self._combined_rule(schema, path, hint)
        return self.rules.rule(self.schema(schema, path), hint)

    def _combined_rule(self, schema: dict[str, Any], path: str, hint: str) -> str:
        if not self.combiner.alternatives(schema, path):
            raise NoValueError(f"{path}: no value is valid for all of its parts")
        if not self.combiner.endings.has_end(schema):
            raise NoValueError(f"{path}: each of its values contains another one, without an end")
        key = json.dumps(schema, sort_keys=True)
        if key not in self._combined:
            self._combined[key] = self.rules.fresh_name(hint)
            self._pending.append((self._combined[key], schema, path))
        return self._combined[key]

    def ref(self, ref: object, path: str) -> str:
        """Return the name of the rule for a reference. `finish` makes the rule of a new reference.

        Raises NoValueError for a reference whose values never end.
        """
        if not isinstance(ref, str) or ref not in self.refs:
            target = find_ref(self.root, ref, path)
            if self.combiner.endless.is_endless(ref):
                raise NoValueError(f"{path}: each value of {ref!r:.80} contains another one, without an end")
            assert isinstance(ref, str)
            self.refs[ref] = self.rules.fresh_name(ref)
            self._pending.append((self.refs[ref], target, ref))
        return self.refs[ref]

    def _values_of(self, schema: object) -> list[Any] | None:
        """Return the values that a schema lists; None if it does not list them."""
        found = self.combiner.alternatives(schema, "#")
        lists = [lists_values(one) for one in found]
        if None in lists or not lists:
            return None
        fitting = [
            v for each, one in zip(lists, found, strict=True) for v in each or () if self._validator.fits(v, one)
        ]
        return [*{value_key(value): value for value in fitting}.values()]


def schema_grammar(text: str, *, strict: bool = True) -> SchemaGrammar:
    """Convert a schema, as JSON text, to a grammar.

    strict: whether a keyword that no grammar can express is refused; otherwise it is left out.

    Raises InvalidRequestError, which names the place in the schema and the fault.
    """
    try:
        converter = SchemaConverter(schema := json.loads(text), Rules(), "strict" if strict else "weaken")
        if not converter.combiner.endless.is_endless("#"):
            converter.refs["#"] = "root"
        # After the rules that it names: llama.cpp's parser takes fewer repetitions where many rules come before it.
        converter.rules.bodies["root"] = converter.schema(schema, "#")
        converter.finish()
    except (SchemaError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema: {error}") from error
    return SchemaGrammar(converter.rules.gbnf(), tuple(converter.report.names))


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


def _check_depth(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"json_schema is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


__all__ = ["MAX_DEPTH", "MAX_TEXT", "SchemaConverter", "SchemaGrammar", "Several", "schema_grammar", "schema_text"]
