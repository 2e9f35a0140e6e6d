"""Rules for objects: properties in the schema's order, then additional ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymtp.grammar.automaton import Expressions, NoTextError, PatternMatcher, expression_rule, pattern_sets
from pymtp.grammar.characters import ALL_CHARACTERS, NOT_PLAIN, inverse, json_characters, range_grammar
from pymtp.grammar.json_text import literal
from pymtp.grammar.keywords import EXCLUDED_VALUES, KeywordReport, NoValueError, SchemaError, Several, read_size
from pymtp.grammar.merge import all_of
from pymtp.grammar.pattern_syntax import MAX_REPETITIONS, PatternNode, literal_pattern, parse_pattern
from pymtp.grammar.regex import repetitions
from pymtp.grammar.rules import Rules
from pymtp.grammar.strings import FORMATS, format_pattern, read_lengths

MAX_NAME_CHARACTERS = 10_000  # in all property names of an object that also allows additional properties
MAX_PATTERNS = 16  # in patternProperties
MAX_COUNTED = 10_000  # states of an object whose properties are counted


@dataclass
class Members:
    """The members of an object.

    properties: the schemas by name, in order. required: the names that must be there.
    forbidden: names that no member may have. patterns: the schemas of names that match a pattern.
    extra: the schema of all other members; False for none. names: the plain schema of their names, if there is one.
    """

    properties: dict[str, object]
    required: set[str]
    forbidden: set[str]
    patterns: dict[str, object]
    extra: object
    names: dict[str, Any] | None = None


class ObjectRules:
    """The writer of rules for objects.

    rule_for: a function that converts a schema at a path, and returns the name of its rule.
    plain: a function that returns the plain schemas of a schema at a path.
    fits: a function that tells whether a value fulfils a schema.
    """

    def __init__(
        self,
        rules: Rules,
        report: KeywordReport,
        rule_for: Callable[[object, str], str],
        plain: Callable[[object, str], list[dict[str, Any]]],
        fits: Callable[[Any, object], bool],
    ) -> None:
        self._rules, self._report, self._rule_for, self._plain, self._fits = rules, report, rule_for, plain, fits

    def grammar(self, schema: dict[str, Any], path: str) -> str:
        """Return GBNF for the objects of a plain schema. Raises NoValueError if there are none."""
        members = self._members(schema, path)
        low, high = self._sizes(schema, members, path)
        known = members.properties or members.forbidden or members.patterns or members.names
        if members.extra is True and not known and (low, high) == (0, None):
            return self._rules.known("object")
        space = self._rules.known("space")
        written: dict[str, str] = {}
        for name, part in members.properties.items():
            try:
                value = self._rule_for(part, f"{path}/properties/{name}")
            except NoValueError:
                if name in members.required:
                    raise
                members.forbidden.add(name)
                continue
            written[name] = self._rules.rule(f'{literal(name)} {space} ":" {space} {value}', name)
        other = self._other(members, path)
        if (low, high) != (0, None):
            return self._counted(written, members.required, other, low, high, path)
        return self._in_order(written, members.required, other)

    def _members(self, schema: dict[str, Any], path: str) -> Members:
        mappings: dict[str, dict[str, object]] = {}
        for keyword in ("properties", "patternProperties"):
            mappings[keyword] = schema.get(keyword, {})
            if not isinstance(mappings[keyword], dict):
                self._report.skip_malformed(path, keyword, SchemaError(f"{path}/{keyword} must be an object"))
                mappings[keyword] = {}
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            error = SchemaError(f"{path}/required must be a list of names")
            self._report.skip_malformed(path, "required", error)
            required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        properties, patterns = dict(mappings["properties"]), mappings["patternProperties"]
        # Without a schema for them, additional properties are allowed only where no properties are known.
        default = "properties" not in schema and not patterns
        extra = schema.get("additionalProperties", schema.get("unevaluatedProperties", default))
        unknown = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        if len(patterns) > MAX_PATTERNS:
            self._report.leave_out(path, "patternProperties", f"it has more than {MAX_PATTERNS} patterns")
            patterns, extra = {}, True
        for pattern in [*patterns]:
            try:
                matcher = PatternMatcher(pattern)
                for name in [name for name in dict.fromkeys([*properties, *required]) if matcher.matches(name)]:
                    properties[name] = all_of(properties.get(name, True), patterns[pattern])
            except (ValueError, RecursionError) as error:
                self._report.leave_out(path, "patternProperties", f"{pattern!r:.80} cannot be enforced: {error}")
                patterns = {other: part for other, part in patterns.items() if other != pattern}
                extra = True if extra is False else extra
        for name in required:
            properties.setdefault(name, unknown)
        forbidden = {name for name, part in properties.items() if part is False}
        if missing := sorted(forbidden & {*required}):
            raise NoValueError(f"{path} requires {missing}, which it does not allow")
        properties = {name: part for name, part in properties.items() if name not in forbidden}
        members = Members(properties, {*required}, forbidden, patterns, extra)
        if "propertyNames" in schema:
            self._restrict_names(members, schema["propertyNames"], path)
        return members

    def _restrict_names(self, members: Members, schema: object, path: str) -> None:
        """Apply a schema to the names of all members."""
        unfit = {name for name in members.properties if not self._fits(name, schema)}
        if missing := sorted(unfit & members.required):
            raise NoValueError(f"{path} requires {missing}, which its propertyNames forbids")
        members.properties = {name: part for name, part in members.properties.items() if name not in unfit}
        options = [one for one in self._plain(schema, f"{path}/propertyNames")]
        lists = [one.get("enum", [one["const"]] if "const" in one else None) for one in options]
        if all(isinstance(values, list) for values in lists):
            for name in [name for values in lists for name in values or () if isinstance(name, str)]:
                if name in members.forbidden or name in members.properties or not self._fits(name, schema):
                    continue
                matching = [part for each, part in members.patterns.items() if PatternMatcher(each).matches(name)]
                part = members.extra if not matching else True
                for each in matching:
                    part = all_of(part, each)
                if part is not False:
                    members.properties[name] = part
            members.extra, members.patterns = False, {}
            return
        members.forbidden |= unfit
        if len(options) > 1:
            self._report.leave_out(path, "propertyNames", "it has several alternatives")
        elif options and options[0].keys() - {"type"}:
            members.names = options[0]

    def _sizes(self, schema: dict[str, Any], members: Members, path: str) -> tuple[int, int | None]:
        sizes: dict[str, int | None] = {}
        for keyword in ("minProperties", "maxProperties"):
            try:
                sizes[keyword] = read_size(schema, keyword, path)
            except SchemaError as error:
                self._report.skip_malformed(path, keyword, error)
        low, high = sizes.get("minProperties") or 0, sizes.get("maxProperties")
        n_required = len(members.required)
        if high is not None and high < max(low, n_required):
            why = SchemaError(f"{path}/maxProperties is less than minProperties or the number of required names")
            self._report.skip_malformed(path, "maxProperties", why)
            high = None
        low = 0 if low <= n_required else low
        open_ended = members.extra is not False or members.patterns
        if low > max(1, n_required) and open_ended:
            self._report.leave_out(path, "minProperties", "names of additional properties may repeat")
        if low > MAX_REPETITIONS or (not open_ended and low > len(members.properties)):
            if not open_ended:
                raise NoValueError(f"{path}/minProperties is {low}, and only {len(members.properties)} are allowed")
            low = 0
        if not open_ended and high is not None and high >= len(members.properties):
            high = None
        if high is not None:
            high = min(high, MAX_REPETITIONS)
        if (low or high is not None) and len(members.properties) * max(low, high or 0) > MAX_COUNTED:
            keyword = "maxProperties" if high is not None else "minProperties"
            self._report.leave_out(path, keyword, f"with {len(members.properties)} properties")
            return 0, None
        return low, high

    def _other(self, members: Members, path: str) -> str | None:
        """Return the rule of a member that is no known property; None if there is none."""
        if members.extra is False and not members.patterns:
            return None
        space = self._rules.known("space")
        options = []
        known = dict.fromkeys([*members.properties, *members.forbidden])
        if sum(map(len, known)) > MAX_NAME_CHARACTERS:
            raise SchemaError(
                f"the property names of {path} have more than {MAX_NAME_CHARACTERS} characters, too many where "
                "additionalProperties are allowed: shorten them, or set additionalProperties to false"
            )
        if members.extra is not False:
            try:
                rule = self._rule_for(members.extra, f"{path}/additionalProperties")
                if members.patterns or members.names:
                    name = self._name(members, None, path)
                else:
                    name = rf'"\"" {self._name_besides(known)} "\""'
                options.append(f'{name} {space} ":" {space} {rule}')
            except NoValueError:
                pass
        for pattern, part in members.patterns.items():
            try:
                rule = self._rule_for(part, f"{path}/patternProperties/{pattern}")
                options.append(f'{self._name(members, pattern, path)} {space} ":" {space} {rule}')
            except NoValueError:
                continue
        return self._rules.rule(" | ".join(options), "other") if options else None

    def _name(self, members: Members, wanted: str | None, path: str) -> str:
        """Return GBNF for a name that matches one pattern of patternProperties, or none, and is no known name.

        wanted: the pattern; None for names that match none.
        """
        condition = members.names or {}
        patterns = {pattern: parse_pattern(pattern) for pattern in members.patterns}
        names = [literal_pattern(name) for name in (*members.properties, *members.forbidden)]
        names += [literal_pattern(name) for name in condition.get(EXCLUDED_VALUES, ()) if isinstance(name, str)]
        try:
            more = [*map(_parse_name_pattern, Several.of(condition["pattern"]))] if "pattern" in condition else []
        except ValueError as error:
            self._report.leave_out(path, "propertyNames", f"its pattern cannot be enforced: {error}")
            more = []
        for name in Several.of(condition["format"]) if "format" in condition else ():
            if isinstance(name, str) and name in FORMATS:
                more.append(format_pattern(name))
        low, high = read_lengths(condition, f"{path}/propertyNames", self._report)
        sets = [ranges for node in (*patterns.values(), *names, *more) for ranges in pattern_sets(node)]
        try:
            expressions = Expressions([ALL_CHARACTERS, *sets])
            every = [expressions.search(node) for node in more]
            every += [
                expressions.search(node) if pattern == wanted else expressions.without(expressions.search(node))
                for pattern, node in patterns.items()
            ]
            every.append(expressions.without(expressions.any(map(expressions.whole, names))))
            every.append(expressions.repeat(expressions.characters(ALL_CHARACTERS), low, high))
            rule = expression_rule(expressions, expressions.both(every), self._rules, json_characters)
        except NoTextError as error:
            raise NoValueError(f"{path}: there is no further name that matches {wanted!r:.80}") from error
        except (ValueError, RecursionError) as error:
            keyword = "patternProperties" if members.patterns else "propertyNames"
            self._report.leave_out(path, keyword, f"the names cannot be enforced: {error}")
            rule = self._name_besides(dict.fromkeys([*members.properties, *members.forbidden]))
        return rf'"\"" {rule} "\""'

    def _name_besides(self, names: dict[str, None]) -> str:
        """Return the name of a rule for a string that equals none of the names. Adds a rule for each prefix of one."""
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
            alternatives.append(f"{other} {self._rules.known('plain')}*")
            rules[i] = self._rules.rule(" | ".join([*alternatives, *([] if i in ends else ['""'])]), "name")
        return rules[0]

    def _in_order(self, members: dict[str, str], required: set[str], other: str | None) -> str:
        """Return GBNF for an object of the members in order, and then any number of others."""
        space = self._rules.known("space")
        rest = self._rules.rule(f'( "," {space} {other} )*', "others") if other else ""
        first: list[str] = []  # for each member that may be the first: GBNF of it and the members after it
        if other:
            first.append(f"{other} {rest}")
        for name, member in reversed(members.items()):
            if name in required:
                first.clear()
            first.append(f"{member} {rest}")
            one = f'"," {space} {member}'
            rest = self._rules.rule(f"{one} {rest}" if name in required else f"( {one} )? {rest}", "then")
        if not first:
            return f'"{{" {space} "}}"'
        some = f"( {' | '.join(reversed(first))} ) {space}"
        return f'"{{" {space} {some if required else f"( {some} )?"} "}}"'

    def _counted(
        self, members: dict[str, str], required: set[str], other: str | None, low: int, high: int | None, path: str
    ) -> str:
        """Return GBNF for an object of `low` to `high` members."""
        space = self._rules.known("space")
        counted = low if high is None else high
        names: dict[tuple[int, int], str | None] = {}
        each = [*members.items()]
        for i in reversed(range(len(each) + 1)):
            for count in range(min(i, counted) + 1):
                comma = f'"," {space} ' if count else ""
                options: list[str] = []
                if i < len(each):
                    name, member = each[i]
                    after = names.get((i + 1, min(count + 1, counted)))
                    if after is not None and (high is None or count < high):
                        options.append(f"{comma}{member} {after}")
                    if name not in required and (without := names[i + 1, count]) is not None:
                        options.append(without)
                elif other is None or count == high:
                    options += ['""'] if count >= low else []
                else:
                    least, most = max(low - count, 0), None if high is None else high - count
                    following = self._rules.rule(f'"," {space} {other}', "more")
                    if not count:  # the first member has no comma before it
                        options += [] if least else ['""']
                        least, most = max(least - 1, 0), None if most is None else most - 1
                        following = f"{other} {following}"
                    options.append(following + repetitions(least, most))
                names[i, count] = self._rules.rule(" | ".join(options), "members") if options else None
        if names[0, 0] is None:
            raise NoValueError(f"{path}: no object has so few or so many properties")
        return f'"{{" {space} {names[0, 0]} {space} "}}"'


def _parse_name_pattern(pattern: object) -> PatternNode:
    if not isinstance(pattern, str):
        raise ValueError(f"{pattern!r:.80} is no string")
    return parse_pattern(pattern)
