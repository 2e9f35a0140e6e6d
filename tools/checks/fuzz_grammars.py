#!/usr/bin/env python3
"""Compiles random grammars and JSON schemas in a process with little memory, and samples some tokens with each.

Each must be refused with InvalidRequestError or work, in time and without output on stderr.

    python tools/checks/fuzz_grammars.py              20,000 texts
    python tools/checks/fuzz_grammars.py -n 300 --seed 7
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from typing import Any

from limits import limit_memory

MEMORY = 3 << 30  # bytes of address space: the model and Python take 1 GiB of it
MAX_SECONDS = 10.0  # processor time for one text
N_TOKENS = 6
BATCH = 1000  # texts per process

SYNTAX = [
    '"',
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "|",
    "*",
    "+",
    "?",
    ".",
    "-",
    "^",
    "\\",
    "<",
    ">",
    "!",
    "#",
    ",",
    "::=",
    "\n",
    " ",
]
PIECES = [
    "root ::= ",
    "a ::= ",
    "b ::= ",
    "root",
    "a",
    "b",
    '"a"',
    '"é→"',
    "[a-z]",
    "[^a]",
    "[^é]",
    ".",
    "{2}",
    "{0,3}",
    "{3,}",
]
PIECES += [
    "{5,2}",
    "{2000}",
    "{0,2000}",
    "\\x41",
    "\\U0010FFFF",
    "<[66]>",
    "!<[66]>",
    "<|im_end|>",
    '""',
    "[]",
    "#c\n",
    "\x7f",
]
REPEATS = ["", "", "", "?", "{2}", "{0,3}", "*", "+"]
LEAVES = ['"a"', '"é→"', "[a-z]", "[^a]", "[^é]", ".", '""', "[]", "<[66]>", "!<[66]>", '"b" a', '"c" root', '"b" b']
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null", "file", ["string", "null"], [], None]
PATTERNS = [
    "^a$",
    "^[a-z]{1,3}$",
    "^(a|b)*$",
    "^.*$",
    "a",
    "^(?=a)$",
    "^\\d+$",
    "^[^\\w]$",
    "^((a)$",
    "^a{3,1}$",
    "^\\",
    "^(a*)*$",
]
KEYWORDS = {
    "counts": (
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
    ),
    "schemas": ("items", "additionalProperties", "not"),
    "lists": ("anyOf", "oneOf", "prefixItems", "allOf", "enum", "required"),
    "maps": ("properties", "$defs"),
}


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
        text = (
            text[:at]
            + rng.choice(["", rng.choice(SYNTAX + PIECES), text[at:to] * 2, chr(rng.randint(1, 0x2FF))])
            + text[to:]
        )
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
        kind = rng.choice([*KEYWORDS, "pattern", "format", "$ref", "const"])
        name = rng.choice(KEYWORDS.get(kind, (kind,)))
        below = [some_schema(rng, depth - 1) for _ in range(rng.randint(0, 3))] if depth else []
        some[name] = {
            "counts": rng.choice([0, 1, 3, -1, 2.5, 2**31, 2**63, -(2**64), 1e300, None, "1"]),
            "schemas": rng.choice([*below, True, False, 7]),
            "lists": rng.choice([below, ["a", "b"], [1, None, "\ud800"], []]),
            "maps": {rng.choice(["a", "b b", "é", '"', "root", ""]): part for part in below},
            "pattern": rng.choice([*PATTERNS, spoilt(rng, rng.choice(PATTERNS))]),
            "format": rng.choice(["date", "time", "date-time", "uuid", "email", 3]),
            "$ref": rng.choice(["#/$defs/a", "#", "#/$defs/b", "#/properties/a", "x", 3]),
            "const": rng.choice([1, "a", None, below]),
        }[kind]
    return some


def follow(seed: int, first: int, n: int) -> None:
    """Try texts first to first + n - 1 in this process, and print the number of each before it is tried."""
    import numpy as np

    from pymtp import InvalidRequestError, Model, SamplingParams
    from pymtp.sampling import Sampler

    limit_memory(MEMORY)
    ways: list[dict[str, Any]] = [{}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}]
    with Model() as model:
        for i in range(first, first + n):
            print(i, flush=True)
            text, rng = made(seed, i), np.random.default_rng(i)
            start, taken = time.process_time(), 0
            try:
                sampler = Sampler(SamplingParams(**text, **ways[i // 2 % 2]))
                with sampler.compiled(model):
                    before: list[int] = []
                    for position in range(N_TOKENS):
                        token, _ = sampler.sample(rng.normal(0, 3, model.n_vocab).astype(np.float32), position, before)
                        if token is None:
                            break
                        before.append(token)
                    taken = 1
            except InvalidRequestError:
                pass
            seconds = time.process_time() - start
            if seconds > MAX_SECONDS:
                sys.exit(f"{seconds:.1f} s")
            print(taken, round(seconds, 3), flush=True)


def made(seed: int, i: int) -> dict[str, str]:
    rng = random.Random(f"{seed}-{i}")
    return {"grammar": grammar(rng)} if i % 2 == 0 else {"json_schema": schema(rng)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=20_000, help="texts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first is not None:
        follow(options.seed, options.first, options.n)
        return 0
    n_taken, slowest, failures = 0, 0.0, 0
    for first in range(0, options.n, BATCH):
        n = min(BATCH, options.n - first)
        command = [sys.executable, __file__, "--seed", str(options.seed), "--first", str(first), "-n", str(n)]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        results = [(int(taken), float(seconds)) for taken, seconds in (line for line in lines if len(line) == 2)]
        n_taken += sum(taken for taken, _ in results)
        slowest = max([slowest, *(seconds for _, seconds in results)])
        if done.returncode != 0 or done.stderr:
            failures += 1
            last = int(next((line[0] for line in reversed(lines) if len(line) == 1), -1))
            print(f"text {last} of seed {options.seed}: exit {done.returncode}, stderr {done.stderr[-2000:]!r}")
            print(f"  {made(options.seed, last)!r:.2000}")
    print(f"{options.n} texts, {n_taken} of them followed; the slowest took {slowest:.2f} s; {failures} batches failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
