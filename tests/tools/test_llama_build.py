"""Claims about llama.cpp's own programs, built to compare with."""

from __future__ import annotations

from llama_build import MENDS
from sources import Paths


def test_each_patch_that_an_unpatched_program_needs_exists() -> None:
    names = [patch.name for patch in Paths.default().patches()]
    for mend in MENDS:
        assert sum(mend in name for name in names) == 1, mend
