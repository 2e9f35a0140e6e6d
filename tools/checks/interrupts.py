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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from pymtp import LLM, ClosedError, Model, SamplingParams

LIMIT = 1.0  # seconds that an end may take
ARENAS = 40  # MiB by which the allocator's arenas may differ after the first half of the moments and after the second
CHILD_LIMIT = 20  # seconds after which a child process counts as hanging
PARAMS = SamplingParams(60, ignore_eos=True)
PROMPTS = [f"import os\n\ndef walk_{i}(folder):\n" for i in range(8)]
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_seq_max": 8, "draft_tokens": 2, "cache_bytes": 0}


class Faults(list[str]):
    """What went wrong, with the kind of end and the number of the moment."""

    def check(self, right: object, what: str) -> None:
        """Add a fault unless `right` is true."""
        if not right:
            self.append(what)


class Company:
    """Threads that generate again and again, each with a prompt of its own, and compare the texts."""

    def __init__(self, llm: LLM, n: int, expected: list[list[int]], meant: tuple[str, ...] = ()) -> None:
        self._llm, self._expected, self._meant = llm, expected, meant
        self.wrong = self.done = 0
        self._ends = False
        self._threads = [threading.Thread(target=self._work, args=[i + 1]) for i in range(n)]
        for thread in self._threads:
            thread.start()

    def _work(self, i: int) -> None:
        while not self._ends:
            try:
                made = self._llm.generate(PROMPTS[i], PARAMS)
            except ClosedError:
                return
            if made.finish_reason not in self._meant:
                self.wrong += made.token_ids != self._expected[i]
                self.done += 1

    def end(self) -> None:
        """Wait for the threads."""
        self._ends = True
        for thread in self._threads:
            thread.join()


