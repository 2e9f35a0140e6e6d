"""Random texts that a grammar allows. Its GBNF may have rules, literals, classes, groups and repetitions."""

from __future__ import annotations

import math
import re
from random import Random

from helpers.gbnf import Alternatives, CharacterClass, GrammarNode, Literal, Repeat, Rule, Rules, expand

_ESCAPE = re.compile(r"\\(?:x(.{2})|u(.{4})|U(.{8})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_TOKEN = re.compile(
    r'\s*(?:(?P<literal>"(?:[^"\\]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<name>[a-zA-Z0-9-]+)'
    r"|(?P<times>[*+?]|\{[0-9]+(?:,[0-9]*)?\})|(?P<sign>[()|]))",
    re.DOTALL,
)
PREFERRED = "ab1 \n<>/\"'{}\\é🙂"  # mostly these are sampled from wide classes


def read_gbnf(gbnf: str) -> Rules:
    lines = re.split(r"\n(?=[a-zA-Z0-9-]+ ::= )", gbnf.rstrip())
    return {name: _parse_choice(_tokenize(body)) for name, _, body in (line.partition(" ::= ") for line in lines)}


def grammar_allows(rules: Rules, text: str) -> bool:
    stacks = expand(rules, (Rule("root"),))
    for character in map(ord, text):
        after = {
            stack[1:] for stack in stacks if stack and isinstance(stack[0], CharacterClass) and stack[0].has(character)
        }
        stacks = {sequence for stack in after for sequence in expand(rules, stack)}
    return () in stacks


class RandomTexts:
    """A sampler of texts of a grammar, mostly of up to about `size` characters."""

    def __init__(self, rules: Rules, size: int = 200) -> None:
        self.rules, self.size = rules, size
        self._shortest = dict.fromkeys(rules, math.inf)
        while any([self._update_shortest(name) for name in reversed(rules)]):  # rules come before those that they name
            pass

    def _update_shortest(self, name: str) -> bool:
        before, self._shortest[name] = self._shortest[name], self._shortest_length(self.rules[name])
        return self._shortest[name] < before

    def _shortest_length(self, node: GrammarNode) -> float:
        """Return the length of the shortest text of a node."""
        match node:
            case Literal(text):
                return len(text)
            case Rule(name):
                return self._shortest[name]
            case Repeat(node, minimum):
                return self._shortest_length(node) * minimum if minimum else 0
            case Alternatives(alternatives):
                return min(sum(map(self._shortest_length, sequence)) for sequence in alternatives)
        return 1

    def sample(self, random: Random) -> str:
        pieces: list[str] = []
        length, todo = 0, [Rule("root")]
        while todo:
            match todo.pop():
                case Literal(text):
                    pieces.append(text)
                    length += len(text)
                case CharacterClass() as characters:
                    pieces.append(_character(characters, random))
                    length += 1
                case Rule(name):
                    todo.append(self.rules[name])
                case Repeat(node, minimum, maximum):
                    while length < self.size and (maximum is None or minimum < maximum) and random.random() < 0.6:
                        minimum += 1
                    todo += [node] * minimum
                case Alternatives(alternatives):
                    sequence = (
                        random.choice(alternatives)
                        if length < self.size
                        else min(alternatives, key=lambda sequence: sum(map(self._shortest_length, sequence)))
                    )
                    todo += reversed(sequence)
        return "".join(pieces)


def _character(characters: CharacterClass, random: Random) -> str:
    preferred = [letter for letter in PREFERRED if characters.has(ord(letter))]
    if preferred and random.random() < 0.9:
        return random.choice(preferred)
    if characters.inverse:
        return "z"
    return chr(random.randint(*random.choice(characters.ranges)))


def _tokenize(body: str) -> list[re.Match[str]]:
    found, at, body = [], 0, body.rstrip()
    while at < len(body):
        token = _TOKEN.match(body, at)
        assert token, body[at : at + 40]
        found.append(token)
        at = token.end()
    return found[::-1]


def _parse_choice(tokens: list[re.Match[str]]) -> Alternatives:
    """Parse alternatives up to the bracket that closes them."""
    alternatives: list[list[GrammarNode]] = [[]]
    while tokens:
        token = tokens.pop()
        match token.lastgroup, token[token.lastgroup or 0]:
            case "sign", ")":
                break
            case "sign", "|":
                alternatives.append([])
            case "sign", _:
                alternatives[-1].append(_parse_choice(tokens))
            case "literal", text:
                alternatives[-1].append(Literal(_ESCAPE.sub(_unescape, text[1:-1])))
            case "set", text:
                alternatives[-1].append(_parse_class(text[1:-1]))
            case "name", name:
                alternatives[-1].append(Rule(name))
            case "times", times:
                alternatives[-1].append(_parse_repeat(alternatives[-1].pop(), times))
    return Alternatives(tuple(map(tuple, alternatives)))


def _parse_repeat(node: GrammarNode, times: str) -> Repeat:
    if times in "*+?":
        return Repeat(node, int(times == "+"), 1 if times == "?" else None)
    minimum, comma, maximum = times[1:-1].partition(",")
    return Repeat(node, int(minimum), int(maximum) if maximum else None if comma else int(minimum))


def _unescape(escape: re.Match[str]) -> str:
    *hexadecimal, plain = escape.groups()
    return _PLAIN.get(plain, plain) if plain else chr(int(next(filter(None, hexadecimal)), 16))


def _parse_class(text: str) -> CharacterClass:
    inverse = text.startswith("^")
    members = re.finditer(rf"({_ESCAPE.pattern}|.)(?:-({_ESCAPE.pattern}|.))?", text[inverse:], re.DOTALL)
    ranges = [(member[1], member[6] or member[1]) for member in members]
    return CharacterClass(tuple((_code_point(low), _code_point(high)) for low, high in ranges), inverse)


def _code_point(character: str) -> int:
    return ord(_ESCAPE.sub(_unescape, character))
