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

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import llama_bench
import typer
from rich.console import Console
from rich.table import Table

from pymtp import build_info
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
    print("ready", flush=True)
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


class Worker:
    """A process with a loaded model."""

    def __init__(self, model: Path, threads: str, drafts: str) -> None:
        command = [sys.executable, "-c", CHILD, str(model), threads, drafts]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def _read(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with {self.process.wait()}")
        return line.split()

    def generate(self, tokens: int, seconds: float = 0.0) -> Speed:
        """Generate `tokens` tokens once, or again and again for some seconds. Return the mean speed."""
        assert self.process.stdin is not None
        end, speeds, gaps = time.perf_counter() + seconds, [], []
        while not speeds or time.perf_counter() < end:
            self.process.stdin.write(f"{tokens}\n")
            self.process.stdin.flush()
            speed, gap = map(float, self._read())
            speeds.append(speed)
            gaps.append(gap)
        return Speed(statistics.harmonic_mean(speeds), max(gaps))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


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


def measure(
    model: Path, load: str, drafts: list[str], tokens: int, n: int, program: Path | None
) -> dict[str, list[Speed]]:
    """Measure n generations of each arm under a load, by arm: "default/3" has the default threads and 3 drafts."""
    threads = [DEFAULT, *map(str, sorted({1, (physical_cores() + 1) // 2, physical_cores()}))]
    arms = [(number, draft) for draft in drafts for number in threads]
    measured: dict[str, list[Speed]] = {}
    with LOADS[load]():
        for turn in range(n):
            for number, draft in arms if turn % 2 == 0 else arms[::-1]:
                worker = Worker(model, number, draft)
                try:
                    worker.generate(tokens)
                    speed = worker.generate(tokens, 4 * TOGGLE if load == CHANGES else 0.0)
                finally:
                    worker.close()
                measured.setdefault(f"{number}/{draft}", []).append(speed)
            if program is not None and turn < MAX_PEER_RUNS:
                record = llama_bench.run(program, model, n_prompt=0, n_gen=tokens, threads=physical_cores())
                measured.setdefault(LLAMA, []).append(Speed(float(record["avg_ts"])))
    return measured


def medians(measured: dict[str, list[Speed]]) -> dict[str, float]:
    """Return the median tokens/s by arm."""
    return {arm: statistics.median(speed.tokens for speed in speeds) for arm, speeds in measured.items()}


def rows(load: str, measured: dict[str, list[Speed]]) -> list[tuple[str, ...]]:
    """Return a line for each number of drafts: default threads, the best fixed number, llama.cpp, and ratios."""
    speeds = medians(measured)
    lines = []
    for draft in sorted({arm.split("/")[1] for arm in measured if arm != LLAMA}):
        fixed = {arm.split("/")[0]: n for arm, n in speeds.items() if arm.endswith(f"/{draft}") and DEFAULT not in arm}
        best = max(fixed, key=fixed.__getitem__)
        own, peer = speeds[f"{DEFAULT}/{draft}"], speeds.get(LLAMA) if draft == "0" else None
        gap = max(speed.gap for speed in measured[f"{DEFAULT}/{draft}"])
        lines.append(
            (
                *(load, draft, f"{own:.1f}", f"{fixed[best]:.1f} ({best})", f"{own / fixed[best]:.3f}"),
                *(f"{own / fixed['1']:.3f}", f"{1000 * gap:.0f}", f"{peer:.1f}" if peer else ""),
                f"{own / peer:.2f}" if peer else "",
            )
        )
    return lines


HEADINGS = (
    *("load", "drafts", "default, tokens/s", "best fixed (threads)", "ratio", "to 1 thread", "longest gap, ms"),
    *("llama.cpp", "ratio"),
)


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="Tokens of a generation.")] = 1500,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Generations of each arm.")] = 5,
    drafts: Annotated[str, typer.Option(help="Drafts per round.")] = "0,3,auto",
    only: Annotated[str, typer.Option(help=f"Some of the loads: {', '.join(LOADS)}.")] = ",".join(LOADS),
    peer: Annotated[bool, typer.Option(help="Measure llama-bench, too.")] = True,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Measure decoding beside other load."""
    screen = Console(stderr=True, highlight=False, width=160)
    file = model or demo_model()
    program = llama_bench.build(patched=False) if peer else None
    measured = {}
    table = Table(*HEADINGS, title=f"{file.name}: {tokens} tokens, {rounds} rounds")
    for load in only.split(","):
        measured[load] = measure(file, load, drafts.split(","), tokens, rounds, program)
        for line in rows(load, measured[load]):
            screen.print("  ".join(line))
            table.add_row(*line)
    Console(highlight=False, width=160).print(table)
    if output is not None:
        result = {
            "bench": "beside other work",
            "settings": {"model": file.name, "tokens": tokens, "rounds": rounds},
            "tokens_per_second": {load: medians(speeds) for load, speeds in measured.items()},
            "measured": {
                load: {arm: [asdict(speed) for speed in speeds] for arm, speeds in arms.items()}
                for load, arms in measured.items()
            },
            "machine": {"system": platform.platform(), "cores": physical_cores()},
            "build": build_info(),
        }
        output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
