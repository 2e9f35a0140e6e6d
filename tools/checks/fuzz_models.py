"""Damaged model files: each may be refused, or load and generate 4 tokens. See fuzz.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import common  # noqa: F401 — sets the path of the makers
from makers.gguf_damage import damaged
from makers.gguf_parts import GGUF, parse
from makers.make_model import make_model
from makers.model_shapes import PRESETS, Shape

from pymtp import LLM, SamplingParams

ODD = 0.05  # share of files with an odd shape
SMALL_SIZES = {"n_embd": 32, "n_vocab": 264, "n_head": 2, "n_head_kv": 1, "head_dim": 32, "n_rot": 16, "n_ff": 32}
SMALL = replace(PRESETS["tiny"], **SMALL_SIZES, rope_sections=(3, 3, 2), linear_k_heads=1, linear_v_heads=2)
WIDE = replace(SMALL, n_embd=256, linear_v_heads=8, linear_k_heads=2, head_dim=128, n_ff=256)  # rows that fit K-quants
EXPERTS = replace(SMALL, n_ff=0, n_expert=4, n_expert_used=2, n_ff_expert=32, n_ff_shared=32, tied=False)
BASES: tuple[tuple[Shape, str], ...] = (
    (SMALL, "f32"),
    (replace(SMALL, tied=False, head=False), "q8_0"),
    (EXPERTS, "q4_0"),
    (WIDE, "q4_k"),
    (replace(EXPERTS, next=True), "f16"),
)


def odd_shape(rng: Random) -> Shape:
    """Return a consistent random shape: rows of a few weights or a block plus or minus one, one head or many."""
    n_head_kv, head_dim = rng.choice((1, 2, 3)), rng.choice((2, 4, 6, 8, 16, 32, 40, 64, 100, 256, 512))
    n_rot = min(head_dim, rng.choice((2, 4, 8, 16, 32, 64, head_dim)))
    first = rng.randint(1, n_rot // 2)
    second = rng.randint(0, n_rot // 2 - first)
    k_heads = rng.choice((1, 2, 3, 5))
    n_expert = rng.choice((0, 0, 0, 1, 2, 4, 7, 300))
    return Shape(
        n_layer=rng.choice((4, 4, 4, 5, 8)),
        n_embd=rng.choice((1, 2, 3, 16, 32, 33, 64, 100)),
        n_vocab=rng.choice((260, 261, 264, 300)),
        n_head=n_head_kv * rng.choice((1, 2, 3, 8)),
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_rot=n_rot,
        rope_sections=(first, second, n_rot // 2 - first - second),
        linear_k_heads=k_heads,
        linear_v_heads=k_heads * rng.choice((1, 2, 3, 4)),
        linear_head_dim=rng.choice((1, 2, 3, 8, 16, 17, 32, 64, 128, 256)),
        n_ff=0 if n_expert else rng.choice((1, 2, 31, 32, 100)),
        n_expert=n_expert,
        n_expert_used=rng.randint(1, min(n_expert, 8)) if n_expert else 0,
        n_ff_expert=rng.choice((1, 32, 33)) if n_expert else 0,
        n_ff_shared=rng.choice((1, 32, 33)) if n_expert else 0,
        tied=rng.random() < 0.5,
        head=rng.random() < 0.7,
        next=n_expert > 0 and rng.random() < 0.5,
    )


def generate_tokens(path: Path) -> None:
    """Load a model and generate 4 tokens."""
    with LLM(path, n_ctx=64, n_threads=1, n_gpu_layers=0, draft_tokens=2) as llm:
        llm.generate("ab", SamplingParams(max_tokens=4))
        _ = llm.model.metadata, llm.chat_template.render([{"role": "user", "content": "ab"}])


class Fuzzed:
    """Small models of each kind, damaged, and now and then one of an odd shape. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 1, 20, 2 << 30

    def __init__(self, folder: Path) -> None:
        paths = [make_model(shape, folder / f"{i}.gguf", weight_type=kind)[0] for i, (shape, kind) in enumerate(BASES)]
        self.bases, self._sound = [parse(path.read_bytes()) for path in paths], paths[0]

    def sound(self, place: Path) -> None:
        generate_tokens(self._sound)

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Any]:
        path = place / "model.gguf"
        data, recipe = self._damaged(rng, self.bases[index % len(self.bases)], path)
        path.write_bytes(data)
        return recipe, lambda note: generate_tokens(path)

    def _damaged(self, rng: Random, base: GGUF, path: Path) -> tuple[bytes, list[str]]:
        if rng.random() > ODD:
            return damaged(base, rng)
        shape, kind = odd_shape(rng), rng.choice(("f32", "f16", "bf16", "q8_0", "q4_0"))
        make_model(shape, path, weight_type=kind, threads=1)
        file, done = parse(path.read_bytes()), [f"{kind}, {shape}"]
        if rng.random() < 0.5:
            return file.encoded(), done
        data, more = damaged(file, rng)
        return data, done + more
