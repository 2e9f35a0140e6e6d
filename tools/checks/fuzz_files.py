"""Loads damaged model files, each in a process of its own, and counts what is no PymtpError.

    python tools/checks/fuzz_files.py --files 100000 --jobs 2 --out build/fuzz

A file may be refused, or load and write 4 tokens. Everything else is a finding: a signal, another exception, a line on
stderr, more than TIMEOUT seconds. Where an assertion of llama.cpp became an exception, a sound model must work in
the same process afterwards. A finding is kept as a file, with its recipe; `--only INDEX` does that one again.
"""

from __future__ import annotations

import json
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from gguf_damage import damaged
from limits import limit_memory
from makers.gguf_parts import GGUF, parse
from makers.make_model import make_model
from makers.model_shapes import PRESETS, Shape
from odd_shapes import odd_shape

from pymtp import LLM, PymtpError, SamplingParams

TIMEOUT = 20
ODD = 0.05  # share of files with an odd shape
MEMORY = 2 * 1024**3  # more address space than the parent has
WORKED, REFUSED, FAILED = 0, 3, 4
_SMALL = replace(
    PRESETS["tiny"],
    n_embd=32,
    n_vocab=264,
    n_head=2,
    n_head_kv=1,
    head_dim=32,
    n_rot=16,
    rope_sections=(3, 3, 2),
    linear_k_heads=1,
    linear_v_heads=2,
    n_ff=32,
)
_WIDE = replace(_SMALL, n_embd=256, linear_v_heads=8, linear_k_heads=2, head_dim=128, n_ff=256)  # rows of K-quants
_EXPERTS = replace(_SMALL, n_ff=0, n_expert=4, n_expert_used=2, n_ff_expert=32, n_ff_shared=32, tied=False)
BASES: tuple[tuple[Shape, str], ...] = (
    (_SMALL, "f32"),
    (replace(_SMALL, tied=False, head=False), "q8_0"),
    (_EXPERTS, "q4_0"),
    (_WIDE, "q4_k"),
    (replace(_EXPERTS, next=True), "f16"),
)


@dataclass(frozen=True)
class Recipe:
    """Makes a damaged file: the same one each time."""

    seed: int
    index: int

    def make(self, bases: list[GGUF], folder: Path) -> tuple[bytes, list[str]]:
        """The file, and what was done to it."""
        rng = Random(f"{self.seed}:{self.index}")
        if rng.random() > ODD:
            return damaged(bases[self.index % len(bases)], rng)
        shape, kind = odd_shape(rng), rng.choice(("f32", "f16", "bf16", "q8_0", "q4_0"))
        (path,) = make_model(shape, folder / f"odd-{os.getpid()}.gguf", weight_type=kind, threads=1)
        file, done = parse(path.read_bytes()), [f"{kind}, {shape}"]
        if rng.random() < 0.5:
            return file.encoded(), done
        data, more = damaged(file, rng)
        return data, done + more


@dataclass
class Finding:
    """What went wrong with a file, how the child ended, and what it or llama.cpp said."""

    index: int
    damage: list[str]
    what: str
    said: str


@dataclass
class Results:
    files: int = 0
    worked: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    assertions: Counter[str] = field(default_factory=Counter)

    def add(self, other: Results) -> None:
        self.files += other.files
        self.worked += other.worked
        self.refused += other.refused
        self.findings += other.findings
        self.reasons += other.reasons
        self.assertions += other.assertions


class Child:
    """Tries files in forked processes: from a parent that has everything imported, that takes a few milliseconds."""

    def __init__(self, folder: Path, sound: Path) -> None:
        self.path = folder / f"damaged-{os.getpid()}.gguf"
        self.sound = sound
        self.said = mmap.mmap(-1, 64 * 1024)
        self.stderr = os.memfd_create("stderr")
        logging.getLogger("pymtp.native").addHandler(logging.NullHandler())
        logging.getLogger("pymtp.native").propagate = False

    def try_file(self, data: bytes) -> tuple[str, str]:
        """What became of it ("worked", "refused", or what is wrong with it), and what was said."""
        self.path.write_bytes(data)
        self.said.seek(0)
        self.said.write(b"\0")
        os.ftruncate(self.stderr, 0)
        pid = os.fork()
        if pid == 0:
            self._run()
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

    def _run(self) -> None:
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
                self._write_tokens(self.path)
                code = WORKED
            except PymtpError as error:
                self.said.seek(0)
                self.said.write(str(error).replace("\n", " ").encode("utf-8", "replace")[:60000] + b"\n")
                if "GGML_" in str(error):
                    self._write_tokens(self.sound)
                code = REFUSED
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _write_tokens(self, path: Path) -> None:
        with LLM(path, n_ctx=64, n_threads=1, n_gpu_layers=0, draft_tokens=2) as llm:
            llm.generate("ab", SamplingParams(max_tokens=4))
            _ = llm.model.metadata, llm.chat_template.render([{"role": "user", "content": "ab"}])


