"""Runs attempts that may crash in forked processes, in several jobs, and collects their findings.

An attempt may succeed or raise PymtpError. Anything else is a finding: a signal, another exception, output on stderr,
more than TIMEOUT seconds. If an assertion of llama.cpp became an exception, a sound attempt must succeed afterwards in
the same process.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from limits import limit_memory

from pymtp import PymtpError

TIMEOUT = 20
MEMORY = 2 * 1024**3  # bytes of address space beyond those of the parent
WORKED, REFUSED, FAILED = 0, 3, 4


@dataclass
class Finding:
    """An attempt with a wrong end: how the child ended, and its message or output."""

    index: int
    damage: list[str]
    what: str
    said: str


@dataclass
class Results:
    tried: int = 0
    worked: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    assertions: Counter[str] = field(default_factory=Counter)

    def add(self, other: Results) -> None:
        self.tried += other.tried
        self.worked += other.worked
        self.refused += other.refused
        self.findings += other.findings
        self.reasons += other.reasons
        self.assertions += other.assertions


class ForkRunner:
    """Runs attempts in forked processes: a fork of a parent with all imports takes a few milliseconds."""

    def __init__(self, sound: Callable[[], object]) -> None:
        """Set up the runner. sound: an attempt that must succeed."""
        self.sound = sound
        self.said = mmap.mmap(-1, 64 * 1024)
        self.stderr = os.memfd_create("stderr")
        logging.getLogger("pymtp.native").addHandler(logging.NullHandler())
        logging.getLogger("pymtp.native").propagate = False

    def results(self, attempt: Callable[[], object], index: int, damage: list[str], paths: Sequence[Path]) -> Results:
        """Run the attempt of this index.

        attempt: raises PymtpError if its files are refused. damage: the changes in these files, which are at `paths`.
        """
        what, said = self._try(attempt)
        results = Results(tried=1, worked=what == "worked", refused=what == "refused")
        if what not in ("worked", "refused"):
            results.findings.append(Finding(index, damage, what, said))
        elif said:
            for path in paths:
                said = said.replace(str(path), "")
            (results.assertions if "GGML_" in said else results.reasons)[_kind(said)] += 1
        return results

    def _try(self, attempt: Callable[[], object]) -> tuple[str, str]:
        """Return the result ("worked", "refused", or a description of the finding), and the message or output."""
        self.said.seek(0)
        self.said.write(b"\0")
        os.ftruncate(self.stderr, 0)
        pid = os.fork()
        if pid == 0:
            self._run(attempt)
        _, status = os.waitpid(pid, 0)
        self.said.seek(0)
        said = self.said.readline().split(b"\0")[0].decode("utf-8", "replace").strip()
        printed = os.pread(self.stderr, 4000, 0).decode("utf-8", "replace")
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return ("too slow" if name == "SIGALRM" else name), said + printed
        code = os.WEXITSTATUS(status)
        if printed or code not in (WORKED, REFUSED):
            return ("an exception" if code == FAILED else f"exit code {code}" if code else "stderr"), said + printed
        return ("worked" if code == WORKED else "refused"), said

    def _run(self, attempt: Callable[[], object]) -> None:
        code = FAILED
        try:
            os.dup2(self.stderr, 2)
            os.lseek(2, 0, os.SEEK_SET)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit_memory(pages * resource.getpagesize() + MEMORY)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(TIMEOUT)
            try:
                attempt()
                code = WORKED
            except PymtpError as error:
                self.said.seek(0)
                self.said.write(str(error).replace("\n", " ").encode("utf-8", "replace")[:60000] + b"\n")
                if "GGML_" in str(error):
                    self.sound()
                code = REFUSED
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _kind(said: str) -> str:
    """Replace quoted words and numbers in a message, to group similar messages."""
    return re.sub(r"'[^']*'|\d+", "…", said)[:160]


TryAll = Callable[[int, Iterator[int], Path, float], Iterator[Results]]


def run(try_all: TryAll, n: int, jobs: int, seed: int, minutes: float, only: int = -1) -> dict[str, Any]:
    """Run n attempts in so many jobs, or only the one with the index `only`, and return a summary.

    try_all: runs the attempts for a seed and indices in a folder, until a value of time.monotonic(), and yields the
        results of each.
    """
    start, results = time.monotonic(), Results()
    if only >= 0:
        with tempfile.TemporaryDirectory() as folder:
            for one in try_all(seed, iter([only]), Path(folder), float("inf")):
                results.add(one)
        return _summary(results, seed, time.monotonic() - start)
    shown = start
    for some in _run_jobs(try_all, n, jobs, seed, start + 60 * minutes):
        results.add(some)
        if sys.stderr.isatty() or time.monotonic() - shown > 30:
            shown = time.monotonic()
            rate = results.tried / (shown - start)
            print(f"{results.tried} tried, {len(results.findings)} findings, {rate:.0f}/s", file=sys.stderr)
    return _summary(results, seed, time.monotonic() - start)


def _work(try_all: TryAll, indices: Iterator[int], seed: int, until: float, pipe: Connection) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        together, sent = Results(), time.monotonic()
        for results in try_all(seed, indices, Path(folder), until):
            together.add(results)
            if time.monotonic() - sent > 1:
                pipe.send(together)
                together, sent = Results(), time.monotonic()
        pipe.send(together)
    pipe.close()


def _run_jobs(try_all: TryAll, n: int, jobs: int, seed: int, until: float) -> Iterator[Results]:
    pipes = []
    for job in range(jobs):
        ours, theirs = Pipe(duplex=False)
        if os.fork() == 0:
            code = 1
            try:
                _work(try_all, iter(range(job, n, jobs)), seed, until, theirs)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()
        pipes.append(ours)
    while pipes:
        for pipe in wait(pipes):
            assert isinstance(pipe, Connection)
            try:
                yield pipe.recv()
            except EOFError:
                pipes.remove(pipe)
    if any(os.wait()[1] for _ in range(jobs)):
        sys.exit("a job failed: see above")


def _summary(results: Results, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "tried": results.tried,
        "seconds": round(seconds, 1),
        "worked": results.worked,
        "refused": results.refused,
        "findings": [asdict(finding) for finding in sorted(results.findings, key=lambda found: found.index)],
        "assertions": dict(results.assertions.most_common()),
        "reasons": dict(results.reasons.most_common(60)),
    }
