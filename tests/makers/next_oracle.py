"""The small qwen3next of the golden outputs: random weights, and all norms different."""

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
    """Write the model in F32. Its norms differ, since mixed-up norms of ones would go unnoticed."""
    plain = path.with_name(f"plain-{path.name}")
    make_model(replace(PRESETS["tiny-next"], n_vocab=264), plain, weight_type="f32")
    rng = np.random.default_rng(0)
    norms = [t for t in GGUFReader(plain).tensors if t.name.endswith("norm.weight")]
    rewrite(plain, path, add={t.name: rng.uniform(-0.5, 0.5, t.data.shape).astype(np.float32) for t in norms})
    plain.unlink()


def weights_sha256(path: Path) -> str:
    """Return a digest of a file's tensors: the other bytes may change with the version of the `gguf` package."""
    digest = hashlib.sha256()
    for tensor in GGUFReader(path).tensors:
        digest.update(tensor.name.encode() + tensor.data.tobytes())
    return digest.hexdigest()
