"""Builds pymtp for another x86 processor than this one and runs tests with it.

    python tools/checks/processors.py avx2 tests/exactness/test_row_bits.py
    python tools/checks/processors.py amx                       # the suite

This processor must have the instructions, except those of AMX: without tiles, amx_emulation.h emulates them slowly,
with the same sums. The environment is build/for-<processor>/venv.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import typer
from environment import ROOT, install

AVX2 = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")
AVX512 = (*AVX2, "AVX512")
VNNI = (*AVX512, "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
PROCESSORS = {
    "avx2": AVX2,
    "avx-vnni": (*AVX2, "AVX_VNNI"),
    "avx512": AVX512,
    "avx512-vnni": VNNI,
    "amx": (*VNNI, "AMX_TILE", "AMX_INT8"),
}
ALL = {feature for features in PROCESSORS.values() for feature in features}


def main(
    processor: Annotated[str, typer.Argument(help=", ".join(PROCESSORS))],
    tests: Annotated[list[str] | None, typer.Argument(help="Arguments of pytest; if not given, all tests.")] = None,
) -> None:
    """Build for a processor and run tests."""
    if processor not in PROCESSORS:
        raise typer.BadParameter(f"{processor!r} is not known, use one of {', '.join(PROCESSORS)}")
    python = install(ROOT / "build" / f"for-{processor}", _settings(processor))
    # no time limit: emulated tiles are slow
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=0", *(tests or [])]
    raise typer.Exit(subprocess.run(command, cwd=ROOT).returncode)


def _settings(processor: str) -> list[str]:
    features = {f"GGML_{feature}": feature in PROCESSORS[processor] for feature in sorted(ALL)}
    settings = ["GGML_NATIVE=OFF", *(f"{name}={'ON' if on else 'OFF'}" for name, on in features.items())]
    if processor == "amx" and "amx_int8" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        settings.append(f"PYMTP_EMULATED_AMX={ROOT / 'tools/checks/amx_emulation.h'}")
    return settings


if __name__ == "__main__":
    typer.run(main)
