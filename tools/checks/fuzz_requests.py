"""Makes invalid and valid calls of LLM and Context in any order, from several threads, with close() in between.

    pip install . typer
    python tools/checks/fuzz_requests.py --requests 20000 --seed 1 --jobs 2

Rounds of a dozen requests run in worker processes. A request may succeed or raise PymtpError, TypeError or ValueError.
After each round, the LLM and the Context (new ones, if they were closed) must give the same results as at first.
Findings are reported with the options that repeat their round (--seed N --round R):

- a process that ended or hung, with the last request,
- an exception of another type,
- another result after the round.

Rounds with threads also depend on timing.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from limits import limit_memory
from odd_requests import ALL_KINDS, SMALL, State, make_one
from odd_values import EXPECTED, GREEDY, Odd

from pymtp import LLM, Model
from pymtp.context.context import Context
from pymtp.sampling import Sampler

REQUESTS_A_ROUND = 12
ROUND_SECONDS = 120  # a round takes less than one second on an idle machine
MEMORY = 8 << 30  # bytes of address space: the system refuses more, so that other processes do not suffer
PROBE = [3, 1, 4, 1, 5]


def new_llm(model: Model) -> LLM:
    return LLM(model, draft_tokens=3, **SMALL)


def new_context(model: Model) -> Context:
    return Context(model, draft_tokens=3, n_seq_max=3, embeddings=False, **SMALL)


def text_of(llm: LLM) -> Any:
    return llm.generate("import ", GREEDY).token_ids


def rows_of(context: Context) -> Any:
    """Return the results of each sequence, from empty caches on."""
    context.cancel(False)
    context.clear()
    found = []
    for seq in range(context.n_seq_max):
        context.set_sampling(Sampler(GREEDY), seq)
        context.prefill(PROBE, seq)
        first = context.first_token(seq)
        drafts, _ = context.draft_chain(first, 3, seq)
        found.append((first, drafts, context.verify_chain([first, *drafts], seq), context.head_state(seq)))
    return found


def run_rounds(seed: int, rounds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run the rounds; yield each request before it is made, and each finding."""
    model = Model()
    llm, context = new_llm(model), new_context(model)
    wanted_text, wanted_rows = text_of(llm), rows_of(context)
    for number in rounds:
        state = State(Odd(random.Random(f"{seed}/{number}")), model, llm, context)
        for _ in range(REQUESTS_A_ROUND):
            text, request = make_one(state, ALL_KINDS)
            yield {"request": text}
            try:
                request()
                yield {"done": text}
            except EXPECTED:
                pass
            except Exception as error:
                yield {"found": f"{type(error).__name__}: {error}", "after": text}
        state.streams.clear()
        yield {"request": "the same answers as at first"}
        try:
            if llm._closed:
                llm = new_llm(model)
            if context._closed:
                context = new_context(model)
            if text_of(llm) != wanted_text:
                yield {"found": "another text from the LLM"}
                llm = new_llm(model)
            if rows_of(context) != wanted_rows:
                yield {"found": "another answer of the Context"}
                context = new_context(model)
        except Exception as error:
            yield {"found": f"after the round, {type(error).__name__}: {error}"}
            llm, context = new_llm(model), new_context(model)
        yield {"end": number}


def work(seed: int, rounds: Sequence[int]) -> None:
    """Run a worker process: print a line of JSON for each event."""
    limit_memory(MEMORY)
    for said_now in run_rounds(seed, rounds):
        print(json.dumps(said_now), flush=True)


@dataclass
class WorkerRounds:
    """The rounds of one worker after another, and their findings."""

    seed: int
    left: list[int]
    n_requests: int = 0
    n_done: int = 0  # the others were refused
    findings: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> WorkerRounds:
        """Start a new worker after each one that ends early."""
        while self.left:
            arguments = [sys.executable, __file__, "--worker", ",".join(map(str, self.left)), "--seed", str(self.seed)]
            quiet = os.environ | {"GGML_NO_BACKTRACE": "1"}
            with (
                tempfile.TemporaryFile("w+") as errors,
                subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True, env=quiet) as worker,
            ):
                asked = self._listen(worker)
                code = worker.wait()
                errors.seek(0)
                words = errors.read()[:1000].splitlines()
            if code:
                self._note(f"the process ended with {code}", requests=asked, stderr=words)
                del self.left[0]
            elif words:
                self._note("wrote to stderr", stderr=words)
        return self

    def _listen(self, worker: subprocess.Popen[str]) -> list[str]:
        """Read the events of a worker until it ends, and return the requests of its last round."""
        asked: list[str] = []
        alarm = threading.Timer(ROUND_SECONDS, worker.kill)
        alarm.start()
        assert worker.stdout is not None
        for line in worker.stdout:
            try:
                heard = json.loads(line)
            except ValueError:
                self._note("printed", line=line, after=asked[-1:])
                continue
            if "found" in heard:
                self._note(**heard)
            elif "request" in heard:
                asked.append(heard["request"])
                self.n_requests += 1
            elif "done" in heard:
                self.n_done += 1
            else:
                del self.left[0]
                asked.clear()
                alarm.cancel()
                alarm = threading.Timer(ROUND_SECONDS, worker.kill)
                alarm.start()
        alarm.cancel()
        return asked

    def _note(self, found: str, **more: Any) -> None:
        at = f"--seed {self.seed} --round {self.left[0]}" if self.left else f"--seed {self.seed}"
        self.findings.append({"found": found, "again": at, **more})


def main(
    requests: Annotated[int, typer.Option(min=1)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes at a time.")] = 2,
    only: Annotated[int | None, typer.Option("--round", help="Run this round alone.")] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Make random requests; exit with status 1 on any finding."""
    if worker is not None:
        work(seed, [int(number) for number in worker.split(",")])
        return
    rounds = list(range(math.ceil(requests / REQUESTS_A_ROUND))) if only is None else [only]
    with ThreadPoolExecutor(jobs) as pool:
        workers = list(pool.map(WorkerRounds.run, [WorkerRounds(seed, rounds[i::jobs]) for i in range(jobs)]))
    findings = [finding for worker_rounds in workers for finding in worker_rounds.findings]
    for finding in findings:
        print(json.dumps(finding, indent=1))
    kinds = Counter(finding["found"][:60] for finding in findings)
    made = sum(worker_rounds.n_requests for worker_rounds in workers)
    done = sum(worker_rounds.n_done for worker_rounds in workers)
    print(f"{made} requests, {made - done} refused, in {len(rounds)} rounds, seed {seed}: {len(findings)} findings")
    for kind, n in kinds.most_common():
        print(f"{n:>6} {kind}")
    raise typer.Exit(1 if findings else 0)


if __name__ == "__main__":
    typer.run(main)
