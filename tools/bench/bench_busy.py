"""Measure decoding beside other load: the default number of threads, fixed numbers, and llama.cpp.

    pip install . gguf typer
    python tools/bench/bench_busy.py --json busy.json
    python tools/bench/bench_busy.py --model build/0.8b-q4_0.gguf --tokens 48 --only busy,quota-1

Each measurement is a process of its own, which generates once as a warm-up: the speed of a small model varies by up to
20% with the place of its memory. The arms run in alternating order, so a change of the machine's speed affects all
alike. The load comes from this program: processes that compute, and control groups with a limit on processor time,
which need root. Linux only.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import llama_bench
import typer
from peer import Comparison, ModelFile, Output, show, write_json

from pymtp.bench.table import Cell, Column, Table
from pymtp.model.model import demo_model
from pymtp.native.cores import physical_cores

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds of a quota's period
DEFAULT, LLAMA = "default", "llama.cpp/0"
CHANGES = "comes-and-goes"
MAX_PEER_RUNS = 3  # llama-bench may be very slow
TOGGLE = 2.0  # seconds that the load of CHANGES is on, and then off

# It reads lines with a number of tokens, and answers with tokens/s and the longest time between two tokens.
CHILD = """
import sys, time
from pymtp import LLM, SamplingParams
model, threads, drafts = sys.argv[1:]
keywords = {"n_threads": int(threads), "all_threads": True} if threads != "default" else {}
drafts = drafts if drafts == "auto" else int(drafts)
with LLM(model, n_ctx=4096, draft_tokens=drafts, cache_prompt=False, **keywords) as llm:
    for line in sys.stdin:
        came = []
        for _ in llm.stream("import os\\n\\ndef walk(folder):\\n", SamplingParams(int(line), ignore_eos=True)):
            came.append(time.perf_counter())
        n_tokens = int(line) - 1
        print(n_tokens / (came[-1] - came[0]), max(b - a for a, b in zip(came, came[1:])), flush=True)
