"""Counts the tokens that change with the number of threads, also if the number changes within a text.

    pip install . gguf typer
    python tools/checks/thread_counts.py
    python tools/checks/thread_counts.py --model build/0.8b-q4_0.gguf --prompts 4 --tokens 50

Held-out prompts are continued with fixed numbers of threads, plain and with drafts, and with the default number beside
a process that computes every other 0.2 s. All texts are compared with those of one thread, token by token.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pymtp import LLM, SamplingParams
from pymtp.model.model import Model, demo_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

HOG = "import time\nwhile True:\n end = time.time() + 0.2\n while time.time() < end: pass\n time.sleep(0.2)"
TEMPERATURES = (0.0, 0.8)
DRAFTS = (0, 3, "auto")


def texts(model: Model, prompts: list[str], tokens: int, drafts: Any, **threads: Any) -> list[list[int]]:
    """Generate a continuation of each prompt at each temperature."""
    found = []
    with LLM(model, n_ctx=1024, draft_tokens=drafts, **threads) as llm:
        for temperature in TEMPERATURES:
            params = SamplingParams(tokens, temperature=temperature, seed=5, ignore_eos=True)
            found += [done.token_ids for done in llm.generate(prompts, params)]
    return found


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts to continue.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Tokens of each text.")] = 200,
    threads: Annotated[str, typer.Option("--threads", "-t", help="Fixed numbers.")] = "2,3,4,8,16",
) -> None:
    """Compare texts of several numbers of threads."""
    screen = Console(highlight=False, soft_wrap=True)
    n_tokens = n_differ = 0
    with Model(model or demo_model()) as loaded:
        asked = held_out_prompts(prompts)
        wanted = texts(loaded, asked, tokens, 0, n_threads=1)
        ways: dict[str, dict[str, Any]] = {
            f"{n} threads": {"n_threads": int(n), "all_threads": True} for n in threads.split(",")
        }
        for name, way in {**ways, "default, beside another": {}}.items():
            hog = None if way else subprocess.Popen([sys.executable, "-c", HOG])
            try:
                for drafts in DRAFTS if loaded.mtp else DRAFTS[:1]:
                    came = texts(loaded, asked, tokens, drafts, **way)
                    differ = sum(
                        a != b for one, its in zip(came, wanted, strict=True) for a, b in zip(one, its, strict=True)
                    )
                    n_tokens, n_differ = n_tokens + sum(map(len, came)), n_differ + differ
                    screen.print(f"{name}, drafts {drafts}: {differ} of {sum(map(len, came))} tokens differ")
            finally:
                if hog:
                    hog.kill()
                    hog.wait()
    screen.print(f"{n_differ} of {n_tokens} tokens differ")
    raise typer.Exit(1 if n_differ else 0)


if __name__ == "__main__":
    typer.run(main)
