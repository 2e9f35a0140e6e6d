"""Tests of processor variants: the loaded module of a wheel, and the table of instructions."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pymtp
from pymtp.native import _processor, variants

ROOT = Path(__file__).parent.parent.parent
X86 = variants.table("x86_64")
NEEDS = {variant.name: variant.needs for variant in X86}
# macros that compilers define for features in the table; other features have no macro
MACROS = {"sse3": "SSE3", "ssse3": "SSSE3", "cx16": "GCC_HAVE_SYNC_COMPARE_AND_SWAP_16", "sse4_1": "SSE4_1"}
MACROS |= {"sse4_2": "SSE4_2", "popcnt": "POPCNT", "lahf_lm": "LAHF_SAHF", "lzcnt": "LZCNT", "movbe": "MOVBE"}
MACROS |= {"avx": "AVX", "avx2": "AVX2", "bmi1": "BMI", "bmi2": "BMI2", "fma": "FMA", "f16c": "F16C"}
MACROS |= {name: name.upper() for name in ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")}
MACROS |= {"avx_vnni": "AVXVNNI", "avx512_vnni": "AVX512VNNI", "avx512_bf16": "AVX512BF16"}
MACROS |= {"avx512_fp16": "AVX512FP16", "avx512_vbmi": "AVX512VBMI", "avx512_ifma": "AVX512IFMA", "gfni": "GFNI"}
MACROS |= {"amx_tile": "AMX_TILE", "amx_int8": "AMX_INT8", "amx_bf16": "AMX_BF16", "sse4a": "SSE4A", "aes": "AES"}
IN_CPUINFO = {"sse3": "pni", "lzcnt": "abm"}  # features that have another name in /proc/cpuinfo
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86 processor")


def features(*names: str) -> set[str]:
    """Return the features of the named levels; a name that is not a level stands for a single feature."""
    return set().union(*(NEEDS.get(name, {name}) for name in names))


@pytest.mark.parametrize(
    ("has", "picked"),
    [
        (("v2",), "v2"),
        (("v2", "avx", "fma"), "v2"),  # Sandy Bridge, Piledriver
        (("v3",), "v3"),
        (("v3", "avx_vnni"), "v3-vnni"),  # Alder Lake
        (("v3", "avx512f"), "v3"),  # Knights Landing
        (("v4",), "v4"),
        (("v4-vnni",), "v4-vnni"),  # Cascade Lake
        (("v4-bf16",), "v4-bf16"),  # Zen 4
        (("v4", "avx512_bf16"), "v4"),
        (("v4-bf16", "avx_vnni", "amx_tile", "amx_int8"), "v4-amx"),  # Sapphire Rapids
        (("v4-bf16", "amx_tile"), "v4-bf16"),
    ],
)
def test_variant_is_the_best_level_of_the_processor(has: tuple[str, ...], picked: str) -> None:
    assert variants.pick(X86, features(*has)).name == picked


def test_variant_is_the_best_of_those_in_the_wheel() -> None:
    inside = [variant for variant in X86 if variant.name in ("v2", "v4-vnni")]
    assert variants.pick(inside, features("v4")).name == "v2"
    assert variants.pick(inside, features("v4-bf16")).name == "v4-vnni"


@pytest.mark.parametrize("asked", ["v2", "v3", "v4", "v4-vnni"])
def test_variant_can_be_a_lower_level_on_request(asked: str) -> None:
    assert variants.pick(X86, features("v4-vnni"), asked).name == asked


def test_processor_below_the_lowest_level_gets_an_error_with_the_missing_features() -> None:
    lacking = features("v2") - {"ssse3", "popcnt"}
    for asked in ("", "v2", "v4-amx"):
        with pytest.raises(ImportError, match=r"lacks popcnt, ssse3, .* lowest level is v2\)\. Compile pymtp"):
            variants.pick(X86, lacking, asked)


def test_error_for_an_unsupported_variant_lists_the_supported_ones() -> None:
    with pytest.raises(ImportError, match=r"'v4-amx', but this processor lacks amx_int8, amx_tile.*\(v2, v3, v4, v4-v"):
        variants.pick(X86, features("v4-bf16"), "v4-amx")


def test_error_for_an_unknown_variant_lists_the_existing_ones() -> None:
    with pytest.raises(ImportError, match=r"'v5', which .* not compiled for: it has v2, v3, .*\(v2, v3\)"):
        variants.pick(X86, features("v3"), "v5")


def test_variants_exist_for_arm() -> None:
    arm = variants.table("arm64")
    assert [variant.name for variant in arm] == ["armv8", "dotprod", "i8mm"]
    assert variants.pick(arm, ["asimd", "atomics", "asimdrdm", "asimddp"]).name == "dotprod"
    assert variants.table("riscv64") == []


@on_x86
@pytest.mark.parametrize("variant", X86, ids=lambda variant: variant.name)
def test_variant_table_matches_the_compiler_flags(variant: variants.Variant) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.fail("needs a C compiler, as the build did")
    command = [compiler, *variant.flags, "-dM", "-E", "-x", "c", os.devnull]
    defined = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = {name for name, macro in MACROS.items() if re.search(rf"^#define __{macro}(__)? ", defined, re.MULTILINE)}
    assert used - {"cx16", "lahf_lm"} == variant.needs - {"cx16", "lahf_lm"}  # not all compilers have macros for these


@on_x86
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs Linux")
def test_processor_features_match_the_kernel() -> None:
    line = next(line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "flags" in line)
    kernels = set(line.split(":")[1].split())
    known = {name for variant in X86 for name in variant.needs}
    found = set(_processor.features())
    assert found <= known
    assert {name for name in known if IN_CPUINFO.get(name, name) in kernels} - found <= {"amx_tile", "amx_int8"}
    assert {IN_CPUINFO.get(name, name) for name in found} <= kernels | {
        "avx_vnni"
    }  # older kernels do not list avx_vnni


def test_import_from_a_zip_archive_is_refused(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", ROOT, "pymtp/native")
    with pytest.raises(ImportError, match="cannot be imported from a zip archive"):
        variants.choose(Path(archive) / "pymtp" / "native", set)


def test_build_info_names_the_loaded_variant() -> None:
    info = pymtp.build_info()
    assert info["cpu_variant"] in info["cpu_variants"]
    if "native" in info["cpu_variants"]:
        assert info["cpu_variants"] == ["native"]


def loaded(package: Path, has: set[str], asked: str, *inside: str) -> str:
    """Import a copy of the sources with a fake module for each level, and return the last printed line."""
    shutil.copytree(ROOT / "pymtp", package / "pymtp", ignore=shutil.ignore_patterns("*.gguf", "*.so"))
    native = package / "pymtp" / "native"
    (native / "_processor.py").write_text(f"def features(): return {sorted(has)}\n")
    for name in inside:
        (native / "compiled" / name).mkdir(parents=True)
        (native / "compiled" / name / "_native.py").write_text(f"raise ImportError('this is {name}')\n")
    script = "import platform; platform.machine = lambda: 'x86_64'; import pymtp"
    # -S: without site-packages, which has the installed package
    run = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        cwd=package,
        env={**os.environ, "PYMTP_CPU": asked},
    )
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]


def test_wheel_import_loads_the_picked_variant(tmp_path: Path) -> None:
    has = features("v4")
    assert loaded(tmp_path / "best", has, "", "v2", "v3", "v4-vnni") == "ImportError: this is v3"
    assert loaded(tmp_path / "asked", has, "v2", "v2", "v3", "v4-vnni") == "ImportError: this is v2"
    assert "lacks avx512_vnni" in loaded(tmp_path / "cannot", has, "v4-vnni", "v2", "v3", "v4-vnni")
    assert "lacks cx16" in loaded(tmp_path / "old", {"sse3"}, "", "v2", "v3", "v4-vnni")


def test_source_build_has_no_variants(tmp_path: Path) -> None:
    assert "no compiled module" in loaded(tmp_path / "native", set(), "native")
    assert "PYMTP_CPU is 'v3', but this pymtp was compiled from source" in loaded(tmp_path / "v3", set(), "v3")
