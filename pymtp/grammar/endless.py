"""References to schemas whose values would never end, such as an object that requires an object like itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymtp.grammar.keywords import TYPE_KEYWORDS, SchemaError, find_ref, is_number

MAX_VISITS = 50_000  # schemas that are visited in one document; many references may lead to the same large schema


class EndlessReferences:
    """The references of one JSON document that no value with an end fulfils."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._ends: dict[str, bool] = {}
        self._visits = 0

    def is_endless(self, ref: object) -> bool:
        """Return whether no value with an end fulfils a reference, as far as a grammar writes the values.

        A reference that leads nowhere is not endless, and neither is one in a document too large to tell.
        """
        if not isinstance(ref, str):
            return False
        if ref not in self._ends:
            self._find(ref)
        return not self._ends[ref]

    def _find(self, first: str) -> None:
        """Find out which of the references end that one leads to: those that need only references that end."""
        targets: dict[str, object] = {}
        todo = [first]

        def note(ref: str) -> bool:
            todo.append(ref)
            return True

        while todo:
            ref = todo.pop()
            if ref in targets or ref in self._ends:
                continue
            try:
                targets[ref] = find_ref(self._root, ref, "#")
            except SchemaError:
                targets[ref] = True
            self._has_end(targets[ref], note)
        self._ends |= dict.fromkeys(targets, False)
        found = [first]
        while found and self._visits <= MAX_VISITS:
            # The references that were found last are those that the others need.
            found = [ref for ref in reversed(targets) if not self._ends[ref] and self._update(ref, targets[ref])]
        if self._visits > MAX_VISITS:
            self._ends |= dict.fromkeys(targets, True)

    def _update(self, ref: str, target: object) -> bool:
        self._ends[ref] = self._has_end(target, self._ends.__getitem__)
        return self._ends[ref]

    def _has_end(self, schema: object, ref_ends: Callable[[str], bool]) -> bool:
        """Return whether a schema allows a value with an end.

        ref_ends: a function that tells whether a reference does. It is asked for each reference that a value may need.
        """
        self._visits += 1
        if not isinstance(schema, dict) or self._visits > MAX_VISITS:
            return True
        every = [ref_ends(schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
        every += [self._has_end(part, ref_ends) for part in _listed(schema.get("allOf"))]
        for keyword in ("anyOf", "oneOf"):
            options = [self._has_end(part, ref_ends) for part in _listed(schema.get(keyword))]
            every.append(any(options) or not options)
        types = schema.get("type", [name for name, keywords in TYPE_KEYWORDS.items() if keywords & schema.keys()])
        names = types if isinstance(types, list) else [types]
        if names and not {"enum", "const"} & schema.keys() and schema.get("nullable") is not True:
            each = [[self._has_end(part, ref_ends) for part in needed_parts(schema, name)] for name in names]
            every.append(any(map(all, each)))
        return all(every)


def needed_parts(schema: dict[str, Any], name: object) -> list[object]:
    """Return the schemas of the parts that each value of a type has."""
    if name == "object":
        parts = schema.get("properties")
        parts = parts if isinstance(parts, dict) else {}
        rest = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        return [parts.get(each, rest) for each in _listed(schema.get("required")) if isinstance(each, str)]
    if name != "array" or schema.get("maxItems") == 0:
        return []
    first, others = schema.get("prefixItems"), schema.get("items", True)
    if isinstance(others, list):  # in draft 7 and before
        first, others = others, schema.get("additionalItems", True)
    needed = _listed(first)  # a grammar writes all of them
    least = schema.get("minItems", 0)
    if is_number(least) and least > len(needed):
        needed = [*needed, others]
    return [*needed, schema["contains"]] if "contains" in schema and schema.get("minContains") != 0 else needed


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
