"""Tests of the gated delta net kernel on the CPU: blocks of tokens give the same numbers as single tokens.

States that are written in place give the same numbers as copied states. tests/exactness/test_oracle.py compares pymtp
with transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.contexts import EXACT, context, some_tokens
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp.model.model import Model

BY_VECTORS = [16, 32, 64, 128]
OTHER = 48


@pytest.fixture(scope="module", params=[*BY_VECTORS, OTHER])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Return a model with this size of linear heads."""
    path: Path = tmp_path_factory.mktemp("heads") / f"{request.param}.gguf"
    make_model(replace(PRESETS["tiny"], linear_head_dim=request.param), path, weight_type="f32")
    with Model(path) as model:
        yield model


@pytest.mark.parametrize("n", [63, 64, 65, 130])
def test_delta_net_logits_of_a_prefill_match_single_tokens(model: Model, n: int) -> None:
    tokens = some_tokens(model, n + 1)
    with context(model, draft_tokens=0, **EXACT) as at_once, context(model, draft_tokens=0, **EXACT) as one_by_one:
        at_once.prefill(tokens[:n])
        one_by_one.prefill(tokens[:1])
        for token in tokens[1:n]:
            one_by_one.verify([token])
        found, wanted = at_once.verify(tokens[n:]), one_by_one.verify(tokens[n:])
    assert np.abs(found - wanted).max() < 1e-4


def test_delta_net_states_written_in_place_match_copied_states(model: Model) -> None:
    # with a trace, each node is read, so that nodes are not fused and states are copied
    tokens = some_tokens(model, 40)
    found = []
    for trace in (False, True):
        with context(model, trace=trace) as c:
            c.prefill(tokens[:20])
            rows = [c.verify(tokens[20:24])]
            for keep in (1, 3, 4, 2):  # continues from each state
                c.rewind(c.n_past - 4 + keep)
                rows.append(c.verify(tokens[30:34]))
            found.append(np.concatenate(rows).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_delta_net_state_after_a_rewind_matches_single_tokens(model: Model, keep: int) -> None:
    tokens = some_tokens(model, 30)
    with context(model, **EXACT) as verified, context(model, draft_tokens=0, **EXACT) as one_by_one:
        for c in (verified, one_by_one):
            c.prefill(tokens[:20])
        for _ in range(2):  # the second round continues from the token to which the first was rewound
            verified.verify(tokens[20:24])
            verified.rewind(verified.n_past - 4 + keep)
            for token in tokens[20 : 20 + keep]:
                one_by_one.verify([token])
        assert np.abs(verified.verify([5]) - one_by_one.verify([5])).max() < 1e-4


def test_delta_net_states_of_sequences_are_separate(model: Model) -> None:
    texts = [some_tokens(model, 10, seed) for seed in (1, 2)]
    alone = []
    for text in texts:
        with context(model) as c:
            c.prefill(text)
            c.verify(text[:4])
            c.rewind(12)
            alone.append(c.verify([5]))
    with context(model, n_seq_max=2) as c:
        for seq, text in enumerate(texts):
            c.prefill(text, seq)
            c.verify(text[:4], seq)
        for seq in (1, 0):
            c.rewind(12, seq)
        for seq, wanted in enumerate(alone):
            assert np.abs(c.verify([5], seq) - wanted).max() < 1e-4
