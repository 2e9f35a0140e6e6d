"""Claims about LoRA adapters and RoPE scaling: they are in target and head, and saved prefixes know them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import make_llm
from helpers.contexts import EXACT, context, some_tokens
from makers.lora import make_delta, merge, write_adapter

from pymtp import InvalidRequestError, Model, ModelLoadError

NAMES = ["blk.0.ffn_up.weight", "blk.1.ffn_down.weight"]


def test_an_adapter_is_what_its_merged_weights_are(demo_f32: Path, tmp_path: Path) -> None:
    delta = make_delta(demo_f32, NAMES, seed=1)
    adapter = write_adapter(tmp_path / "a.gguf", delta, alpha=2.0)
    merged = merge(demo_f32, tmp_path / "merged.gguf", [(delta, 0.5 * 2.0 / 4)])
    rows = []
    for path, lora in ((demo_f32, [(adapter, 0.5)]), (merged, []), (demo_f32, [])):
        with Model(path, lora=lora) as model, context(model, **EXACT) as c:
            rows.append(c.prefill(some_tokens(model, 40)).copy())
    assert np.abs(rows[0] - rows[1]).max() < 1e-4 < np.abs(rows[2] - rows[1]).max()


def test_an_adapter_that_is_none_is_refused(demo_f32: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such adapter"):
        Model(demo_f32, lora=tmp_path / "no.gguf")
    with pytest.raises(ModelLoadError, match="cannot load the adapter"):
        Model(demo_f32, lora=demo_f32)


def test_a_saved_prefix_knows_the_rope_scaling(tmp_path: Path) -> None:
    scaled = {"rope_scaling": "yarn", "rope_freq_scale": 0.5}
    with make_llm(**scaled) as llm:
        llm.save_prefix("import os\n" * 20, tmp_path / "p")
    with make_llm() as llm, pytest.raises(InvalidRequestError, match="another rope scaling"):
        llm.load_prefix(tmp_path / "p")
