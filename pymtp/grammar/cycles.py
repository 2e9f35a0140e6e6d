"""References that lead back to themselves without a property or an item in between."""

from __future__ import annotations

from pymtp.grammar.keywords import SchemaError, find_ref


class ReferenceCycles:
    """The cycles among the references of one JSON document.

    A rule of a grammar may not begin with itself, so the alternatives of such references are written out.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._component: dict[str, int] = {}  # the number of the strongly connected component of a reference
        self._cyclic = set[int]()

    def has_loop(self, schema: object) -> bool:
        """Return whether an alternative of a schema is a reference that leads back to itself."""
        return any(self.refers_to_itself(ref) for ref in _direct_refs(schema))

    def refers_to_itself(self, ref: object) -> bool:
        """Return whether following a reference leads back to it."""
        if not isinstance(ref, str):
            return False
        if ref not in self._component:
            self._visit(ref)
        return self._component[ref] in self._cyclic

    def _targets(self, ref: str) -> list[str]:
        try:
            return _direct_refs(find_ref(self._root, ref, "#"))
        except SchemaError:
            return []

    def _visit(self, first: str) -> None:
        """Find the components of all references that one leads to, by Tarjan's algorithm without recursion."""
        order: dict[str, int] = {}
        low: dict[str, int] = {}
        open_refs: list[str] = []
        path: list[tuple[str, list[str]]] = []

        def enter(ref: str) -> None:
            order[ref] = low[ref] = len(order)
            open_refs.append(ref)
            path.append((ref, self._targets(ref)))

        enter(first)
        while path:
            ref, targets = path[-1]
            if targets:
                target = targets.pop()
                if target in self._component:
                    continue
                if target in order:
                    low[ref] = min(low[ref], order[target])
                else:
                    enter(target)
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[ref])
            if low[ref] == order[ref]:
                number = len(self._component)
                if open_refs[-1] != ref or ref in self._targets(ref):
                    self._cyclic.add(number)
                while (member := open_refs.pop()) != ref:
                    self._component[member] = number
                self._component[ref] = number


def _direct_refs(schema: object) -> list[str]:
    """List the references among the alternatives and the parts of a schema."""
    found, todo = [], [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(ref := part.get("$ref"), str):
            found.append(ref)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if isinstance(part.get(keyword), list):
                todo += part[keyword]
    return found
