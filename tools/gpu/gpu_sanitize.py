"""A run of a tiny model under compute-sanitizer. It ends with the sanitizer's summary, and a status of 0 if clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.make_model import make_model

RUN = """
import sys, pymtp
with pymtp.LLM(sys.argv[1], n_ctx=512, draft_tokens=int(sys.argv[2])) as llm:
    params = pymtp.SamplingParams(max_tokens=12, ignore_eos=True)
    print(llm.generate([list(range(100)), list(range(50))], params)[1].stats.rounds, "rounds")
"""
DRAFTS = 3


def main(folder: Annotated[Path, typer.Argument(help="Folder for the model.")]) -> None:
    """Check the kernels of prefill, drafts and verification."""
    folder.mkdir(parents=True, exist_ok=True)
    (model,) = make_model("tiny-moe", folder / "sanitize.gguf", weight_type="q4_0")
    sanitizer = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"]
    sys.exit(subprocess.run([*sanitizer, sys.executable, "-c", RUN, str(model), str(DRAFTS)]).returncode)


if __name__ == "__main__":
    typer.run(main)