@contextmanager
def sent_signal(delay: float) -> Iterator[list[float]]:
    """Send SIGINT to this process after a delay; yields a list that gets the time."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(delay, send)
    timer.start()
    try:
        yield sent
    finally:
        timer.join()


def ctrl_c(model: Model, company: int, expected: list[list[int]], moments: int, faults: Faults) -> None:
    with LLM(model, **OPTIONS) as llm:
        others = Company(llm, company, expected)
        for n in range(moments):
            try:
                with sent_signal(random.uniform(0, 0.15)) as sent:
                    while True:
                        if n % 2:
                            llm.generate([PROMPTS[0]] * 3, PARAMS)
                        else:
                            list(llm.stream(PROMPTS[0], PARAMS))
            except KeyboardInterrupt:
                faults.check(time.monotonic() - sent[0] < LIMIT, f"ctrl-c {n}: late")
        others.end()
        faults.check(
            others.wrong == 0 and (others.done or not company), f"ctrl-c: {others.wrong} other texts are wrong"
        )
        faults.check(llm.generate(PROMPTS[0], PARAMS).token_ids == expected[0], "ctrl-c: the next text is wrong")
        faults.check(llm.figures().running == llm.figures().waiting == 0, "ctrl-c: requests are left")


def cancel(model: Model, company: int, expected: list[list[int]], moments: int, faults: Faults) -> None:
    with LLM(model, **OPTIONS) as llm:
        others = Company(llm, company, expected, meant=("cancelled",))
        for n in range(moments):
            timer = threading.Timer(random.uniform(0, 0.1), llm.cancel)
            timer.start()
            started = time.monotonic()
            while llm.generate(PROMPTS[0], SamplingParams(None, ignore_eos=True)).finish_reason != "cancelled":
                pass
            faults.check(time.monotonic() - started < LIMIT + 0.1, f"cancel {n}: late")
            timer.join()
        others.end()
        faults.check(others.wrong == 0, f"cancel: {others.wrong} other texts are wrong")
        faults.check(llm.generate(PROMPTS[0], PARAMS).token_ids == expected[0], "cancel: the next text is wrong")


def close(model: Model, company: int, expected: list[list[int]], moments: int, faults: Faults) -> None:
    for n in range(moments):
        llm = LLM(model, **OPTIONS)
        others = Company(llm, company, expected)
        stream = llm.stream(PROMPTS[0], SamplingParams(None, ignore_eos=True))
        for _ in range(random.randrange(20)):
            next(stream)
        time.sleep(random.uniform(0, 0.02))
        started = time.monotonic()
        llm.close()
        faults.check(time.monotonic() - started < LIMIT, f"close {n}: late")
        with suppress(ClosedError):
            list(stream)
            faults.append(f"close {n}: the stream goes on")
        others.end()
        faults.check(others.wrong == 0, f"close {n}: other texts are wrong")


def delete(model: Model, company: int, expected: list[list[int]], moments: int, faults: Faults) -> None:
    with LLM(model, **OPTIONS) as other_llm:
        others = Company(other_llm, company, expected)
        for n in range(moments):
            llm = LLM(model, **OPTIONS)
            streams = [llm.stream(prompt, SamplingParams(None, ignore_eos=True)) for prompt in PROMPTS[: n % 9]]
            time.sleep(random.uniform(0, 0.02))
            started = time.monotonic()
            del streams, llm
            faults.check(time.monotonic() - started < LIMIT, f"del {n}: late")
        others.end()
        faults.check(others.wrong == 0, "del: other texts are wrong")


def fork(model: Model, company: int, expected: list[list[int]], moments: int, faults: Faults) -> None:
    with LLM(model, **OPTIONS) as llm:
        others = Company(llm, company, expected)
        for n in range(moments):
            time.sleep(random.uniform(0, 0.02))
            child = os.fork()
            if not child:
                signal.alarm(CHILD_LIMIT)
                try:
                    os._exit(0 if llm.generate(PROMPTS[0], PARAMS).token_ids == expected[0] else 1)
                except ClosedError:
                    os._exit(0 if company else 2)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            faults.check(code == 0, f"fork {n}: the child ended with {code}")
        others.end()
        faults.check(others.wrong == 0, "fork: other texts are wrong")


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


def exits(model: Model, company: int, expected: list[list[int]], moments: int, faults: Faults) -> None:
    for n in range(moments):
        command = [sys.executable, "-I", "-c", EXITS, str(company), str(random.uniform(0, 0.05))]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        late = time.time() - float(ended.stdout or 0)
        faults.check(ended.returncode == 0 and not ended.stderr, f"exit {n}: {ended.returncode} {ended.stderr[-300:]}")
        faults.check(late < LIMIT, f"exit {n}: {late:.1f} s")


KINDS: dict[str, Callable[[Model, int, list[list[int]], int, Faults], None]] = {
    "ctrl-c": ctrl_c,
    "cancel": cancel,
    "close": close,
    "del": delete,
    "fork": fork,
    "exit": exits,
}


def resident() -> int:
    """Return the memory of this process in MiB."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def main(
    moments: Annotated[int, typer.Option(help="Moments of each kind, alone and in company.")] = 200,
    only: Annotated[str, typer.Option(help="Kinds, by commas.")] = ",".join(KINDS),
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
) -> None:
    """Try each kind of end at random moments, and print the faults."""
    random.seed(seed)
    faults = Faults()
    with Model() as model:
        with LLM(model, **OPTIONS) as llm:
            expected = [llm.generate(prompt, PARAMS).token_ids for prompt in PROMPTS]
        for name in only.split(","):
            for company in (0, 7):
                started, n_faults = time.monotonic(), len(faults)
                KINDS[name](model, company, expected, moments // 2, faults)
                before = resident()
                KINDS[name](model, company, expected, moments - moments // 2, faults)
                grown = resident() - before
                faults.check(grown < ARENAS, f"{name}: {grown} MiB more")
                seconds = time.monotonic() - started
                told = f"{len(faults) - n_faults} faults, {grown:+} MiB, {seconds:.0f} s"
                print(f"{name} beside {company}: {moments} moments, {told}", flush=True)
    print("\n".join(faults))
    raise typer.Exit(bool(faults))


if __name__ == "__main__":
    typer.run(main)
