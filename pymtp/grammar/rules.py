"""The rules of a grammar, each written once."""

from __future__ import annotations

import re
from collections.abc import Hashable

from pymtp.errors import InvalidRequestError

MAX_CHARACTERS = 2**24  # in the bodies of all requested rules; a rule that is requested twice counts twice

# Rules that are the same in every grammar, each with the names of the rules that it needs.
_KNOWN_RULES = {
    "space": (r'| " " | "\n"{1,2} [ \t]{0,20}', ()),
    "value": ("object | array | string | number | boolean | null", ("object", "array", "number", "boolean", "null")),
    "object": ('"{" space ( member ( "," space member )* space )? "}"', ("space", "member")),
    "member": ('string space ":" space value', ("space", "string", "value")),
    "array": ('"[" space ( value ( "," space value )* space )? "]"', ("space", "value")),
    "string": (r'"\"" char* "\""', ("char",)),
    "char": (r'[^"\\\x7F\x00-\x1F] | [\\] ( ["\\bfnrt] | "u" hex )', ("hex",)),
    # No escaped surrogates: a schema counts a surrogate pair as one character, but the grammar would count two.
    "hex": ("[0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}", ()),
    "plain": (r'[^"\\\x7F\x00-\x1F]', ()),
    "number": ('integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?', ("integer",)),
    "integer": ('"-"? ( [0] | [1-9] [0-9]{0,15} )', ()),
    "boolean": ('"true" | "false"', ()),
    "null": ('"null"', ()),
}


class Rules:
    """The rules of a grammar.

    bodies: the GBNF of each rule, by the name of the rule.
    written: the GBNF that names some of the rules, by what it stands for, if writing it again would take long.
    """

    def __init__(self) -> None:
        self.bodies: dict[str, str] = {}
        self.written: dict[Hashable, str] = {}
        self._names: dict[str, str] = {}  # the name of each rule, by the rule's body
        self._n_fresh = 0
        self._characters = 0

    def gbnf(self) -> str:
        """Return the whole grammar as GBNF."""
        return "".join(f"{name} ::= {rule}\n" for name, rule in self.bodies.items())

    def rule(self, body: str, hint: str = "part") -> str:
        """Return the name of the rule with this body. Adds the rule if there is no such rule yet.

        hint: the beginning of the name of a new rule.

        Raises InvalidRequestError beyond MAX_CHARACTERS: a small schema may need more rules than any machine can store.
        """
        self._count_characters(len(body))
        if body not in self._names:
            self._names[body] = self.fresh_name(hint)
            self.bodies[self._names[body]] = body
        return self._names[body]

    def _count_characters(self, characters: int) -> None:
        self._characters += characters
        if self._characters > MAX_CHARACTERS:
            raise InvalidRequestError("the grammar for the schemas is too large")

    def fresh_name(self, hint: str) -> str:
        """Return a name that no rule has yet, for a rule whose body the caller adds later."""
        self._count_characters(len(hint) + 64)  # 64: about the length of a rule, whose body is not known yet
        hint = re.sub("[^a-zA-Z0-9]+", "-", hint[-40:]).strip("-") or "part"
        self._n_fresh += 1
        return f"{hint}-{self._n_fresh}"

    def known(self, name: str) -> str:
        """Add one of _KNOWN_RULES and the rules that it needs, and return its name."""
        todo = [name]
        while todo:
            needed = todo.pop()
            if needed not in self.bodies:
                self.bodies[needed], more = _KNOWN_RULES[needed]
                todo += more
        return name
