"""Mostly invalid values for calls of pymtp, for fuzz_requests.py."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from pymtp import PymtpError, SamplingParams
from pymtp.sampling import Sampler

EXPECTED = (PymtpError, TypeError, ValueError)
GREEDY = SamplingParams(max_tokens=8)

NUMBERS: tuple[Any, ...] = (0, 1, 2, 3, 7, 64, 255, 256, 257, 2047, 2048, -1, -2, 2**31 - 1, 2**31, 2**32, 2**63, 2**64,
    -(2**31), -(2**63) - 1, 10**30, True, 0.0, 1.0, 0.5, -0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf,
    np.int32(3), np.int64(-1), np.float32(0.5), np.uint64(2**64 - 1), np.float64("nan"))  # fmt: skip
TEXTS = ("", "a", "import ", "\0", "\ud800", "é" * 300, "<|im_start|>", "x " * 400, "root", "{", "auto", "q8_0", "on")
THINGS: tuple[Any, ...] = (None, (), [], {}, [[]], [None], b"", b"bytes", object(), len, range(3), {"role": "user"},
    [1.5], [[1], [2]], ["a", ["b"]], np.zeros(3), np.zeros((2, 2), np.int64), np.array(7), np.array([]), Path("."),
    SamplingParams(), 1j, Ellipsis, {1: 2}, [2**40], [-1], [True, False], "import ", iter([1, 2]))  # fmt: skip
GRAMMARS = ('root ::= "a"*', 'root ::= ""', "root ::= root", "root ::= [a-z]+", "nonsense", 'root ::= "a"{3}', "")
SCHEMAS = ('{"type": "integer"}', {"type": "object"}, {"enum": [1, "a"]}, "[]", {"$ref": "#"}, {"type": "nothing"}, "{")


class Odd:
    """Makes random values, most of them invalid."""

    def __init__(self, numbers: random.Random) -> None:
        self.pick = numbers

    def some(self) -> Any:
        return self.pick.choice(self.pick.choice((NUMBERS, TEXTS, THINGS)))

    def number(self, *likely: int) -> Any:
        """Return one of the likely numbers, or rarely any value."""
        return self.pick.choice(likely) if self.pick.random() < 0.9 else self.some()

    def token(self) -> Any:
        return self.pick.randrange(2048) if self.pick.random() < 0.95 else self.some()

    def tokens(self, most: int = 40) -> Any:
        if self.pick.random() < 0.1:
            return self.some()
        if self.pick.random() < 0.05:
            return [7] * self.pick.choice((127, 128, 255, 256, 257, 3000))
        tokens = self.pick.choices(range(2048), k=self.pick.randrange(most))
        if tokens and self.pick.random() < 0.15:
            tokens[-1] = self.some()
        if self.pick.random() < 0.2 and all(isinstance(token, int) for token in tokens):
            return np.array(tokens)
        return self.pick.choice((list, tuple))(tokens)

    def prompts_by_sequence(self) -> Any:
        if self.pick.random() < 0.1:
            return self.some()
        return {self.pick.choice((0, 1, 2, 3, "a", 2**40)): self.tokens() for _ in range(self.pick.randrange(4))}

    def prompt(self) -> Any:
        return self.pick.choice((self.tokens, self.tokens, self.some, lambda: self.pick.choice(TEXTS)))()

    def prompts(self) -> Any:
        return self.prompt() if self.pick.random() < 0.7 else [self.prompt() for _ in range(self.pick.randrange(4))]

    def keywords(self, likely: dict[str, Sequence[Any]], most: int) -> dict[str, Any]:
        """Return some of the keywords, with one of their likely values or with any value."""
        names = self.pick.sample(sorted(likely), self.pick.randrange(min(most, len(likely)) + 1))
        return {n: self.pick.choice(likely[n]) if self.pick.random() < 0.85 else self.some() for n in names}

    def sampling(self) -> dict[str, Any]:
        return {"max_tokens": 6} | self.keywords(SAMPLING, 4)

    def params(self) -> Any:
        if self.pick.random() < 0.1:
            return self.some()
        with suppress(*EXPECTED):
            return SamplingParams(**self.sampling())
        return GREEDY

    def sampler(self) -> Any:
        params = self.params()
        return Sampler(params) if isinstance(params, SamplingParams) else params


SAMPLING: dict[str, Sequence[Any]] = {f.name: NUMBERS for f in fields(SamplingParams)} | {
    "max_tokens": (1, 2, 9, 40),
    "temperature": (0, 0.7, 1, 1e-30, 1e30),
    "top_k": (0, 1, 40, 128, 5000),
    "stop": ("e", ["a", "b"], "never", ("",)),
    "logit_bias": ({}, {3: 1.0}, {3: -math.inf}, {5000: 1.0}, {i: -math.inf for i in range(2048)}, {1: 1e308}),
    "grammar": GRAMMARS,
    "json_schema": SCHEMAS,
    "logprobs": (0, 1, 5, 100),
}
OPTIONS: dict[str, Sequence[Any]] = {
    "n_ctx": (0, 1, 256, 300, 512),
    "n_batch": (1, 3, 64, 2048),
    "n_ubatch": (1, 3, 64, 2048),
    "n_threads": (1, 2),
    "type_k": ("f16", "q8_0", "f32", "q4_0"),
    "type_v": ("f16", "q8_0", "f32", "q4_0"),
    "flash_attn": ("auto", "on", "off"),
    "draft_tokens": (0, 1, 3, 8, 64),
    "tap": ("auto", "pre_norm", "post_norm"),
    "prefill": ("fused", "host-copy", "all-outputs"),
    "draws": ("auto", "host", "device"),
    "draft_vocab": ("auto", "all", 1, 500, 2**40),
}
LLM_OPTIONS = OPTIONS | {"cache_prompt": (True, False), "n_gpu_layers": (0, -1), "n_seq_max": (1, 2, 3)}
CONTEXT_OPTIONS = OPTIONS | {"n_seq_max": (1, 2, 3), "max_outputs": (1, 4, 64), "embeddings": (True,), "trace": (True,)}
