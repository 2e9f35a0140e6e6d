"""Tests of tools/checks/cross.py: its programs are compiled for other processors and systems, not by the suite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("program", ["speak", "rows"])
def test_program_fits_the_headers(program: str) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "this test needs a C++ compiler"
    folders = [
        "pymtp/native/runtime",
        "pymtp/native/kernels",
        *(f"vendor/llama.cpp/{name}include" for name in ("", "ggml/")),
    ]
    flags = [
        "-std=c++17",
        "-fsyntax-only",
        "-Wall",
        "-Wextra",
        "-Werror",
        *(f"-I{ROOT / folder}" for folder in folders),
    ]
    subprocess.run([compiler, *flags, ROOT / f"tools/checks/cross/{program}.cpp"], check=True)


def test_program_is_linked_with_the_libraries_of_the_module() -> None:
    def linked(path: str, target: str) -> str:
        (libraries,) = re.findall(rf"target_link_libraries\({target} PRIVATE (.*)\)", (ROOT / path).read_text())
        return str(libraries)

    assert linked("tools/checks/cross/CMakeLists.txt", "speak") == linked("CMakeLists.txt", r"\$\{target\}")
