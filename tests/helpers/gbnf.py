"""Grammars as trees, their GBNF, and what they allow, written for reading: what grammar.cpp is held to. A stack is the
nodes that a text would have to go on with; a text that is ambiguous so far has several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LAST = 0x10FFFF


@dataclass(frozen=True)
class Characters:
    ranges: tuple[tuple[int, int], ...]
    inverse: bool = False

    def __str__(self) -> str:
        return f"[{'^' * self.inverse}{''.join(f'{_escape(a)}-{_escape(b)}' for a, b in self.ranges)}]"

    def has(self, character: int) -> bool:
        return any(a <= character <= b for a, b in self.ranges) != self.inverse


@dataclass(frozen=True)
class Token:
    id: int
    inverse: bool = False

    def __str__(self) -> str:
        return f"{'!' * self.inverse}<[{self.id}]>"


@dataclass(frozen=True)
class Text:
    text: str

    def __str__(self) -> str:
        return f'"{"".join(_escape(ord(c)) for c in self.text)}"'


@dataclass(frozen=True)
class Either:
    """Of sequences, which may be empty."""

    ways: tuple[tuple[Node, ...], ...]

    def __str__(self) -> str:
        return f"({' | '.join(' '.join(map(str, way)) for way in self.ways)})"


@dataclass(frozen=True)
class Repeat:
    what: Node
    least: int
    most: int | None

    def __str__(self) -> str:
        return f"({self.what}){{{self.least},{'' if self.most is None else self.most}}}"


@dataclass(frozen=True)
class Rule:
    name: str

    def __str__(self) -> str:
        return self.name


Node = Characters | Token | Text | Either | Repeat | Rule
Stack = tuple[Node, ...]
Rules = dict[str, Node]


def _escape(character: int) -> str:
    return f"\\U{character:08X}"


def gbnf(rules: Rules) -> str:
    return "\n".join(f"{name} ::= {node}" for name, node in rules.items())


def ways(rules: Rules, stack: Stack) -> set[Stack]:
    """The stacks that one leads to without a character or a token: each empty or with either of them first."""
    met: set[Stack] = set()
    todo = [stack]
    while todo:
        stack = todo.pop()
        if stack in met:
            continue
        met.add(stack)
        match stack:
            case (Text(text), *rest):
                todo.append((*(Characters(((ord(c), ord(c)),)) for c in text), *rest))
            case (Either(each), *rest):
                todo += [(*way, *rest) for way in each]
            case (Rule(name), *rest):
                todo.append((rules[name], *rest))
            case (Repeat(what, least, most), *rest):
                if least == 0:
                    todo.append(tuple(rest))
                if most != 0:
                    todo.append((what, Repeat(what, max(least - 1, 0), None if most is None else most - 1), *rest))
    return {stack for stack in met if not stack or isinstance(stack[0], (Characters, Token))}


def characters_of(rules: Rules, stacks: set[Stack]) -> Iterator[int]:
    """Some of every kind that the stacks tell apart."""
    for stack in stacks:
        if stack and isinstance(stack[0], Characters):
            for a, b in stack[0].ranges:
                yield from (a, b + 1)


@dataclass(frozen=True)
class Place:
    """Where a text stands: the stacks between two nodes, and those within a character of which there are some bytes."""

    whole: frozenset[Stack]
    within: frozenset[Stack] = frozenset()
    begun: bytes = b""

    @classmethod
    def start(cls, rules: Rules) -> Place:
        return cls(frozenset(ways(rules, (rules["root"],))))

    @property
    def may_end(self) -> bool:
        return not self.begun and () in self.whole

    def after(self, rules: Rules, token: int, data: bytes) -> Place | None:
        """None where the grammar does not allow the token. data: its bytes; a control token has none, and comes only
        where it is named."""
        named = {
            way
            for stack in self.whole
            if stack and isinstance(stack[0], Token) and (stack[0].id == token) != stack[0].inverse
            if data or not stack[0].inverse
            for way in ways(rules, stack[1:])
        }
        if not data:
            return Place(frozenset(named)) if named and not self.begun else None
        text, begun = _split(self.begun + data)
        if text is None:
            return None
        stacks = set(self.within if self.begun else self.whole)
        for character in text:
            stacks = {way for stack in stacks if _begins(stack, ord(character)) for way in ways(rules, stack[1:])}
        if not begun:
            place = Place(frozenset(stacks | named))
        else:
            some = _completed(begun, characters_of(rules, stacks))
            within = frozenset(stack for stack in stacks if any(_begins(stack, c) for c in some))
            place = Place(frozenset(named), within, begun)
        return place if place.whole or place.within else None


def _begins(stack: Stack, character: int) -> bool:
    return bool(stack) and isinstance(stack[0], Characters) and stack[0].has(character)


def _split(data: bytes) -> tuple[str | None, bytes]:
    """Characters, and the bytes of one that is not complete. None for what no text begins with."""
    if 0 in data:
        return None, b""
    for cut in range(min(4, len(data) + 1)):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        begun = data[len(data) - cut :]
        return (text, begun) if not begun or _completed(begun, ()) else (None, b"")
    return None, b""


def _completed(begun: bytes, others: Iterator[int] | tuple[int, ...]) -> list[int]:
    """Characters that some bytes can become: the first and the last one, and the others that are among them."""
    found = []
    for n in range(1, 4):
        first, last = (_decoded(begun, tails) for tails in (_LOW[n], _HIGH[n]))
        found += [c for c in (first, last) if c is not None]
    if found:
        found += [c for c in others if min(found) <= c <= max(found) and not 0xD800 <= c <= 0xDFFF and c <= LAST]
    return found


# the bytes that may complete a character, the least and the greatest first: the second one may have narrower bounds
_LOW = {n: [bytes([low, *[0x80] * (n - 1)]) for low in (0x80, 0x90, 0xA0)] for n in range(1, 4)}
_HIGH = {n: [bytes([high, *[0xBF] * (n - 1)]) for high in (0xBF, 0x9F, 0x8F)] for n in range(1, 4)}


def _decoded(begun: bytes, tails: list[bytes]) -> int | None:
    for tail in tails:
        try:
            character = (begun + tail).decode()
        except UnicodeDecodeError:
            continue
        if len(character) == 1:
            return ord(character)
    return None
