"""The small qwen3next that golden outputs are computed of: random weights, and no two norms alike."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.model_shapes import PRESETS


def make_next_oracle(path: Path) -> None:
    """Writes the model in F32. Norms of ones, as make_model writes them, could be mixed up unnoticed."""
    plain = path.with_name(f"plain-{path.name}")
    make_model(replace(PRESETS["tiny-next"], n_vocab=264), plain, weight_type="f32")
    rng = np.random.default_rng(0)
    norms = [t for t in GGUFReader(plain).tensors if t.name.endswith("norm.weight")]
    rewrite(plain, path, add={t.name: rng.uniform(-0.5, 0.5, t.data.shape).astype(np.float32) for t in norms})
    plain.unlink()


def weights_sha256(path: Path) -> str:
    """The digest of a file's tensors: what the `gguf` package writes around them may change with its version."""
    digest = hashlib.sha256()
    for tensor in GGUFReader(path).tensors:
        digest.update(tensor.name.encode() + tensor.data.tobytes())
    return digest.hexdigest()
