"""Unusual model shapes that llama.cpp accepts, for fuzz_files.py."""

from __future__ import annotations

from random import Random

from makers.model_shapes import Shape


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
