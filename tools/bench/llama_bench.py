"""llama-bench, llama.cpp's own benchmark: built, and run.

From the patched sources it is what a loop without Python does with pymtp's kernels: the bound for plain decoding.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import llama_build


def build(*, patched: bool = True) -> Path:
    """Builds llama-bench; returns the program. See `llama_build.build`."""
    return llama_build.build("llama-bench", ("common/", "tools/llama-bench/"), patched=patched)


def run(program: Path, model: Path, **options: str | int) -> dict[str, Any]:
    """One measurement in a process of its own; returns the record that llama-bench prints.

    options: its long options, "_" for "-". Raises subprocess.CalledProcessError when it fails.
    """
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [str(program), "--model", str(model), "--repetitions", "1", "--output", "json", *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    (record,) = json.loads(done.stdout)
    return dict(record)
