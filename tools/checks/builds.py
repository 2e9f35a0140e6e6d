"""Builds pymtp with a sanitizer, or for another x86 processor than this one, and runs tests with the build.

    python tools/checks/builds.py address                  # AddressSanitizer and UndefinedBehaviorSanitizer, the suite
    python tools/checks/builds.py thread tests/llm/test_lifecycle.py
    python tools/checks/builds.py avx2 tests/exactness/test_row_bits.py

Any report of a sanitizer fails the run: the first one of the address sanitizer ends the process, those of the others
are counted from their logs. Needs gcc on Linux. Python itself is not instrumented: leaks are not checked, and races
inside the interpreter are suppressed. For another processor, this one must have its instructions, except those of AMX:
without tiles, tests/native/amx_emulation.h emulates them slowly, with the same sums. The environment is
build/sanitize-<build>/venv or build/for-<build>/venv: a second run compiles only changed files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from common import ROOT, run_command

FLAGS = {
    "address": "-fsanitize=address,undefined -fno-sanitize-recover=bounds,null,return,vptr -fno-omit-frame-pointer -g1",
    "thread": "-fsanitize=thread -fno-omit-frame-pointer -g1",
}
LIBRARY = {"address": "libasan.so", "thread": "libtsan.so"}
# reports inside these are not errors of pymtp
SUPPRESS = {
    # llama.cpp reads a type from a file before it checks the type; its AMX code reads four bytes of a block at once, at
    # unaligned addresses that x86 allows
    "address": "enum:gguf.cpp\nalignment:amx/mmq.cpp\n",
    "thread": "race:^_Py\nrace:^Py\nrace:_multiarray_umath\nrace:_cffi_backend\n",
}
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
BUILDS = (*FLAGS, *PROCESSORS)


def main(
    build: Annotated[str, typer.Argument(help=", ".join(BUILDS))],
    tests: Annotated[list[str] | None, typer.Argument(help="Arguments of pytest; if not given, all tests.")] = None,
) -> None:
    """Build, run tests, and fail on any report."""
    if build not in BUILDS:
        raise typer.BadParameter(f"{build!r} is not known, use one of {', '.join(BUILDS)}")
    place = ROOT / "build" / f"{'sanitize' if build in FLAGS else 'for'}-{build}"
    python = _install(place, _sanitizer_settings(build) if build in FLAGS else _processor_settings(build))
    for old in place.glob("report.*"):
        old.unlink()
    # no time limit: sanitizers and emulated tiles are slow
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=0", *(tests or [])]
    status = subprocess.run(command, cwd=ROOT, env=os.environ | _sanitizer_environment(build, place)).returncode
    reports = sorted(place.glob("report.*"))
    for report in reports:
        print(f"--- {report.relative_to(ROOT)}\n{report.read_text(errors='replace')[:4000]}", file=sys.stderr)
    print(f"{build}: {len(reports)} processes with reports, pytest ended with {status}")
    raise typer.Exit(1 if reports or status else 0)


def _install(place: Path, settings: Sequence[str]) -> Path:
    """Build pymtp with CMake settings ("NAME=VALUE") and return the Python of its environment."""
    python = place / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(place / "venv", with_pip=True)
        needed = ["scikit-build-core", "cffi", "cmake", "ninja"]
        subprocess.run([python, "-m", "pip", "install", "-q", *needed], check=True)
    defines = [f"--config-settings=cmake.define.{setting}" for setting in settings]
    command = [python, "-m", "pip", "install", "-q", "--no-build-isolation", "-e", f"{ROOT}[test]", *defines]
    subprocess.run([*command, f"--config-settings=build-dir={place / 'build'}"], check=True)
    return python


def _processor_settings(processor: str) -> list[str]:
    every = {feature for features in PROCESSORS.values() for feature in features}
    features = {f"GGML_{feature}": feature in PROCESSORS[processor] for feature in sorted(every)}
    settings = ["GGML_NATIVE=OFF", *(f"{name}={'ON' if on else 'OFF'}" for name, on in features.items())]
    if processor == "amx" and "amx_int8" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        settings.append(f"PYMTP_EMULATED_AMX={ROOT / 'tests/native/amx_emulation.h'}")
    return settings


def _sanitizer_settings(which: str) -> list[str]:
    settings = [f"CMAKE_{language}_FLAGS={FLAGS[which]}" for language in ("C", "CXX")]
    # as a shared library, UBSan would set the log path of libasan.so, and write its own reports to stderr
    return settings if which == "thread" else [*settings, "CMAKE_MODULE_LINKER_FLAGS=-static-libubsan"]


def _sanitizer_environment(build: str, place: Path) -> dict[str, str]:
    if build not in FLAGS:
        return {}
    suppressions = place / "suppressions.txt"
    suppressions.write_text(SUPPRESS[build])
    options = f"log_path={place / 'report'}:exitcode=66"
    return {
        # the sanitizer needs C++'s throw at start, and Python is no C++ program
        "LD_PRELOAD": f"{_library(LIBRARY[build])} {_library('libstdc++.so')}",
        "ASAN_OPTIONS": f"{options}:detect_leaks=0:allocator_may_return_null=1:handle_segv=1",
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1:suppressions={suppressions}",
        "TSAN_OPTIONS": f"{options}:suppressions={suppressions}:history_size=4",
        "PYTHONMALLOC": "malloc",  # so that the sanitizer sees each allocation
    }


def _library(name: str) -> str:
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    run_command(main)
