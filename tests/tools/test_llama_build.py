"""Tests of the build of llama.cpp's own programs."""

from __future__ import annotations

from llama_build import REQUIRED_PATCHES
from sources import Paths


def test_each_required_patch_exists() -> None:
    names = [patch.name for patch in Paths.default().patches()]
    for required in REQUIRED_PATCHES:
        assert sum(required in name for name in names) == 1, required
