"""Builds pymtp with a sanitizer and runs tests with it.

    python tools/checks/sanitize.py address             # AddressSanitizer and UndefinedBehaviorSanitizer, the suite
    python tools/checks/sanitize.py thread tests/llm/test_lifecycle.py

The environment is build/sanitize-<which>/venv: a second run compiles only changed files. Needs gcc on Linux. Any report
fails the run: the first one of the address sanitizer ends the process, those of the others are counted from their logs.

Python itself is not instrumented: leaks are not checked, and races inside the interpreter are suppressed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import typer
from environment import ROOT, install

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


def main(
    which: Annotated[str, typer.Argument(help="address or thread.")],
    tests: Annotated[list[str] | None, typer.Argument(help="Arguments of pytest; if not given, all tests.")] = None,
) -> None:
    """Build with a sanitizer, run tests, and fail on any report."""
    if which not in FLAGS:
        raise typer.BadParameter(f"{which!r} is not known, use one of {', '.join(FLAGS)}")
    place = ROOT / "build" / f"sanitize-{which}"
    python = install(place, _settings(which))
    for old in place.glob("report.*"):
        old.unlink()
    suppressions = place / "suppressions.txt"
    suppressions.write_text(SUPPRESS[which])
    options = f"log_path={place / 'report'}:exitcode=66"
    environment = {
        **os.environ,
        # the sanitizer needs C++'s throw at start, and Python is no C++ program
        "LD_PRELOAD": f"{_library(LIBRARY[which])} {_library('libstdc++.so')}",
        "ASAN_OPTIONS": f"{options}:detect_leaks=0:allocator_may_return_null=1:handle_segv=1",
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1:suppressions={suppressions}",
        "TSAN_OPTIONS": f"{options}:suppressions={suppressions}:history_size=4",
        "PYTHONMALLOC": "malloc",  # so that the sanitizer sees each allocation
    }
    # no time limit: a sanitizer makes tests several times slower
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=0", *(tests or [])]
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    reports = sorted(place.glob("report.*"))
    for report in reports:
        print(f"--- {report.relative_to(ROOT)}\n{report.read_text(errors='replace')[:4000]}", file=sys.stderr)
    print(f"{which}: {len(reports)} processes with reports, pytest ended with {status}")
    raise typer.Exit(1 if reports or status else 0)


def _settings(which: str) -> list[str]:
    settings = [f"CMAKE_{language}_FLAGS={FLAGS[which]}" for language in ("C", "CXX")]
    # as a shared library, UBSan would set the log path of libasan.so, and write its own reports to stderr
    return settings if which == "thread" else [*settings, "CMAKE_MODULE_LINKER_FLAGS=-static-libubsan"]


def _library(name: str) -> str:
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    typer.run(main)
