"""Check that Ctrl-C, cancel, close, del, exit and fork at random moments hang nothing and harm no other request.

    python tools/checks/interrupts.py --moments 200

Each kind of end is tried alone and beside 7 requests of other threads. A request that is not meant must write the text
that it writes alone; an end may take a second at most; afterwards the process holds no more memory than before.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Annotated, Any

import typer
from common import Seed, resident, run_command

from pymtp import LLM, ClosedError, Model, SamplingParams

LIMIT = 1.0  # seconds that an end may take
ARENAS = 40 * 2**20  # bytes by which arenas of the allocator may grow in the second half of the moments
CHILD_LIMIT = 20  # seconds after which a child process counts as hanging
PARAMS, ENDLESS = SamplingParams(60, ignore_eos=True), SamplingParams(None, ignore_eos=True)
PROMPTS = [f"import os\n\ndef walk_{i}(folder):\n" for i in range(8)]
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_seq_max": 8, "draft_tokens": 2, "cache_bytes": 0}
EXITS = """
import sys, threading, time, pymtp
company, delay = int(sys.argv[1]), float(sys.argv[2])
llm = pymtp.LLM(n_ctx=512, n_threads=1, n_seq_max=8, draft_tokens=2)
def work(i):
    while True:
        llm.generate(f"def walk_{i}", pymtp.SamplingParams(60, ignore_eos=True))
for i in range(company):
    threading.Thread(target=work, args=[i], daemon=True).start()
stream = llm.stream("import os", pymtp.SamplingParams(None, ignore_eos=True))
next(stream)
time.sleep(delay)
print(time.time(), flush=True)
"""


class Company:
    """Threads that generate again and again, each with a prompt of its own, and count wrong texts."""

    def __init__(self, llm: LLM, n: int, expected: list[list[int]], *, elsewhere: bool) -> None:
        """Start the threads. elsewhere: an end starts them in another process."""
        self._llm, self.expected, self.n, self.wrong, self._ends = llm, expected, n, 0, False
        self._threads = [threading.Thread(target=self._work, args=[i + 1]) for i in range(0 if elsewhere else n)]
        for thread in self._threads:
            thread.start()

    def _work(self, i: int) -> None:
        with suppress(ClosedError):
            while not self._ends:
                made = self._llm.generate(PROMPTS[i], PARAMS)
                self.wrong += made.finish_reason != "cancelled" and made.token_ids != self.expected[i]

    def end(self) -> int:
        """Wait for the threads, and return how many of their texts were wrong."""
        self._ends = True
        for thread in self._threads:
            thread.join()
        return self.wrong


def ctrl_c(llm: LLM, others: Company, n: int) -> float:
    sent = list[float]()

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(random.uniform(0, 0.15), send)
    try:
        timer.start()
        while True:
            llm.generate([PROMPTS[0]] * 3, PARAMS) if n % 2 else list(llm.stream(PROMPTS[0], PARAMS))
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]


def cancel(llm: LLM, others: Company, n: int) -> float:
    timer = threading.Timer(delay := random.uniform(0, 0.1), llm.cancel)
    started = time.monotonic()
    timer.start()
    while llm.generate(PROMPTS[0], ENDLESS).finish_reason != "cancelled":
        pass
    timer.join()
    return time.monotonic() - started - delay


def close(llm: LLM, others: Company, n: int) -> float:
    stream = llm.stream(PROMPTS[0], ENDLESS)
    for _ in range(random.randrange(20)):
        next(stream)
    time.sleep(random.uniform(0, 0.02))
    started = time.monotonic()
    llm.close()
    late = time.monotonic() - started
    with suppress(ClosedError):
        list(stream)
        raise AssertionError("the stream goes on")
    return late


def delete(llm: LLM, others: Company, n: int) -> float:
    mine = LLM(llm.model, **OPTIONS)
    streams = [mine.stream(prompt, ENDLESS) for prompt in PROMPTS[: n % 9]]
    time.sleep(random.uniform(0, 0.02))
    started = time.monotonic()
    del streams, mine
    return time.monotonic() - started


def fork(llm: LLM, others: Company, n: int) -> float:
    time.sleep(random.uniform(0, 0.02))
    if not (child := os.fork()):
        signal.alarm(CHILD_LIMIT)
        try:
            os._exit(0 if llm.generate(PROMPTS[0], PARAMS).token_ids == others.expected[0] else 1)
        except ClosedError:
            os._exit(0 if others.n else 2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child ended with {code}"
    return 0.0


def exits(llm: LLM, others: Company, n: int) -> float:
    command = [sys.executable, "-I", "-c", EXITS, str(others.n), str(random.uniform(0, 0.05))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, ""), f"{ended.returncode} {ended.stderr[-300:]}"
    return time.time() - float(ended.stdout)


# each ends something, and returns the seconds that this took; raises AssertionError for a fault
KINDS: dict[str, Callable[[LLM, Company, int], float]] = {"ctrl-c": ctrl_c, "cancel": cancel, "close": close}
KINDS |= {"del": delete, "fork": fork, "exit": exits}


def try_moments(model: Model, kind: str, company: int, expected: list[list[int]], moments: int) -> list[str]:
    """Try a kind of end at some moments on one LLM, or on one each for `close`. Return what was wrong."""
    faults = list[str]()
    with ExitStack() as stack:
        for n in range(moments):
            if n == 0 or kind == "close":
                llm = stack.enter_context(LLM(model, **OPTIONS))
                others = Company(llm, company, expected, elsewhere=kind == "exit")
            try:
                if (late := KINDS[kind](llm, others, n)) > LIMIT:
                    faults.append(f"{kind} {n}: {late:.1f} s")
            except AssertionError as error:
                faults.append(f"{kind} {n}: {error}")
            if (n == moments - 1 or kind == "close") and (wrong := others.end()):
                faults.append(f"{kind} {n}: {wrong} other texts are wrong")
        if kind != "close" and llm.generate(PROMPTS[0], PARAMS).token_ids != expected[0]:
            faults.append(f"{kind}: the next text is wrong")
        if kind != "close" and (llm.figures().running or llm.figures().waiting):
            faults.append(f"{kind}: requests are left")
    return faults


def main(
    moments: Annotated[int, typer.Option(min=2, help="Moments of each kind, alone and in company.")] = 200,
    only: Annotated[str, typer.Option(help="Kinds, by commas.")] = ",".join(KINDS),
    seed: Seed = 0,
) -> None:
    """Try each kind of end at random moments, and print the faults."""
    random.seed(seed)
    faults = list[str]()
    with Model() as model:
        with LLM(model, **OPTIONS) as llm:
            expected = [llm.generate(prompt, PARAMS).token_ids for prompt in PROMPTS]
        for kind in only.split(","):
            for company in (0, 7):
                started = time.monotonic()
                found = try_moments(model, kind, company, expected, moments // 2)
                before = resident()
                found += try_moments(model, kind, company, expected, moments - moments // 2)
                if (grown := resident() - before) > ARENAS:
                    found.append(f"{kind}: {grown} bytes more")
                told = f"{len(found)} faults, {grown / 2**20:+.0f} MiB, {time.monotonic() - started:.0f} s"
                print(f"{kind} beside {company}: {moments} moments, {told}", flush=True)
                faults += found
    print("\n".join(faults))
    raise typer.Exit(bool(faults))


if __name__ == "__main__":
    run_command(main)
