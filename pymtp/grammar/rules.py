"""The rules of a grammar, each once."""

from __future__ import annotations

import re

from pymtp.errors import InvalidRequestError

MAX_WORK = 2**24  # characters of rules that are made, those too that are there already

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


class Rules:
    """Rules by name. Each says what it allows."""

    def __init__(self) -> None:
        self.says: dict[str, str] = {}
        self._names: dict[str, str] = {}  # by what they say
        self._n_fresh = 0
        self._work = 0

    def gbnf(self) -> str:
        return "".join(f"{name} ::= {rule}\n" for name, rule in self.says.items())

    def rule(self, says: str, hint: str = "part") -> str:
        """The name of a rule that says so. Raises InvalidRequestError where all schemas together take too much work: a
        small one may ask for more rules than any machine can make."""
        self._add_work(len(says))
        if says not in self._names:
            self._names[says] = self.fresh_name(hint)
            self.says[self._names[says]] = says
        return self._names[says]

    def _add_work(self, characters: int) -> None:
        self._work += characters
        if self._work > MAX_WORK:
            raise InvalidRequestError("the schemas come to a grammar that is too large")

    def fresh_name(self, hint: str) -> str:
        self._add_work(len(hint) + 64)  # about what a rule says
        hint = re.sub("[^a-zA-Z0-9]+", "-", hint[-40:]).strip("-") or "part"
        self._n_fresh += 1
        return f"{hint}-{self._n_fresh}"

    def known(self, name: str) -> str:
        """The name of one of _RULES, which is a rule from now on."""
        todo = [name]
        while todo:
            needed = todo.pop()
            if needed not in self.says:
                self.says[needed], more = _RULES[needed]
                todo += more
        return name
