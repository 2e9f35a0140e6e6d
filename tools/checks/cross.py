"""Cross-compiles the native part for other systems and processors, and runs it under Wine or QEMU.

    apt install g++-mingw-w64-x86-64-posix wine64
    python tools/checks/cross.py windows
    apt install g++-aarch64-linux-gnu qemu-user-static
    python tools/checks/cross.py armv8 dotprod i8mm

CMake has to be 3.26 at least: `pip install cmake` where the system's is older.

Fails unless texts are the same with drafts and without. On ARM, it also fails unless several rows have the bits of
single rows, and products are right. It prints how many tokens equal those of the installed pymtp: not all must, because
compilers and processors differ. Python itself is not cross-compiled. Builds are in build/cross-<target>.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from common import ROOT, run_command

from pymtp import LLM, SamplingParams
from pymtp.model.model import demo_model

PROMPT = "import os\n\n\ndef read("
TEMPERATURES = (0.0, 1.0)
DRAFTS = (0, 3)
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", "-cpu")  # uses the libraries of the cross compiler


@dataclass(frozen=True)
class Target:
    """A compiler's prefix and suffix, CMake settings, and the command that runs the programs."""

    compiler: tuple[str, str]
    settings: tuple[str, ...]
    run: tuple[str, ...]


def _arm(level: str, cpu: str) -> Target:
    settings = ("CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64", f"GGML_CPU_ARM_ARCH={level}")
    return Target(("aarch64-linux-gnu-", ""), settings, (*EMULATOR, cpu))


# without OpenMP: ggml's own threads
_WINDOWS = tuple(f"GGML_{feature}=ON" for feature in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2"))
_WINDOWS += ("CMAKE_SYSTEM_NAME=Windows", "CMAKE_SYSTEM_PROCESSOR=x86_64")
TARGETS = {
    "windows": Target(("x86_64-w64-mingw32-", "-posix"), _WINDOWS, ("wine",)),
    "armv8": _arm("armv8-a", "cortex-a72"),
    "dotprod": _arm("armv8.2-a+dotprod", "neoverse-n1"),
    "i8mm": _arm("armv8.2-a+dotprod+i8mm", "max,sve=off"),
}


def main(
    targets: Annotated[list[str], typer.Argument(help=", ".join(TARGETS))],
    tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 200,
) -> None:
    """Cross-compile, run, and compare the texts."""
    if unknown := set(targets) - TARGETS.keys():
        raise typer.BadParameter(f"{', '.join(unknown)}: use some of {', '.join(TARGETS)}")
    sampling: dict[str, Any] = {"top_k": 40, "top_p": 0.95, "seed": 7, "ignore_eos": True}  # as in speak.cpp
    params = [SamplingParams(tokens, temperature=temperature, **sampling) for temperature in TEMPERATURES]
    with LLM(n_ctx=1024, draft_tokens=0) as llm:
        texts = llm.generate([PROMPT] * len(params), params)
    here = {temperature: text.token_ids for temperature, text in zip(TEMPERATURES, texts, strict=True)}
    failed = [name for name in targets if not _compare(name, tokens, here)]
    if failed:
        raise SystemExit(f"wrong results: {', '.join(failed)}")


def _compare(name: str, tokens: int, here: dict[float, list[int]]) -> bool:
    """Build and run a target, and tell whether its results are right."""
    target, build = TARGETS[name], ROOT / "build" / f"cross-{name}"
    before, after = target.compiler
    settings = ("GGML_NATIVE=OFF", f"CMAKE_C_COMPILER={before}gcc{after}", f"CMAKE_CXX_COMPILER={before}g++{after}")
    defines = [f"-D{setting}" for setting in (*settings, *target.settings)]
    subprocess.run(["cmake", "-S", ROOT / "tools" / "checks" / "cross", "-B", build, *defines], check=True)
    subprocess.run(["cmake", "--build", build, "--parallel", str(os.cpu_count() or 1)], check=True)
    suffix = ".exe" if name == "windows" else ""
    fine = name == "windows" or subprocess.run([*target.run, build / "rows"]).returncode == 0
    for temperature, text_here in here.items():
        found = {}
        for drafts in DRAFTS:
            command = [*target.run, str(build / f"speak{suffix}"), str(demo_model())]
            found[drafts] = _speak([*command, str(drafts), str(temperature), str(tokens), PROMPT])
        plain, _ = found[0]
        equal = next((i for i, (one, other) in enumerate(zip(plain, text_here, strict=True)) if one != other), tokens)
        print(f"{name}, temperature {temperature}: the first {equal} of {tokens} tokens are those of this machine")
        for drafts, (text, accepted) in found.items():
            differ = sum(one != other for one, other in zip(text, plain, strict=True))
            fine &= differ == 0 and (drafts == 0 or accepted > 0)
            print(f"  {drafts} drafts a round: {differ} tokens differ, {accepted} drafts accepted", flush=True)
    return fine


def _speak(command: list[str]) -> tuple[list[int], int]:
    """Run the program: return the tokens, and the number of accepted drafts."""
    environment = os.environ | {"WINEDEBUG": "-all"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    text, accepted = done.stdout.splitlines()
    return [int(token) for token in text.split()], int(accepted)


if __name__ == "__main__":
    run_command(main)
