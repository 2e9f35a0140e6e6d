"""The shipped model with a head that does not fit it, for each fault of published files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from makers.gguf_variants import rewrite

Weights = dict[str, NDArray[np.float32]]  # the head's matrices, by name without the block; rows are outputs

NORMS = ("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "attn_norm", "post_attention_norm")
NORMS = (*NORMS, "attn_q_norm", "attn_k_norm")
READ = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")  # matrices that read the residual stream
WRITTEN = ("attn_output", "ffn_down", "nextn.eh_proj")  # matrices that write to it


def _less_one(*names: str) -> Callable[[Weights], None]:
    """Return norms as checkpoints store them whose RMSNorm multiplies by 1 + w."""

    def change(head: Weights) -> None:
        for name in names:
            head[name] -= 1

    return change


def _random(head: Weights) -> None:
    """Return matrices as before training."""
    luck = np.random.default_rng(0)
    for name, values in head.items():
        values[:] = 1 if name in NORMS else luck.normal(0, 1 / np.sqrt(values.shape[-1]), values.shape)


def _zero(head: Weights) -> None:
    for values in head.values():
        values[:] = 0


def _swapped(head: Weights) -> None:
    """Return the head of another model of this shape, whose hidden states have another order of channels."""
    n = len(head["nextn.hnorm"])
    order = np.random.default_rng(0).permutation(n)
    both = np.concatenate([order, n + order])
    for name in NORMS[:5]:
        head[name][:] = head[name][order]
    for name in READ:
        head[name][:] = head[name][:, order]
    for name in WRITTEN:
        head[name][:] = head[name][order]
    head["nextn.eh_proj"][:] = head["nextn.eh_proj"][:, both]


def _filled(name: str, value: float, rows: slice = slice(None)) -> Callable[[Weights], None]:
    def change(head: Weights) -> None:
        head[name][rows] = value

    return change


KINDS: dict[str, Callable[[Weights], None]] = {
    "hnorm": _less_one("nextn.hnorm"),
    "enorm": _less_one("nextn.enorm"),
    "norms": _less_one(*NORMS),
    "random": _random,
    "zero": _zero,
    "swapped": _swapped,
}
# heads without finite logits
NO_NUMBERS: dict[str, Callable[[Weights], None]] = {
    "nan in a norm": _filled("nextn.hnorm", np.nan),
    "nan in the output": _filled("nextn.shared_head_norm", np.nan, slice(3, 4)),
    "nan in keys": _filled("attn_k", np.nan, slice(0, 1)),
    "infinite": _filled("nextn.shared_head_norm", np.inf),
    "overflow": _filled("nextn.shared_head_norm", 3e38),
}


def with_head(source: Path, target: Path, change: Callable[[Weights], None]) -> Path:
    """Write the model in F32 with changed head weights."""
    rewrite(source, target, weights="f32")
    reader = GGUFReader(target, "r+")
    block = f"blk.{reader.fields['qwen35.block_count'].contents() - 1}."
    change({t.name[len(block) : -len(".weight")]: t.data for t in reader.tensors if t.name.startswith(block)})
    reader.data.flush()
    return target