"""


@dataclass(frozen=True)
class Speed:
    """The speed of a generation. tokens: tokens/s. gap: longest seconds between two tokens; 0 if unknown."""

    tokens: float
    gap: float = 0.0


def generate(model: Path, threads: str, drafts: str, tokens: int, seconds: float = 0.0) -> Speed:
    """Generate in a new process: once as a warm-up, then once, or again and again for some seconds.

    Return the mean speed.
    """
    command = [sys.executable, "-c", CHILD, str(model), threads, drafts]
    speeds: list[tuple[float, ...]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout

        def ask() -> tuple[float, ...]:
            process.stdin.write(f"{tokens}\n")
            process.stdin.flush()
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"a process ended with {process.wait()}")
            return tuple(map(float, line.split()))

        ask()
        end = time.perf_counter() + seconds
        while not speeds or time.perf_counter() < end:
            speeds.append(ask())
    return Speed(statistics.harmonic_mean([speed for speed, _ in speeds]), max(gap for _, gap in speeds))


def hog(n: int, seconds: float | None = None, **options: Any) -> list[subprocess.Popen[bytes]]:
    """Start n processes that compute. seconds: they compute and sleep in turns of this length."""
    if seconds is None:
        return [subprocess.Popen(["yes"], stdout=subprocess.DEVNULL, **options) for _ in range(n)]
    code = "import time\nwhile True:\n end = time.time() + %f\n while time.time() < end: pass\n time.sleep(%f)"
    return [subprocess.Popen([sys.executable, "-c", code % (seconds, seconds)], **options) for _ in range(n)]


@contextmanager
def load_of(n: int, seconds: float | None = None, *, group: bool = False, nice: int = 0) -> Iterator[None]:
    """Run n computing processes during the block. group: in a control group of their own."""
    with control_group() if group else ExitStack() as folder:
        processes = hog(n, seconds, preexec_fn=(lambda: os.nice(nice)) if nice else None)
        try:
            for process in processes if group else []:
                (folder / "cgroup.procs").write_text(str(process.pid))
            time.sleep(0.3)
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()


@contextmanager
def control_group(cores: float | None = None) -> Iterator[Path]:
    """Make a control group, with a limit on processor time in cores."""
    v1 = GROUPS / "cpu"
    folder = (v1 if v1.is_dir() else GROUPS) / f"busy-{os.getpid()}"
    folder.mkdir()
    if cores is not None and v1.is_dir():
        (folder / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD)))
    elif cores is not None:
        (folder / "cpu.max").write_text(f"{int(cores * PERIOD)} {PERIOD}")
    try:
        yield folder
    finally:
        time.sleep(0.2)
        folder.rmdir()


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """Limit the processor time of this process, and of those that it starts. cores: the limit."""
    with control_group(cores) as folder:
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:  # into the outermost group, not the one before
            (folder.parent / "cgroup.procs").write_text(str(os.getpid()))


LOADS: dict[str, Callable[[], Any]] = {
    "alone": ExitStack,
    "busy": lambda: load_of(1),
    "busy-apart": lambda: load_of(1, group=True),
    "two-busy": lambda: load_of(2),
    CHANGES: lambda: load_of(1, TOGGLE),
    "nice-19": lambda: load_of(1, nice=19),
    "quota-1": lambda: quota(1),
    "quota-0.5": lambda: quota(0.5),
    "quota-1.5": lambda: quota(1.5),
}


def measure(model: Path, load: str, drafts: list[str], tokens: int, n: int, program: Path | None) -> Comparison[Speed]:
    """Measure n generations of each arm under a load, by arm: "default/3" has the default threads and 3 drafts."""
    threads = [DEFAULT, *map(str, sorted({1, (physical_cores() + 1) // 2, physical_cores()}))]
    seconds = 4 * TOGGLE if load == CHANGES else 0.0
    arms: dict[str, Callable[[], Speed]] = {
        f"{number}/{draft}": partial(generate, model, number, draft, tokens, seconds)
        for draft in drafts
        for number in threads
    }
    if program is not None:

        def peer() -> Speed:
            record = llama_bench.run(program, model, n_prompt=0, n_gen=tokens, threads=physical_cores())
            return Speed(float(record["avg_ts"]))

        arms[LLAMA] = peer
    results = Comparison[Speed](lambda speed: speed.tokens)
    with LOADS[load]():
        for _ in results.run(load, arms, n):
            if len(results.rounds) == MAX_PEER_RUNS:
                arms.pop(LLAMA, None)
    return results


def rows(load: str, results: Comparison[Speed], drafts: list[str]) -> list[Cell]:
    """Return a row for each number of drafts: default threads, the best fixed number of threads, and llama.cpp."""
    speeds, found = results.medians(), []
    for draft in drafts:
        fixed = {arm.split("/")[0]: n for arm, n in speeds.items() if arm != LLAMA and arm.split("/")[1] == draft}
        own = fixed.pop(DEFAULT)
        best = max(fixed, key=fixed.__getitem__)
        peer = speeds.get(LLAMA) if draft == "0" else None  # llama-bench decodes without drafts
        gap = max(results.values(f"{DEFAULT}/{draft}", lambda speed: speed.gap))
        ratios = {"of_best": own / fixed[best], "of_one": own / fixed["1"], "of_peer": peer and own / peer}
        shown = f"{fixed[best]:.1f} ({best})"
        found.append(Cell(load=load, drafts=draft, own=own, best=shown, gap=gap, peer=peer, **ratios))
    return found


COLUMNS = [
    Column("load", "load"),
    Column("drafts", "drafts"),
    Column("default, tokens/s", "own", ".1f"),
    Column("best fixed (threads)", "best"),
    Column("ratio", "of_best", ".3f"),
    Column("to 1 thread", "of_one", ".3f"),
    Column("longest gap, ms", lambda row: 1000 * row.gap, ".0f"),
    Column("llama.cpp", "peer", ".1f"),
    Column("ratio", "of_peer", ".2f"),
]


def main(
    model: ModelFile = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="Tokens of a generation.")] = 1500,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Generations of each arm.")] = 5,
    drafts: Annotated[str, typer.Option(help="Drafts per round.")] = "0,3,auto",
    only: Annotated[str, typer.Option(help=f"Some of the loads: {', '.join(LOADS)}.")] = ",".join(LOADS),
    peer: Annotated[bool, typer.Option(help="Measure llama-bench, too.")] = True,
    output: Output = None,
) -> None:
    """Measure decoding beside other load."""
    file = model or demo_model()
    program = llama_bench.build(patched=False) if peer else None
    measured = {load: measure(file, load, drafts.split(","), tokens, rounds, program) for load in only.split(",")}
    lines = [row for load, results in measured.items() for row in rows(load, results, drafts.split(","))]
    show(Table(f"{file.name}: {tokens} tokens, {rounds} rounds", COLUMNS, lines))
    write_json(
        output,
        "beside other work",
        settings={"model": file.name, "tokens": tokens, "rounds": rounds},
        tokens_per_second={load: results.medians() for load, results in measured.items()},
        measured={load: results.as_dicts() for load, results in measured.items()},
    )


if __name__ == "__main__":
    typer.run(main)
