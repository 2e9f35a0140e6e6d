"""Texts that a grammar in GBNF allows, drawn at random: one of rules, literals, classes, groups and repetitions."""

from __future__ import annotations

import math
import re
from random import Random

from helpers.gbnf import Characters, Either, Node, Repeat, Rule, Rules, Text, ways

_ESCAPE = re.compile(r"\\(?:x(.{2})|u(.{4})|U(.{8})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_TOKEN = re.compile(
    r'\s*(?:(?P<literal>"(?:[^"\\]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<name>[a-zA-Z0-9-]+)'
    r"|(?P<times>[*+?]|\{[0-9]+(?:,[0-9]*)?\})|(?P<sign>[()|]))",
    re.DOTALL,
)
LETTERS = "ab1 \n<>/\"'{}\\é🙂"  # that are drawn from wide classes, mostly


def read_gbnf(gbnf: str) -> Rules:
    lines = re.split(r"\n(?=[a-zA-Z0-9-]+ ::= )", gbnf.rstrip())
    return {name: _either(_tokens(says)) for name, _, says in (line.partition(" ::= ") for line in lines)}


def allows(rules: Rules, text: str) -> bool:
    stacks = ways(rules, (Rule("root"),))
    for character in map(ord, text):
        after = {
            stack[1:] for stack in stacks if stack and isinstance(stack[0], Characters) and stack[0].has(character)
        }
        stacks = {way for stack in after for way in ways(rules, stack)}
    return () in stacks


class Texts:
    """Draws texts of a grammar. Those of up to about `size` characters are likely."""

    def __init__(self, rules: Rules, size: int = 200) -> None:
        self.rules, self.size = rules, size
        self._shortest = dict.fromkeys(rules, math.inf)
        while any([self._shorter(name) for name in reversed(rules)]):  # rules come before those that they name
            pass

    def _shorter(self, name: str) -> bool:
        before, self._shortest[name] = self._shortest[name], self._least(self.rules[name])
        return self._shortest[name] < before

    def _least(self, node: Node) -> float:
        """How many characters it has at least."""
        match node:
            case Text(text):
                return len(text)
            case Rule(name):
                return self._shortest[name]
            case Repeat(what, least):
                return self._least(what) * least if least else 0
            case Either(each):
                return min(sum(map(self._least, way)) for way in each)
        return 1

    def draw(self, random: Random) -> str:
        pieces: list[str] = []
        n, todo = 0, [Rule("root")]
        while todo:
            match todo.pop():
                case Text(text):
                    pieces.append(text)
                    n += len(text)
                case Characters() as one:
                    pieces.append(_character(one, random))
                    n += 1
                case Rule(name):
                    todo.append(self.rules[name])
                case Repeat(what, least, most):
                    while n < self.size and (most is None or least < most) and random.random() < 0.6:
                        least += 1
                    todo += [what] * least
                case Either(each):
                    way = (
                        random.choice(each) if n < self.size else min(each, key=lambda way: sum(map(self._least, way)))
                    )
                    todo += reversed(way)
        return "".join(pieces)


def _character(one: Characters, random: Random) -> str:
    liked = [letter for letter in LETTERS if one.has(ord(letter))]
    if liked and random.random() < 0.9:
        return random.choice(liked)
    if one.inverse:
        return "z"
    return chr(random.randint(*random.choice(one.ranges)))


def _tokens(says: str) -> list[re.Match[str]]:
    found, at, says = [], 0, says.rstrip()
    while at < len(says):
        token = _TOKEN.match(says, at)
        assert token, says[at : at + 40]
        found.append(token)
        at = token.end()
    return found[::-1]


def _either(tokens: list[re.Match[str]]) -> Either:
    """Up to the bracket that closes it."""
    each: list[list[Node]] = [[]]
    while tokens:
        token = tokens.pop()
        match token.lastgroup, token[token.lastgroup or 0]:
            case "sign", ")":
                break
            case "sign", "|":
                each.append([])
            case "sign", _:
                each[-1].append(_either(tokens))
            case "literal", text:
                each[-1].append(Text(_ESCAPE.sub(_unescaped, text[1:-1])))
            case "set", text:
                each[-1].append(_characters(text[1:-1]))
            case "name", name:
                each[-1].append(Rule(name))
            case "times", times:
                each[-1].append(_repeat(each[-1].pop(), times))
    return Either(tuple(map(tuple, each)))


def _repeat(what: Node, times: str) -> Repeat:
    if times in "*+?":
        return Repeat(what, int(times == "+"), 1 if times == "?" else None)
    least, comma, most = times[1:-1].partition(",")
    return Repeat(what, int(least), int(most) if most else None if comma else int(least))


def _unescaped(escape: re.Match[str]) -> str:
    *hexadecimal, plain = escape.groups()
    return _PLAIN.get(plain, plain) if plain else chr(int(next(filter(None, hexadecimal)), 16))


def _characters(text: str) -> Characters:
    inverse = text.startswith("^")
    each = re.finditer(rf"({_ESCAPE.pattern}|.)(?:-({_ESCAPE.pattern}|.))?", text[inverse:], re.DOTALL)
    ranges = [(one[1], one[6] or one[1]) for one in each]
    return Characters(tuple((_code(low), _code(high)) for low, high in ranges), inverse)


def _code(character: str) -> int:
    return ord(_ESCAPE.sub(_unescaped, character))
