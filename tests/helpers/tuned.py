"""The shipped model in a file with sampling values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from makers.gguf_variants import rewrite

from pymtp.model.model import demo_model

KEYS: dict[str, Any] = {
    "temp": 0.8,
    "top_k": 7,
    "top_p": 0.9,
    "min_p": 0.02,
    "penalty_repeat": 1.2,
    "penalty_last_n": 9,
}
# by the names of SamplingParams
TUNED: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 7,
    "top_p": 0.9,
    "min_p": 0.02,
    "repetition_penalty": 1.2,
    "penalty_last_n": 9,
}


def write_tuned(path: Path, **keys: Any) -> Path:
    """Write the shipped model to a file, with these keys of general.sampling and no others."""
    without = path.with_suffix(".without")  # a key that the shipped model has would keep its type
    rewrite(demo_model(), without, metadata={"general.sampling.temp": None})
    rewrite(without, path, metadata={f"general.sampling.{name}": value for name, value in keys.items()})
    without.unlink()
    return path


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the shipped model in a file with KEYS."""
    return write_tuned(tmp_path_factory.mktemp("models") / "tuned.gguf", **KEYS)
