"""Combinations of schemas whose values never end, though each of the combined schemas has some that do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pymtp.grammar.endless import needed_parts
from pymtp.grammar.keywords import TYPE_KEYWORDS, SchemaError

MAX_SCHEMAS = 1000  # schemas that one combination may lead to; beyond them it counts as one that ends


class Endings:
    """Tells which combinations in one JSON document have values with an end."""

    def __init__(self, alternatives: Callable[[object], list[dict[str, Any]]]) -> None:
        """alternatives: returns the plain schemas of a combination."""
        self._alternatives = alternatives
        self._ends: dict[str, bool] = {}

    def has_end(self, schema: object) -> bool:
        """Return whether a value with an end is valid for a schema, as far as a grammar writes the values."""
        first = json.dumps(schema, sort_keys=True)
        if first not in self._ends:
            self._find(first, schema)
        return self._ends[first]

    def _find(self, first: str, schema: object) -> None:
        """Find out for all schemas that one leads to whether they end: those of which some need only such that end."""
        needs: dict[str, list[list[str]]] = {}
        todo = {first: schema}
        while todo and len(needs) < MAX_SCHEMAS:
            key, part = todo.popitem()
            if key in self._ends or key in needs:
                continue
            needs[key] = []
            for option in self._options(part):
                keys = {json.dumps(each, sort_keys=True): each for each in option}
                needs[key].append([*keys])
                todo |= keys
        self._ends |= dict.fromkeys(needs, bool(todo))
        found = not todo
        while found:
            ending = [
                key
                for key, options in needs.items()
                if not self._ends[key] and any(all(self._ends[each] for each in option) for option in options)
            ]
            self._ends |= dict.fromkeys(ending, True)
            found = bool(ending)

    def _options(self, schema: object) -> list[list[object]]:
        """Return, for each kind of value that a schema allows, the schemas of the parts that each such value has."""
        if not isinstance(schema, dict) or not schema:
            return [] if schema is False else [[]]
        try:
            plain = self._alternatives(schema)
        except SchemaError:  # raised again where the schema is converted
            return [[]]
        options: list[list[object]] = []
        for one in plain:
            types = one.get("type", [name for name, keywords in TYPE_KEYWORDS.items() if keywords & one.keys()])
            names = types if isinstance(types, list) else [types]
            listed = not names or {"enum", "const"} & one.keys()
            options += [[]] if listed else [_written_parts(one, name) for name in names]
        return options


def _written_parts(schema: dict[str, Any], name: object) -> list[object]:
    """Return the schemas of the parts that each value of a type has; a tuple stops before an item that cannot be."""
    parts, least = needed_parts(schema, name), schema.get("minItems", 0)
    if name != "array" or not isinstance(least, int):
        return parts
    return parts[: next((i for i, part in enumerate(parts) if part is False and i >= least), len(parts))]
