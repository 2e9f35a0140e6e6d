"""Texts that a grammar in GBNF allows, drawn at random: of rules, literals, classes, groups and repetitions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from random import Random

_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_TOKEN = re.compile(
    r'\s*(?:(?P<literal>"(?:[^"\\]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<name>[a-zA-Z0-9-]+(?!\s*::=))'
    r"|(?P<times>[*+?]|\{[0-9]+(?:,[0-9]*)?\})|(?P<sign>[()|]))",
    re.DOTALL,
)
LETTERS = "ab1 \n<>/\"'{}\\é🙂"  # those that are drawn from wide classes, mostly


@dataclass(frozen=True)
class Literal:
    text: str


@dataclass(frozen=True)
class Class:
    ranges: tuple[tuple[int, int], ...]

    def has(self, character: int) -> bool:
        return any(low <= character <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Ways:
    """Of sequences: each of parts, and how often each comes."""

    each: tuple[tuple[tuple[Node, int, float], ...], ...]


Node = Literal | Class | Name | Ways


class Texts:
    """Draws texts of a grammar. Those of up to about `size` characters are likely."""

    def __init__(self, gbnf: str, size: int = 200) -> None:
        self.size = size
        self.rules: dict[str, Ways] = {}
        for line in re.split(r"\n(?=[a-zA-Z0-9-]+ ::= )", gbnf):
            name, _, says = line.partition(" ::= ")
            self.rules[name] = _ways(_tokens(says))
        self.shortest = dict.fromkeys(self.rules, math.inf)
        while any([self._shorter(name) for name in self.rules]):
            pass

    def _shorter(self, name: str) -> bool:
        before, self.shortest[name] = self.shortest[name], self._least(self.rules[name])
        return self.shortest[name] < before

    def _least(self, node: Node) -> float:
        match node:
            case Literal(text):
                return len(text)
            case Class():
                return 1
            case Name(name):
                return self.shortest[name]
            case Ways(each):
                return min(sum(self._least(part) * least for part, least, _ in way if least) for way in each)
        raise AssertionError(node)

    def draw(self, random: Random) -> str:
        pieces: list[str] = []
        n, todo = 0, [Name("root")]
        while todo:
            match todo.pop():
                case Literal(text):
                    pieces.append(text)
                    n += len(text)
                case Class() as one:
                    pieces.append(_character(one, random))
                    n += 1
                case Name(name):
                    todo.append(self.rules[name])
                case Ways(each):
                    way = random.choice(each) if n < self.size else min(each, key=lambda way: self._least(Ways((way,))))
                    todo += [
                        part for part, least, most in reversed(way) for _ in range(self._times(least, most, n, random))
                    ]
        return "".join(pieces)

    def _times(self, least: int, most: float, n: int, random: Random) -> int:
        more = 0
        while n < self.size and least + more < most and random.random() < 0.6:
            more += 1
        return least + more


def _character(one: Class, random: Random) -> str:
    liked = [letter for letter in LETTERS if one.has(ord(letter))]
    if liked and random.random() < 0.9:
        return random.choice(liked)
    low, high = random.choice(one.ranges)
    return chr(random.randint(low, high))


def _tokens(says: str) -> list[re.Match[str]]:
    found, at = [], 0
    says = says.rstrip()
    while at < len(says):
        token = _TOKEN.match(says, at)
        assert token, says[at : at + 40]
        found.append(token)
        at = token.end()
    return found[::-1]


def _ways(tokens: list[re.Match[str]]) -> Ways:
    """Up to the bracket that closes them."""
    ways: list[list[tuple[Node, int, float]]] = [[]]
    while tokens:
        token = tokens.pop()
        match token.lastgroup, token[token.lastgroup or 0]:
            case "sign", ")":
                break
            case "sign", "|":
                ways.append([])
            case "sign", _:
                ways[-1].append((_ways(tokens), 1, 1))
            case "literal", text:
                ways[-1].append((Literal(_unescaped(text[1:-1])), 1, 1))
            case "set", text:
                ways[-1].append((_class(text[1:-1]), 1, 1))
            case "name", name:
                ways[-1].append((Name(name), 1, 1))
            case "times", times:
                ways[-1][-1] = (ways[-1][-1][0], *_bounds(times))
    return Ways(tuple(map(tuple, ways)))


def _bounds(times: str) -> tuple[int, float]:
    if times in "*+?":
        return int(times == "+"), 1 if times == "?" else math.inf
    least, comma, most = times[1:-1].partition(",")
    return int(least), float(most or (math.inf if comma else least))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda e: _PLAIN.get(e[4], e[4]) if e[4] else chr(int(e[1] or e[2] or e[3], 16)), text)


def _class(text: str) -> Class:
    inverse = text.startswith("^")
    characters = [_unescaped(one) for one in re.findall(r"\\U.{8}|\\u.{4}|\\x..|\\.|.", text[inverse:], re.DOTALL)]
    ranges, i = [], 0
    while i < len(characters):
        if i + 2 < len(characters) and characters[i + 1] == "-":
            ranges.append((ord(characters[i]), ord(characters[i + 2])))
            i += 3
        else:
            ranges.append((ord(characters[i]),) * 2)
            i += 1
    return Class(tuple(_inverse(ranges) if inverse else ranges))


def _inverse(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found, at = [], 1
    for low, high in sorted([*ranges, (0xD800, 0xDFFF)]):
        if low > at:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return [*found, (at, 0x10FFFF)]
