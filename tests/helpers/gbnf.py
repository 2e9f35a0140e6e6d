"""A reference for grammars: their trees, their GBNF, and the tokens that they allow. Tests hold grammar.cpp to it.

A stack is the list of nodes that a text would have to continue with. A text that is ambiguous so far has several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LAST_CHARACTER = 0x10FFFF


@dataclass(frozen=True)
class CharacterClass:
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
class Literal:
    text: str

    def __str__(self) -> str:
        return f'"{"".join(_escape(ord(c)) for c in self.text)}"'


@dataclass(frozen=True)
class Alternatives:
    """A choice between sequences of nodes, which may be empty."""

    alternatives: tuple[tuple[GrammarNode, ...], ...]

    def __str__(self) -> str:
        return f"({' | '.join(' '.join(map(str, sequence)) for sequence in self.alternatives)})"


@dataclass(frozen=True)
class Repeat:
    node: GrammarNode
    minimum: int
    maximum: int | None

    def __str__(self) -> str:
        return f"({self.node}){{{self.minimum},{'' if self.maximum is None else self.maximum}}}"


@dataclass(frozen=True)
class Rule:
    name: str

    def __str__(self) -> str:
        return self.name


GrammarNode = CharacterClass | Token | Literal | Alternatives | Repeat | Rule
Stack = tuple[GrammarNode, ...]
Rules = dict[str, GrammarNode]


def _escape(character: int) -> str:
    return f"\\U{character:08X}"


def gbnf(rules: Rules) -> str:
    return "\n".join(f"{name} ::= {node}" for name, node in rules.items())


def expand(rules: Rules, stack: Stack) -> set[Stack]:
    """Return the stacks that a stack leads to without input: each is empty, or begins with a character or a token."""
    seen: set[Stack] = set()
    todo = [stack]
    while todo:
        stack = todo.pop()
        if stack in seen:
            continue
        seen.add(stack)
        match stack:
            case (Literal(text), *rest):
                todo.append((*(CharacterClass(((ord(c), ord(c)),)) for c in text), *rest))
            case (Alternatives(alternatives), *rest):
                todo += [(*sequence, *rest) for sequence in alternatives]
            case (Rule(name), *rest):
                todo.append((rules[name], *rest))
            case (Repeat(node, minimum, maximum), *rest):
                if minimum == 0:
                    todo.append(tuple(rest))
                if maximum != 0:
                    fewer = Repeat(node, max(minimum - 1, 0), None if maximum is None else maximum - 1)
                    todo.append((node, fewer, *rest))
    return {stack for stack in seen if not stack or isinstance(stack[0], (CharacterClass, Token))}


def boundary_characters(rules: Rules, stacks: set[Stack]) -> Iterator[int]:
    """Yield characters at the boundaries of the classes that come first in the stacks."""
    for stack in stacks:
        if stack and isinstance(stack[0], CharacterClass):
            for a, b in stack[0].ranges:
                yield from (a, b + 1)


@dataclass(frozen=True)
class GrammarPosition:
    """The position of a text in a grammar.

    between_nodes: the stacks between two nodes. in_character: the stacks within a character that has come in part.
    partial: the bytes of that character.
    """

    between_nodes: frozenset[Stack]
    in_character: frozenset[Stack] = frozenset()
    partial: bytes = b""

    @classmethod
    def start(cls, rules: Rules) -> GrammarPosition:
        return cls(frozenset(expand(rules, (rules["root"],))))

    @property
    def may_end(self) -> bool:
        return not self.partial and () in self.between_nodes

    def after(self, rules: Rules, token: int, data: bytes) -> GrammarPosition | None:
        """Return the position after a token; None where the grammar does not allow it.

        data: the token's bytes; a control token has none, and may come only where the grammar names it.
        """
        named = {
            sequence
            for stack in self.between_nodes
            if stack and isinstance(stack[0], Token) and (stack[0].id == token) != stack[0].inverse
            if data or not stack[0].inverse
            for sequence in expand(rules, stack[1:])
        }
        if not data:
            return GrammarPosition(frozenset(named)) if named and not self.partial else None
        text, partial = _split_characters(self.partial + data)
        if text is None:
            return None
        stacks = set(self.in_character if self.partial else self.between_nodes)
        for character in text:
            stacks = {
                sequence
                for stack in stacks
                if _allows_first(stack, ord(character))
                for sequence in expand(rules, stack[1:])
            }
        if not partial:
            position = GrammarPosition(frozenset(stacks | named))
        else:
            some = _completions(partial, boundary_characters(rules, stacks))
            in_character = frozenset(stack for stack in stacks if any(_allows_first(stack, c) for c in some))
            position = GrammarPosition(frozenset(named), in_character, partial)
        return position if position.between_nodes or position.in_character else None


def _allows_first(stack: Stack, character: int) -> bool:
    return bool(stack) and isinstance(stack[0], CharacterClass) and stack[0].has(character)


def _split_characters(data: bytes) -> tuple[str | None, bytes]:
    """Return the whole characters of some bytes, and the bytes of an incomplete one; None for bytes of no text."""
    if 0 in data:
        return None, b""
    for cut in range(min(4, len(data) + 1)):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        partial = data[len(data) - cut :]
        return (text, partial) if not partial or _completions(partial, ()) else (None, b"")
    return None, b""


def _completions(partial: bytes, others: Iterator[int] | tuple[int, ...]) -> list[int]:
    """List characters that some bytes can become: the first and the last one, and the others between them."""
    completions = []
    for n in range(1, 4):
        first, last = (_decode_any(partial, endings) for endings in (_LOW[n], _HIGH[n]))
        completions += [c for c in (first, last) if c is not None]
    if completions:
        completions += [
            c
            for c in others
            if min(completions) <= c <= max(completions) and not 0xD800 <= c <= 0xDFFF and c <= LAST_CHARACTER
        ]
    return completions


# The smallest and the largest bytes that may complete a character. The first of them may have narrower bounds.
_LOW = {n: [bytes([low, *[0x80] * (n - 1)]) for low in (0x80, 0x90, 0xA0)] for n in range(1, 4)}
_HIGH = {n: [bytes([high, *[0xBF] * (n - 1)]) for high in (0xBF, 0x9F, 0x8F)] for n in range(1, 4)}


def _decode_any(partial: bytes, endings: list[bytes]) -> int | None:
    for tail in endings:
        try:
            character = (partial + tail).decode()
        except UnicodeDecodeError:
            continue
        if len(character) == 1:
            return ord(character)
    return None
