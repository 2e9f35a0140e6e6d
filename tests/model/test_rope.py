"""Tests of RopeOptions: they have the same effect on target and head as these values in a model's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.contexts import EXACT, context, drafts, some_tokens
from makers.gguf_variants import rewrite

from pymtp import InvalidRequestError, Model
from pymtp.model.rope import RopeOptions

ROPE = "qwen35.rope"


def computed(model: Path, **rope: Any) -> tuple[Any, list[int]]:
    """Return the logits after a prompt, and a chain of drafts."""
    with Model(model) as loaded, context(loaded, **rope, **EXACT) as c:
        logits = c.prefill(some_tokens(loaded, 300)).copy()
        return logits, drafts(c, int(logits.argmax()))


@pytest.mark.parametrize(
    ("metadata", "options"),
    [
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_scaling": "linear", "rope_freq_scale": 0.25}),
        ({"scaling.type": "yarn", "scaling.factor": 4.0}, {"rope_scaling": "yarn", "rope_freq_scale": 0.25}),
        ({"freq_base": 5000.0}, {"rope_freq_base": 5000.0}),
    ],
    ids=["linear", "yarn", "base"],
)
def test_rope_options_give_the_logits_of_the_same_values_in_the_file(
    demo_f32: Path, tmp_path: Path, metadata: dict[str, Any], options: dict[str, Any]
) -> None:
    rewrite(demo_f32, tmp_path / "m.gguf", metadata={f"{ROPE}.{name}": value for name, value in metadata.items()})
    in_file, by_options = computed(tmp_path / "m.gguf"), computed(demo_f32, **options)
    assert np.array_equal(in_file[0], by_options[0])
    assert in_file[1] == by_options[1]
    assert not np.array_equal(by_options[0], computed(demo_f32)[0])


@pytest.mark.parametrize(
    "options",
    [{"yarn_ext_factor": 0.5}, {"yarn_beta_fast": 4.0}, {"yarn_beta_slow": 0.1}, {"yarn_orig_ctx": 128}],
    ids=lambda options: next(iter(options)),
)
def test_each_yarn_option_has_an_effect(demo_f32: Path, options: dict[str, Any]) -> None:
    yarn: dict[str, Any] = {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64}
    plain, changed = (computed(demo_f32, **(yarn | more))[0] for more in ({}, options))
    assert not np.array_equal(plain, changed)


def test_yarn_attn_factor_has_an_effect_without_extrapolation(demo_f32: Path) -> None:
    yarn: dict[str, Any] = {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_ext_factor": 0}
    plain, changed = (computed(demo_f32, **yarn, yarn_attn_factor=size)[0] for size in (1.0, 0.5))
    assert not np.array_equal(plain, changed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rope_scaling": "log"}, "use one of none, linear, yarn"),
        ({"rope_freq_scale": 0}, "must be a number from 1e-30 to 1e\\+30"),
        ({"rope_freq_base": float("nan")}, "must be a number from 1e-30 to 1e\\+30"),
        ({"rope_freq_base": "much"}, "must be a number from 1e-30 to 1e\\+30"),
        ({"yarn_ext_factor": -1}, "must be 0, or a number from 1e-30 to 1e\\+30"),
        ({"yarn_attn_factor": 0.0}, "must be a number from 1e-30 to 1e\\+30"),
        ({"yarn_orig_ctx": 0}, "must be a whole number from 1"),
    ],
    ids=str,
)
def test_invalid_rope_value_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        RopeOptions(**options)
