"""Speed beside other work: the default number of threads against fixed ones, and against llama.cpp.

    pip install . gguf typer
    python tools/bench/bench_busy.py --json busy.json
    python tools/bench/bench_busy.py --model build/0.8b-q4_0.gguf --tokens 48 --only busy,quota-1

Each measurement is a process of its own, which generates once before: a small model is up to 20% faster or slower by
where its memory lies. The ways follow each other in alternating order, so that changes of the machine meet all
alike. The load is this program's own: processes that do nothing but compute, and control groups with a bound on
processor time, for which it has to be root. Linux only.
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
PERIOD = 100_000  # microseconds in which a quota is given
DEFAULT, LLAMA = "default", "llama.cpp/0"
CHANGES = "comes-and-goes"
MOST_PEERS = 3  # measurements of llama-bench, which may be very slow
TOGGLE = 2.0  # seconds that a program which comes and goes is there, and is not

# Reads lines of "tokens", answers with tokens a second and the longest time between two.
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
    """Of one generation: tokens a second, and the longest time between two, in seconds (0 where it is not known)."""

    tokens: float
    gap: float = 0.0


class Way:
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
        """Generate so many tokens, again and again for so long; returns the mean speed."""
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
    """Start n processes that compute; seconds: they do so for as long and then sleep as long, by turns."""
    if seconds is None:
        return [subprocess.Popen(["yes"], stdout=subprocess.DEVNULL, **options) for _ in range(n)]
    code = "import time\nwhile True:\n end = time.time() + %f\n while time.time() < end: pass\n time.sleep(%f)"
    return [subprocess.Popen([sys.executable, "-c", code % (seconds, seconds)], **options) for _ in range(n)]


@contextmanager
def beside(n: int, seconds: float | None = None, *, group: bool = False, nice: int = 0) -> Iterator[None]:
    """Let n processes compute meanwhile; group: in a control group of their own."""
    with control_group() if group else ExitStack() as place:
        processes = hog(n, seconds, preexec_fn=(lambda: os.nice(nice)) if nice else None)
        try:
            for process in processes if group else []:
                (place / "cgroup.procs").write_text(str(process.pid))
            time.sleep(0.3)
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()


@contextmanager
def control_group(cores: float | None = None) -> Iterator[Path]:
    """Make a control group, bounded to so many cores' time."""
    old = GROUPS / "cpu"
    place = (old if old.is_dir() else GROUPS) / f"busy-{os.getpid()}"
    place.mkdir()
    if cores is not None and old.is_dir():
        (place / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD)))
    elif cores is not None:
        (place / "cpu.max").write_text(f"{int(cores * PERIOD)} {PERIOD}")
    try:
        yield place
    finally:
        time.sleep(0.2)
        place.rmdir()


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """Bound this process, and those that it starts, to so many cores' time."""
    with control_group(cores) as place:
        (place / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:  # in the outermost group: where else it was is not kept
            (place.parent / "cgroup.procs").write_text(str(os.getpid()))


LOADS: dict[str, Callable[[], Any]] = {
    "alone": ExitStack,
    "busy": lambda: beside(1),
    "busy-apart": lambda: beside(1, group=True),
    "two-busy": lambda: beside(2),
    CHANGES: lambda: beside(1, TOGGLE),
    "nice-19": lambda: beside(1, nice=19),
    "quota-1": lambda: quota(1),
    "quota-0.5": lambda: quota(0.5),
    "quota-1.5": lambda: quota(1.5),
}


def measure(
    model: Path, load: str, drafts: list[str], tokens: int, n: int, program: Path | None
) -> dict[str, list[Speed]]:
    """n generations of each way under a load, by way: "default/3" is the default number of threads with 3 drafts."""
    threads = [DEFAULT, *map(str, sorted({1, (physical_cores() + 1) // 2, physical_cores()}))]
    ways = [(number, draft) for draft in drafts for number in threads]
    found: dict[str, list[Speed]] = {}
    with LOADS[load]():
        for turn in range(n):
            for number, draft in ways if turn % 2 == 0 else ways[::-1]:
                way = Way(model, number, draft)
                try:
                    way.generate(tokens)
                    speed = way.generate(tokens, 4 * TOGGLE if load == CHANGES else 0.0)
                finally:
                    way.close()
                found.setdefault(f"{number}/{draft}", []).append(speed)
            if program is not None and turn < MOST_PEERS:
                record = llama_bench.run(program, model, n_prompt=0, n_gen=tokens, threads=physical_cores())
                found.setdefault(LLAMA, []).append(Speed(float(record["avg_ts"])))
    return found


def medians(found: dict[str, list[Speed]]) -> dict[str, float]:
    """Tokens a second by way."""
    return {way: statistics.median(speed.tokens for speed in speeds) for way, speeds in found.items()}


def rows(load: str, found: dict[str, list[Speed]]) -> list[tuple[str, ...]]:
    """A line of the table for each number of drafts: of the default, the best fixed number, llama.cpp, the ratios."""
    speeds = medians(found)
    lines = []
    for draft in sorted({way.split("/")[1] for way in found if way != LLAMA}):
        fixed = {way.split("/")[0]: n for way, n in speeds.items() if way.endswith(f"/{draft}") and DEFAULT not in way}
        best = max(fixed, key=fixed.__getitem__)
        own, peer = speeds[f"{DEFAULT}/{draft}"], speeds.get(LLAMA) if draft == "0" else None
        gap = max(speed.gap for speed in found[f"{DEFAULT}/{draft}"])
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
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Generations of each way.")] = 5,
    drafts: Annotated[str, typer.Option(help="Drafts a round.")] = "0,3,auto",
    only: Annotated[str, typer.Option(help=f"Some of the loads: {', '.join(LOADS)}.")] = ",".join(LOADS),
    peer: Annotated[bool, typer.Option(help="Measure llama-bench, too.")] = True,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Measure decoding beside other work."""
    screen = Console(stderr=True, highlight=False, width=160)
    file = model or demo_model()
    program = llama_bench.build(patched=False) if peer else None
    found = {}
    table = Table(*HEADINGS, title=f"{file.name}: {tokens} tokens, {rounds} rounds")
    for load in only.split(","):
        found[load] = measure(file, load, drafts.split(","), tokens, rounds, program)
        for line in rows(load, found[load]):
            screen.print("  ".join(line))
            table.add_row(*line)
    Console(highlight=False, width=160).print(table)
    if output is not None:
        result = {
            "bench": "beside other work",
            "settings": {"model": file.name, "tokens": tokens, "rounds": rounds},
            "tokens_per_second": {load: medians(speeds) for load, speeds in found.items()},
            "measured": {
                load: {way: [asdict(speed) for speed in speeds] for way, speeds in ways.items()}
                for load, ways in found.items()
            },
            "machine": {"system": platform.platform(), "cores": physical_cores()},
            "build": build_info(),
        }
        output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
