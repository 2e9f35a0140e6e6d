"""Rules for arrays: tuples, items, sizes, and sets of listed values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymtp.grammar.keywords import TYPES, KeywordReport, NoValueError, SchemaError, Several, read_size
from pymtp.grammar.merge import all_of
from pymtp.grammar.pattern_syntax import MAX_REPETITIONS
from pymtp.grammar.regex import repetitions
from pymtp.grammar.rules import Rules

MAX_COUNTED = 500  # the items of an array whose items are counted one by one


class ArrayRules:
    """The writer of rules for arrays.

    rule_for: a function that converts a schema at a path, and returns the name of its rule.
    values_of: a function that returns the values that a schema lists; None if it does not list them.
    """

    def __init__(
        self,
        rules: Rules,
        report: KeywordReport,
        rule_for: Callable[[object, str], str],
        values_of: Callable[[object], list[Any] | None],
    ) -> None:
        self._rules, self._report, self._rule_for, self._values_of = rules, report, rule_for, values_of

    def grammar(self, schema: dict[str, Any], path: str) -> str:
        """Return GBNF for the arrays of a plain schema. Raises NoValueError if there are none."""
        space = self._rules.known("space")
        low, high = self._sizes(schema, path)
        prefix, rest = self._items(schema, low, path)
        if rest is False and low > len(prefix):
            raise NoValueError(f"{path}/minItems is {low}, and only {len(prefix)} items are allowed")
        if high == 0 or (rest is False and not prefix):
            return f'"[" {space} "]"'
        if schema.get("uniqueItems") is True and not (high == 1 or (not prefix and low < 2 and rest is False)):
            if not prefix and (values := self._values_of(rest)) is not None:
                if "contains" in schema and schema.get("minContains") != 0:
                    self._report.leave_out(path, "contains", "beside uniqueItems")
                return self._set(values, low, high, path)
            self._report.leave_out(path, "uniqueItems", "a grammar cannot compare items")
        if "contains" in schema and schema.get("minContains") != 0:
            if (written := self._with_contained(schema, prefix, rest, low, high, path)) is not None:
                return written
        elif "maxContains" in schema and "contains" in schema:
            self._report.leave_out(path, "maxContains", "a grammar cannot count these items")
        items, more = self._written_items(schema, prefix, rest, low, high, path)
        return f'"[" {space} {self._sequence(items, more, low, high)} "]"'

    def _sizes(self, schema: dict[str, Any], path: str) -> tuple[int, int | None]:
        sizes: dict[str, int | None] = {}
        for keyword in ("minItems", "maxItems"):
            try:
                sizes[keyword] = read_size(schema, keyword, path)
            except SchemaError as error:
                self._report.skip_malformed(path, keyword, error)
        low, high = sizes.get("minItems") or 0, sizes.get("maxItems")
        if low > MAX_REPETITIONS:
            self._report.leave_out(path, "minItems", f"it is more than {MAX_REPETITIONS}")
            low = 0
        if high is not None and low > high:
            self._report.skip_malformed(path, "maxItems", SchemaError(f"{path}/maxItems is less than minItems"))
            high = None
        return low, None if high is None else min(high, MAX_REPETITIONS)

    def _items(self, schema: dict[str, Any], low: int, path: str) -> tuple[list[object], object]:
        """Return the schemas of the first items, and the schema of all others."""
        prefix, rest = schema.get("prefixItems", []), schema.get("items", schema.get("unevaluatedItems"))
        if isinstance(rest, list):  # in draft 7 and before
            prefix, rest = rest, schema.get("additionalItems", schema.get("unevaluatedItems"))
        if not isinstance(prefix, list):
            self._report.skip_malformed(path, "prefixItems", SchemaError(f"{path}/prefixItems must be a list"))
            prefix = []
        if rest is None:  # there are no more items than the first ones unless minItems demands them
            rest = not prefix or low > len(prefix)
        return prefix, rest

    def _written_items(
        self, schema: dict[str, Any], prefix: Sequence[object], rest: object, low: int, high: int | None, path: str
    ) -> tuple[list[str], str | None]:
        """Return the rules of the first items, and the rule of all others; None if there may be none."""
        keyword = "prefixItems" if "prefixItems" in schema else "items"
        items = []
        for i, item in enumerate(prefix[:high]):
            try:
                items.append(self._rule_for(item, f"{path}/{keyword}/{i}"))
            except NoValueError:
                if low > i:
                    raise
                return items, None
        if rest is False or (high is not None and high <= len(prefix)):
            return items, None
        try:
            return items, self._rule_for(rest, f"{path}/items")
        except NoValueError:
            if low > len(prefix):
                raise
            return items, None

    def _sequence(self, items: Sequence[str], more: str | None, low: int, high: int | None) -> str:
        """Return GBNF for the items of an array: as many of the first ones as the sizes allow, then others."""
        space = self._rules.known("space")
        if not items:
            if more is None:
                return ""
            following = self._rules.rule(f'"," {space} {more}', "more")
            some = f"{more} {following}{repetitions(max(low, 1) - 1, None if high is None else high - 1)} {space}"
            return some if low else f"( {some} )?"
        written = f' "," {space} '.join(items)
        if more is not None:
            following = self._rules.rule(f'"," {space} {more}', "more")
            least, most = max(low - len(items), 0), None if high is None else high - len(items)
            written += f" {following}{repetitions(least, most)}"
        return f"{written} {space}"

    def _set(self, values: list[Any], low: int, high: int | None, path: str) -> str:
        """Return GBNF for arrays of some of the values, each at most once, in the order of the schema."""
        space = self._rules.known("space")
        if low > len(values):
            raise NoValueError(f"{path}/minItems is {low}, and there are only {len(values)} values")
        if len(values) * max(low, high or 0) > MAX_REPETITIONS:
            self._report.leave_out(path, "uniqueItems", f"of {len(values)} values, and minItems or maxItems")
            low, high = min(low, 1), None
        items = [self._rule_for({"const": value}, f"{path}/items") for value in values]
        counted = max(1, low if high is None else high)
        names: dict[tuple[int, int], str | None] = {}
        for i in reversed(range(len(items) + 1)):
            for count in range(min(i, counted) + 1):
                options = ['""'] if i == len(items) and count >= low else []
                if i < len(items):
                    options += filter(None, [names[i + 1, count]])
                    after = names.get((i + 1, min(count + 1, counted)))
                    if after is not None and (high is None or count < high):
                        comma = f'"," {space} ' if count else ""
                        options.append(f"{comma}{items[i]} {after}")
                names[i, count] = self._rules.rule(" | ".join(options), "set") if options else None
        if names[0, 0] is None:
            raise NoValueError(f"{path}: no array has so few or so many items")
        return f'"[" {space} {names[0, 0]} {space} "]"'

    def _with_contained(
        self, schema: dict[str, Any], prefix: Sequence[object], rest: object, low: int, high: int | None, path: str
    ) -> str | None:
        """Return GBNF for arrays that contain an item of the schema in `contains`; None if it is left out."""
        space = self._rules.known("space")
        contained = Several.of(schema["contains"])
        needed = schema.get("minContains", 1)
        counted = max(1, low) if high is None else high
        if prefix or len(contained) > 1 or needed != 1 or "maxContains" in schema or counted > MAX_COUNTED:
            keyword = next((name for name in ("maxContains", "minContains") if name in schema), "contains")
            self._report.leave_out(path, keyword, "a grammar can only demand one such item, without prefixItems")
            return None
        one = self._rule_for(all_of(contained[0], rest), f"{path}/contains")
        try:
            other: str | None = self._rule_for(rest, f"{path}/items")
        except NoValueError:
            other = None
        more = f'( "," {space} {other} )*' if other else ""
        end = f'{space} "]"'
        found, missing = "", ""  # GBNF after `count` items, with and without a contained one; "" for a dead end
        for count in reversed(range(counted + 1)):
            comma = f'"," {space} ' if count else ""
            ends = [end] if count >= low else []
            if count == counted and high is None:
                options = [f"{more} {end}"]
                without = [f"{more} {comma}{one} {{}}"]
            else:
                room = high is None or count < high
                options = [*ends, *([f"{comma}{other} {found}"] if other and room and found else [])]
                without = [f"{comma}{one} {found}"] if room and found else []
                without += [f"{comma}{other} {missing}"] if other and room and missing else []
            found = self._rules.rule(" | ".join(options), "found") if options else ""
            missing = self._rules.rule(" | ".join(without).format(found), "missing") if without else ""
        if not missing:
            raise NoValueError(f"{path}: no array has so few or so many items")
        return f'"[" {space} {missing}'


def lists_values(schema: dict[str, Any]) -> list[Any] | None:
    """Return the values that a plain schema lists; None if it does not list them."""
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    if all(isinstance(name, str) and name in ("boolean", "null") for name in names):
        return [value for value in (False, True, None) if any(TYPES[str(name)](value) for name in names)]
    return None
