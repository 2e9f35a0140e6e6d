"""llama-bench, llama.cpp's own benchmark: built, and run.

Built from the patched sources, it is a loop without Python over pymtp's kernels: an upper bound for plain decoding.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import llama_build


def build(*, patched: bool = True) -> Path:
    """Build llama-bench. Return the path of the program. See `llama_build.build`."""
    return llama_build.build("llama-bench", ("common/", "tools/llama-bench/"), patched=patched)


def run(program: Path, model: Path, **options: str | int) -> dict[str, Any]:
    """Run one measurement in a process of its own. Return the record that llama-bench prints.

    options: its long options, with "_" for "-". Raises subprocess.CalledProcessError if it fails.
    """
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [str(program), "--model", str(model), "--repetitions", "1", "--output", "json", *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    (record,) = json.loads(done.stdout)
    return dict(record)
