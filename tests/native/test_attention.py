"""Tests of flash attention of few rows on the CPU, for all head sizes, with query heads that share K and V.

The numbers are close to plain attention, and the bits of a row are the same as if it were computed alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from helpers.contexts import EXACT, context, some_tokens
from makers.make_model import make_model
from makers.model_shapes import PRESETS
from numpy.typing import NDArray

from pymtp.context.context import Context
from pymtp.model.model import Model

HEADS = [24, 40, 64, 80, 272]  # head sizes with different numbers of full SIMD vectors, with and without a remainder
SIZES = [1, 2, 3, 4, 5, 16]
N = sum(SIZES)
CACHES = {"f16": {}, "f32": {"type_k": "f32", "type_v": "f32"}, "bf16": {"type_k": "bf16", "type_v": "bf16"}}
BROKEN = 300  # a token with a NaN embedding


@pytest.fixture(scope="module", params=HEADS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Return a model with this head size, in which each K and V head serves three query heads."""
    path: Path = tmp_path_factory.mktemp("heads") / f"{request.param}.gguf"
    shape = replace(PRESETS["tiny"], head_dim=request.param, n_rot=24, rope_sections=(4, 4, 4), n_head=6)
    make_model(shape, path, weight_type="f32")
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.name == "token_embd.weight":
            tensor.data[BROKEN] = np.nan
    with Model(path) as model:
        yield model


def after(c: Context, tokens: list[int], sizes: list[int]) -> NDArray[np.float32]:
    """Return the logits of the last tokens, from verifications of these sizes; the tokens before are the prompt.

    The logit of BROKEN is removed, because its row of the output layer is NaN too.
    """
    c.clear()
    c.prefill(tokens[: len(tokens) - sum(sizes)])
    rows = [c.verify(tokens[c.n_past : c.n_past + size]) for size in sizes]
    return np.delete(np.concatenate(rows), BROKEN, axis=1)


@pytest.fixture
def tokens(model: Model) -> list[int]:
    return [token for token in some_tokens(model, 200) if token != BROKEN][: 75 + N]


@pytest.mark.parametrize("cache", CACHES)
def test_attention_of_several_rows_matches_single_rows_bit_for_bit(model: Model, tokens: list[int], cache: str) -> None:
    with context(model, draft_tokens=max(SIZES) - 1, **CACHES[cache]) as c:
        assert after(c, tokens, SIZES).tobytes() == after(c, tokens, [1] * N).tobytes()


@pytest.mark.parametrize("cache", CACHES)
def test_flash_attention_matches_plain_attention(model: Model, tokens: list[int], cache: str) -> None:
    with context(model, draft_tokens=max(SIZES) - 1, **EXACT) as plain:
        wanted = after(plain, tokens, SIZES)
    exact: dict[str, Any] = {**CACHES[cache], "flash_attn": "on"}
    with context(model, draft_tokens=max(SIZES) - 1, **exact) as c:
        found = after(c, tokens, SIZES)
    assert np.abs(found - wanted).max() < {"f32": 1e-4, "f16": 2e-3, "bf16": 2e-2}[cache] * np.abs(wanted).max()


@pytest.mark.parametrize("cache", CACHES)
def test_nan_embedding_affects_only_its_token_and_later_ones(model: Model, tokens: list[int], cache: str) -> None:
    with context(model, draft_tokens=max(SIZES) - 1, **CACHES[cache]) as c:
        wanted = after(c, tokens[:80], [5])
        found = after(c, [*tokens[:78], BROKEN, BROKEN], [5])
    assert found[:3].tobytes() == wanted[:3].tobytes()
    assert np.isnan(found[3:]).all()
