"""Cross-compiles the native part for Windows with mingw-w64 and lets it generate under Wine.

    apt install g++-mingw-w64-x86-64-posix wine64
    python tools/checks/windows.py

Fails unless the texts are the same with drafts and without. It also says how many of the tokens are those that the
installed pymtp generates here: not all need to be, for compilers and math libraries differ. Python is not part of it.
The build is build/windows, with ggml's own threads in place of OpenMP's.
"""

from __future__ import annotations

import os
import subprocess
from typing import Annotated

import typer
from environment import ROOT

from pymtp import LLM, SamplingParams
from pymtp.model import demo_model

BUILD = ROOT / "build" / "windows"
PROMPT = "import os\n\n\ndef read("
TEMPERATURES = (0.0, 1.0)
DRAFTS = (0, 1, 3)


def main(
    tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 400,
    wine: Annotated[str, typer.Option(help="The command that runs programs for Windows.")] = "wine",
    features: Annotated[
        str, typer.Option(help="Of the processor, with ggml's names.")
    ] = "SSE42,AVX,AVX2,FMA,F16C,BMI2",
) -> None:
    """Compiles and compares."""
    compiler = "x86_64-w64-mingw32-"
    settings = ["CMAKE_SYSTEM_NAME=Windows", "CMAKE_SYSTEM_PROCESSOR=x86_64", "GGML_NATIVE=OFF", "GGML_OPENMP=OFF"]
    settings += [f"CMAKE_C_COMPILER={compiler}gcc-posix", f"CMAKE_CXX_COMPILER={compiler}g++-posix"]
    settings += [f"GGML_{feature}=ON" for feature in features.split(",") if feature]
    sources = ROOT / "tools" / "checks" / "windows"
    subprocess.run(["cmake", "-S", sources, "-B", BUILD, *(f"-D{setting}" for setting in settings)], check=True)
    subprocess.run(["cmake", "--build", BUILD, "--parallel", str(os.cpu_count() or 1)], check=True)
    failed = False
    for temperature in TEMPERATURES:
        found = {drafts: _speak(wine, drafts, temperature, tokens) for drafts in DRAFTS}
        plain, _ = found[0]
        here = _here(temperature, tokens)
        equal = next((i for i, (one, other) in enumerate(zip(plain, here, strict=True)) if one != other), tokens)
        print(f"temperature {temperature}: the first {equal} of {tokens} tokens are those of this system")
        for drafts, (text, accepted) in found.items():
            differ = sum(one != other for one, other in zip(text, plain, strict=True))
            failed |= differ > 0 or (drafts > 0 and accepted == 0)
            print(f"  {drafts} drafts a round: {differ} tokens differ, {accepted} drafts accepted")
    raise typer.Exit(failed)


def _speak(wine: str, drafts: int, temperature: float, n: int) -> tuple[list[int], int]:
    """Tokens, and how many drafts were accepted."""
    command = [wine, str(BUILD / "speak.exe"), str(demo_model()), str(drafts), str(temperature), str(n), PROMPT]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"WINEDEBUG": "-all"}
    )
    text, accepted = done.stdout.splitlines()
    return [int(token) for token in text.split()], int(accepted)


def _here(temperature: float, n: int) -> list[int]:
    """What the installed pymtp generates."""
    params = SamplingParams(n, temperature=temperature, top_k=40, top_p=0.95, seed=7, ignore_eos=True)
    with LLM(n_ctx=1024, draft_tokens=0) as llm:
        return llm.generate(PROMPT, params).token_ids


if __name__ == "__main__":
    typer.run(main)
