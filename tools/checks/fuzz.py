"""Feeds pymtp with damaged or odd input, in processes that may crash, and collects the findings.

    python tools/checks/fuzz.py models -n 100000 --jobs 2 --out build/fuzz
    python tools/checks/fuzz.py heads -n 10000
    python tools/checks/fuzz.py projectors -n 2000
    python tools/checks/fuzz.py prefixes -n 20000
    python tools/checks/fuzz.py requests -n 20000 --seed 1
    python tools/checks/fuzz.py grammars -n 20000
    python tools/checks/fuzz.py images -n 5000

models      Damaged model files: refused, or tokens are generated.
heads       Models with heads in files that do not fit or are damaged: refused, or the model's own tokens are generated.
projectors  Damaged projectors: refused, or images are encoded.
prefixes    Damaged prefix files: refused, or loaded with a correct checksum; a sound prefix keeps its logits.
requests    Invalid and valid calls in any order, from threads, with close() in between: the same results afterwards.
grammars    Odd grammars and JSON schemas: refused, or followed, in time.
images      Odd and damaged images: refused, or encoded, twice with the same end and no more memory.

The modules fuzz_<subject>.py say more. Each attempt runs in a forked process of its own. It may succeed or raise
PymtpError. A finding is anything else: a signal, another exception, output on stderr, or too many seconds. If an
assertion of llama.cpp became an exception, a sound attempt must succeed afterwards in the same process. The files of
findings are kept in --out with their recipe; `--only INDEX` repeats an attempt.
"""

from __future__ import annotations

import importlib
import json
import logging
import mmap
import multiprocessing
import os
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Annotated, Any, Protocol

import typer
from common import Seed, limit_memory, run_command
from rich.console import Console
from rich.progress import track

from pymtp import PymtpError

SUBJECTS = ("models", "heads", "projectors", "prefixes", "requests", "grammars", "images")
SubjectName = Enum("SubjectName", {n: n for n in SUBJECTS}, type=str)
Note = Callable[[str], None]  # remembers the words for the finding if the process dies
Attempt = Callable[[Note], "dict[str, int] | None"]  # returns counts, if it has any
WORKED, REFUSED, FAILED = 0, 3, 4


class Subject(Protocol):
    """Makes attempts.

    UNITS: files, requests or texts of an attempt. SECONDS: those that it may take. MEMORY: bytes of address space
    beyond those of the parent.
    """

    UNITS: int
    SECONDS: int
    MEMORY: int

    def __init__(self, folder: Path) -> None:
        """Make the sound files from which all attempts are made."""

    def sound(self, place: Path) -> object:
        """Make an attempt that must succeed."""

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Attempt]:
        """Write the files of an attempt into an empty folder. Return their recipe and the attempt."""


@dataclass
class Finding:
    """An attempt with a wrong end: how the process ended, and its message or output."""

    index: int
    recipe: list[str]
    what: str
    said: str


@dataclass
class Results:
    """Results of attempts. counts: the attempts by their end, and what they count themselves."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    assertions: Counter[str] = field(default_factory=Counter)

    def add(self, other: Results) -> None:
        """Add the results of other attempts."""
        self.counts += other.counts
        self.findings += other.findings
        self.reasons += other.reasons
        self.assertions += other.assertions


class ForkRunner:
    """Runs attempts in forked processes: a fork of a parent with all imports takes a few milliseconds."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.shared = mmap.mmap(-1, 64 * 1024)  # what the child says, and its counts
        self.stderr = os.memfd_create("stderr")
        logging.getLogger("pymtp.native").addHandler(logging.NullHandler())
        logging.getLogger("pymtp.native").propagate = False

    def results(self, attempt: Attempt, index: int, recipe: list[str], place: Path) -> Results:
        """Run an attempt."""
        what, said, counts = self._try(attempt, place)
        results = Results(Counter({"tried": 1, **counts}))
        if what not in ("worked", "refused"):
            results.findings.append(Finding(index, recipe, what, said))
            return results
        results.counts[what] += 1
        if said:
            kinds = results.assertions if "GGML_" in said else results.reasons
            # without numbers and quoted words, to group similar messages
            kinds[re.sub(r"'[^']*'|\d+", "…", said.replace(str(place), ""))[:160]] += 1
        return results

    def _write(self, said: str, counts: dict[str, int] | None = None) -> None:
        self.shared.seek(0)
        self.shared.write(json.dumps([said[:9000], counts or {}]).encode() + b"\0")

    def _try(self, attempt: Attempt, place: Path) -> tuple[str, str, dict[str, int]]:
        """Return the result ("worked", "refused", or a description of the finding), what was said, and the counts."""
        self._write("")
        os.ftruncate(self.stderr, 0)
        pid = os.fork()
        if pid == 0:
            self._run(attempt, place)
        _, status = os.waitpid(pid, 0)
        said, counts = json.loads(self.shared[: self.shared.find(b"\0", 0)])
        printed = os.pread(self.stderr, 4000, 0).decode("utf-8", "replace")
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return ("too slow" if name == "SIGALRM" else name), f"{said}\n{printed}", counts
        code = os.WEXITSTATUS(status)
        if printed or code not in (WORKED, REFUSED):
            what = "an exception" if code == FAILED else f"exit code {code}" if code else "stderr"
            return what, f"{said}\n{printed}", counts
        return ("worked" if code == WORKED else "refused"), said, counts

    def _run(self, attempt: Attempt, place: Path) -> None:
        code = FAILED
        try:
            os.dup2(self.stderr, 2)
            os.lseek(2, 0, os.SEEK_SET)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit_memory(pages * resource.getpagesize() + self.subject.MEMORY)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(self.subject.SECONDS)
            try:
                counts = attempt(self._write)
                self._write("", counts)
                code = WORKED
            except PymtpError as error:
                self._write(str(error).replace("\n", " "))
                if "GGML_" in str(error):
                    self.subject.sound(place)
                code = REFUSED
        except BaseException:
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os._exit(code)


