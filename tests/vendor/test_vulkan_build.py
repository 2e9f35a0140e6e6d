"""Tests of building for Vulkan: vendor/vulkan.cmake without Vulkan."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("missing", ["Vulkan", "SPIRV-Headers"])
def test_error_for_a_missing_part_of_vulkan_gives_advice(tmp_path: Path, missing: str) -> None:
    cmake, make = shutil.which("cmake"), shutil.which("make")
    if cmake is None or make is None:
        pytest.skip("needs cmake and make")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18...4.1)\nproject(p LANGUAGES NONE)\ninclude({ROOT}/vendor/vulkan.cmake)\n"
    )
    command = [cmake, "-G", "Unix Makefiles", f"-DCMAKE_DISABLE_FIND_PACKAGE_{missing}=ON"]
    run = subprocess.run([*command, "-S", tmp_path, "-B", tmp_path / "build"], capture_output=True, text=True)
    assert run.returncode != 0
    assert "there is no Vulkan to build with" in run.stderr
    assert "apt install libvulkan-dev glslc spirv-headers" in run.stderr
