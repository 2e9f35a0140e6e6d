"""Random grammars and JSON schemas, with which some tokens are sampled. See fuzz.py.

Each text must be refused with InvalidRequestError or work, in time and without output on stderr.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pymtp import InvalidRequestError, Model, SamplingParams
from pymtp.sampling import Sampler

MAX_SECONDS = 10.0  # processor time for one text
N_TOKENS = 6
WAYS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0})

SYNTAX = [*'"[](){}|*+?.-^\\<>!#,\n ', "::="]
PIECES = ["root ::= ", "a ::= ", "b ::= ", "root", "a", "b", '"a"', '"é→"', "[a-z]", "[^a]", "[^é]", "."]
PIECES += ["{2}", "{0,3}", "{3,}", "{5,2}", "{2000}", "{0,2000}", r"\x41", r"\U0010FFFF", '""', "[]"]
PIECES += ["<[66]>", "!<[66]>", "<|im_end|>", "#c\n", "\x7f"]
REPEATS = ["", "", "", "?", "{2}", "{0,3}", "*", "+"]
LEAVES = ['"a"', '"é→"', "[a-z]", "[^a]", "[^é]", ".", '""', "[]", "<[66]>", "!<[66]>", '"b" a', '"c" root', '"b" b']
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null", "file", ["string", "null"], [], None]
PATTERNS = ["^a$", "^[a-z]{1,3}$", "^(a|b)*$", "^.*$", "a", "^(?=a)$", r"^\d+$", r"^[^\w]$", "^((a)$"]
PATTERNS += ["^a{3,1}$", "^(a*)*$", "^\\", "^(?!.*b)a|c$", "(^|,)x(?=y)", ".{1900}a", "^(a|b)*a(a|b){12}$", "é$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "uri", "ipv6", "duration", "cron", 3]
KEYWORDS = {
    "counts": [a + b for a in ("min", "max") for b in ("Length", "Items", "imum", "Properties", "Contains")],
    "schemas": ["items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"],
    "lists": ["anyOf", "oneOf", "prefixItems", "allOf", "enum", "required"],
    "maps": ["properties", "$defs", "patternProperties", "dependentSchemas"],
}
KEYWORDS["counts"] += ["exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
KEYWORDS["schemas"] += ["unevaluatedProperties", "unevaluatedItems"]


def grammar(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.2:
        return "".join(rng.choice(SYNTAX + PIECES) for _ in range(rng.randint(0, 30)))
    rules = "\n".join(f"{name} ::= ({alternatives(rng, 2)})" for name in ("root", "a", "b"))
    if kind < 0.6:
        return rules
    if kind < 0.85:
        return spoilt(rng, rules)
    piece = rng.choice(SYNTAX + PIECES + [rules[: rng.randint(1, 20)]]) * rng.randint(1, 3)
    many = piece * rng.choice([10, 1000, 100_000 // len(piece)])
    return f"root ::= {rng.choice(PIECES)}{many}{rng.choice(PIECES)}\n{rules}"


def alternatives(rng: random.Random, depth: int) -> str:
    return " | ".join(" ".join(node(rng, depth) for _ in range(rng.randint(0, 3))) for _ in range(rng.randint(1, 3)))


def node(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.5:
        return rng.choice(LEAVES if rng.random() < 0.995 else PIECES)
    return f"({alternatives(rng, depth - 1)}){rng.choice(REPEATS if rng.random() < 0.97 else ['{1,900}', '{2,}'])}"


def spoilt(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randint(0, len(text)) for _ in range(2))
        other = rng.choice(["", rng.choice(SYNTAX + PIECES), text[at:to] * 2, chr(rng.randint(1, 0x2FF))])
        text = text[:at] + other + text[to:]
    return text


def schema(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.1:
        n = rng.choice([10, 1000, 10_000])
        chain: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(n)}
        return json.dumps({"$defs": {**chain, f"a{n}": some_schema(rng, 1)}, "$ref": "#/$defs/a0"})
    if kind < 0.2:
        names = [f"{rng.choice('aé-')}{i}" for i in range(rng.choice([10, 300, 3000]))]
        some = [name for name in names if rng.random() < rng.choice([0, 0.5, 1])]
        return json.dumps({"type": "object", "properties": dict.fromkeys(names, some_schema(rng, 0)), "required": some})
    text = json.dumps({**some_schema(rng, 4), "$defs": {"a": some_schema(rng, 2)}})
    return text if kind < 0.8 else spoilt(rng, text)


def some_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    some: dict[str, Any] = {"type": rng.choice(TYPES)} if rng.random() < 0.7 else {}
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        kind = rng.choice([*KEYWORDS, "pattern", "format", "$ref", "const", "uniqueItems", "nullable"])
        name = rng.choice(KEYWORDS.get(kind, [kind]))
        below = [some_schema(rng, depth - 1) for _ in range(rng.randint(0, 3))] if depth else []
        some[name] = {
            "counts": rng.choice([0, 1, 3, -1, 2.5, 2**31, 2**63, -(2**64), 1e300, None, "1"]),
            "schemas": rng.choice([*below, True, False, 7]),
            "lists": rng.choice([below, ["a", "b"], [1, None, "\ud800"], []]),
            "maps": {rng.choice(["a", "b b", "é", '"', "root", "", "^a", "[b-z]$"]): part for part in below},
            "pattern": rng.choice([*PATTERNS, spoilt(rng, rng.choice(PATTERNS))]),
            "format": rng.choice(FORMATS),
            "uniqueItems": rng.choice([True, False, None]),
            "nullable": rng.choice([True, False, None]),
            "$ref": rng.choice(["#/$defs/a", "#", "#/$defs/b", "#/properties/a", "x", 3]),
            "const": rng.choice([1, "a", None, below]),
        }[kind]
    return some


class Fuzzed:
    """Texts for the shipped model. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 100, 120, 2 << 30

    def __init__(self, folder: Path) -> None:
        """Take the shipped model: there is nothing to make."""

    def sound(self, place: Path) -> None:
        with Model() as model:
            self._sample(model, {"grammar": 'root ::= "a"*'}, 0)

    def prepare(self, rng: random.Random, index: int, place: Path) -> tuple[list[str], Any]:
        def attempt(note: Any) -> dict[str, int]:
            counts: Counter[str] = Counter()
            with Model() as model:
                for number in range(self.UNITS):
                    text: dict[str, Any] = {"grammar": grammar(rng)}
                    if number % 2:
                        text = {"json_schema": schema(rng), "strict_schema": rng.random() < 0.3}
                    note(f"text {number}: {text!r:.8000}")
                    start = time.process_time()
                    try:
                        self._sample(model, text, number)
                        counts["texts followed"] += 1
                    except InvalidRequestError:
                        counts["texts refused"] += 1
                    seconds = time.process_time() - start
                    assert seconds < MAX_SECONDS, f"{seconds:.1f} s"
            return counts

        return [], attempt

    def _sample(self, model: Model, text: dict[str, Any], number: int) -> None:
        rng, before = np.random.default_rng(number), list[int]()
        sampler = Sampler(SamplingParams(**text, **WAYS[number // 2 % 2]))
        with sampler.compiled(model):
            for position in range(N_TOKENS):
                token, _ = sampler.sample(rng.normal(0, 3, model.n_vocab).astype(np.float32), position, before)
                if token is None:
                    break
                before.append(token)
