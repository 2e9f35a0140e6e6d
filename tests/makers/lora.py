"""LoRA adapters for a GGUF file, and the file with adapters merged into its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite

Delta = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def make_delta(base: Path, names: Sequence[str], *, seed: int, rank: int = 4, size: float = 0.02) -> Delta:
    """Return for each of some matrices of an F32 file a pair of A, of shape (rank, in), and B, of shape (out, rank)."""
    random = np.random.default_rng(seed)
    shapes = {tensor.name: tensor.data.shape for tensor in open_gguf(base).tensors}
    return {
        name: (
            random.normal(0, size, (rank, shapes[name][1])).astype(np.float32),
            random.normal(0, 1, (shapes[name][0], rank)).astype(np.float32),
        )
        for name in names
    }


def write_adapter(
    path: Path, delta: Delta, *, alpha: float, architecture: str = "qwen35", norms: Mapping[str, int] | None = None
) -> Path:
    """Write the adapter to a file.

    It adds B A times alpha / rank to each matrix. norms: sizes of vectors to add.
    """
    writer = GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in delta.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    for name, size in (norms or {}).items():
        writer.add_tensor(name, np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merge(base: Path, target: Path, deltas: Sequence[tuple[Delta, float]]) -> Path:
    """Write a copy of an F32 file with deltas added, each times a factor."""
    changed: dict[str, NDArray[np.float32]] = {}
    for delta, factor in deltas:
        for name, (a, b) in delta.items():
            changed[name] = changed.get(name, 0) + np.float32(factor) * (b @ a)
    rewrite(base, target, add=changed)
    return target