def make_bases(folder: Path) -> tuple[list[GGUF], Path]:
    """The sound files that are damaged, and the path of one."""
    paths = [make_model(shape, folder / f"{i}.gguf", weight_type=kind)[0] for i, (shape, kind) in enumerate(BASES)]
    return [parse(path.read_bytes()) for path in paths], paths[0]


def try_files(seed: int, indices: Iterator[int], folder: Path, until: float = float("inf")) -> Iterator[Results]:
    """Tries the files of these indices, one after the other; the results of each."""
    bases, sound = make_bases(folder)
    child = Child(folder, sound)
    for index in indices:
        if time.monotonic() > until:
            return
        data, damage = Recipe(seed, index).make(bases, folder)
        what, said = child.try_file(data)
        results = Results(files=1, worked=what == "worked", refused=what == "refused")
        if what not in ("worked", "refused"):
            results.findings.append(Finding(index, damage, what, said))
        elif said:
            said = said.replace(str(child.path), "")
            (results.assertions if "GGML_" in said else results.reasons)[_kind(said)] += 1
        yield results


def _kind(said: str) -> str:
    """A message without what differs from file to file."""
    return re.sub(r"'[^']*'|\d+", "…", said)[:160]


def _work(job: int, jobs: int, files: int, seed: int, until: float, pipe: Connection) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        together, sent = Results(), time.monotonic()
        for results in try_files(seed, iter(range(job, files, jobs)), Path(folder), until):
            together.add(results)
            if time.monotonic() - sent > 1:
                pipe.send(together)
                together, sent = Results(), time.monotonic()
        pipe.send(together)
    pipe.close()


def _run_jobs(jobs: int, files: int, seed: int, until: float) -> Iterator[Results]:
    pipes = []
    for job in range(jobs):
        ours, theirs = Pipe(duplex=False)
        if os.fork() == 0:
            code = 1
            try:
                _work(job, jobs, files, seed, until, theirs)
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


def main(
    files: Annotated[int, typer.Option(help="How many files.")] = 1000,
    jobs: Annotated[int, typer.Option(help="Processes that try files.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed makes other files.")] = 0,
    time_budget: Annotated[float, typer.Option(help="Minutes after which no file is begun.")] = 1e9,
    only: Annotated[int, typer.Option(help="Try the file of this index only.")] = -1,
    out: Annotated[Path | None, typer.Option(help="Folder for the summary and the files of findings.")] = None,
) -> None:
    """Loads damaged model files and prints a summary as JSON. Exit code 1 where there are findings."""
    start, results = time.monotonic(), Results()
    if only >= 0:
        with tempfile.TemporaryDirectory() as folder:
            for one in try_files(seed, iter([only]), Path(folder)):
                results.add(one)
    else:
        shown = start
        for some in _run_jobs(jobs, files, seed, start + 60 * time_budget):
            results.add(some)
            if sys.stderr.isatty() or time.monotonic() - shown > 30:
                shown = time.monotonic()
                rate = results.files / (shown - start)
                print(f"{results.files} files, {len(results.findings)} findings, {rate:.0f}/s", file=sys.stderr)
    summary = summarize(results, seed, time.monotonic() - start)
    print(json.dumps(summary, indent=2))
    if out is not None:
        _save(out, summary, results, seed)
    raise typer.Exit(1 if results.findings else 0)


def summarize(results: Results, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "files": results.files,
        "seconds": round(seconds, 1),
        "worked": results.worked,
        "refused": results.refused,
        "findings": [asdict(finding) for finding in sorted(results.findings, key=lambda found: found.index)],
        "assertions": dict(results.assertions.most_common()),
        "reasons": dict(results.reasons.most_common(60)),
    }


def _save(out: Path, summary: dict[str, Any], results: Results, seed: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        bases, _ = make_bases(Path(folder))
        for finding in results.findings:
            data, _ = Recipe(seed, finding.index).make(bases, Path(folder))
            (out / f"{seed}-{finding.index}.gguf").write_bytes(data)


if __name__ == "__main__":
    typer.run(main)