class Attempts:
    """Makes attempts by their indices: the same for the same seed."""

    def __init__(self, make: Callable[[Path], Subject], seed: int, folder: Path) -> None:
        self._subject, self._seed, self._place = make(folder), seed, folder / "attempt"
        self._runner = ForkRunner(self._subject)

    def __call__(self, index: int) -> Results:
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()
        recipe, attempt = self._subject.prepare(Random(f"{self._seed}:{index}"), index, self._place)
        return self._runner.results(attempt, index, recipe, self._place)


def _begin_job(make: Callable[[Path], Subject], seed: int, folder: str, until: float) -> None:
    global _attempts, _until
    (own := Path(folder) / str(os.getpid())).mkdir()
    _attempts, _until = Attempts(make, seed, own), until


def _attempt(index: int) -> Results:
    return _attempts(index) if time.monotonic() < _until else Results()


def run_jobs(
    make: Callable[[Path], Subject], seed: int, indices: Iterable[int], jobs: int, until: float
) -> Iterator[Results]:
    """Make attempts in so many processes until a value of time.monotonic(), and yield the results of each."""
    fork, memory = multiprocessing.get_context("fork"), "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        ProcessPoolExecutor(jobs, fork, _begin_job, (make, seed, folder, until)) as pool,
    ):
        yield from pool.map(_attempt, indices, chunksize=4)


def main(
    subject: Annotated[SubjectName, typer.Argument(help="What is odd.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Files, pairs, requests or texts.")] = 1000,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that make attempts.")] = 1,
    seed: Seed = 0,
    time_budget: Annotated[float, typer.Option(help="Minutes after which no further attempt is made.")] = 1e9,
    only: Annotated[int, typer.Option(help="Make the attempt of this index only.")] = -1,
    out: Annotated[Path | None, typer.Option(help="Folder for the summary and the files of findings.")] = None,
) -> None:
    """Print a summary as JSON; exit with status 1 if there are findings."""
    make: Any = importlib.import_module(f"fuzz_{subject.value}").Fuzzed
    start, results = time.monotonic(), Results()
    indices = range(-(-n // make.UNITS)) if only < 0 else [only]
    tried = run_jobs(make, seed, indices, jobs, start + 60 * time_budget)
    for one in track(tried, total=len(indices), console=Console(stderr=True)):
        results.add(one)
    summary = {
        "subject": subject.value,
        "seed": seed,
        "seconds": round(time.monotonic() - start, 1),
        **results.counts,
        "findings": [asdict(finding) for finding in sorted(results.findings, key=lambda found: found.index)],
        "assertions": dict(results.assertions.most_common()),
        "reasons": dict(results.reasons.most_common(60)),
    }
    print(json.dumps(summary, indent=2))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder))
            for finding in results.findings:
                (place := out / f"{seed}-{finding.index}").mkdir(exist_ok=True)
                made.prepare(Random(f"{seed}:{finding.index}"), finding.index, place)
    raise typer.Exit(1 if results.findings else 0)


if __name__ == "__main__":
    run_command(main)
