"""Kills the worker of `pymtp serve` with -9 while clients stream, again and again: does each hear of it, is it back?

    python tools/checks/serve_deaths.py --deaths 20 --clients 32

After each death: seconds until the last client has its error, seconds until a request is answered again, and whether
its text is that of the first. At the end: open files and memory of the supervisor, which must not grow, and whether its
processes are gone after SIGTERM. Ends with 1 where something of that is not so.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.served import ENDLESS, Served, gone
from helpers.servers import LONG, wait_until

MOST = 2.0  # seconds until a client has its error
GROWTH = 4.0  # MiB of the supervisor


def resident(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def die(served: Served, n: int, clients: int) -> tuple[float, int]:
    """The n-th worker dies: seconds until the last client had its error, and clients that had none."""
    ends: list[float] = []

    def stream() -> None:
        try:
            httpx.post(f"{served.url}/v1/completions", json=ENDLESS, timeout=LONG)
        except httpx.TransportError as error:
            if not isinstance(error, httpx.TimeoutException):
                ends.append(time.perf_counter())

    threads = [threading.Thread(target=stream) for _ in range(clients)]
    for thread in threads:
        thread.start()
    wait_until(lambda: served.metric("num_requests_running") + served.metric("num_requests_waiting") == clients)
    time.sleep(random.uniform(0, 0.5))
    killed = time.perf_counter()
    os.kill(served.worker(n), signal.SIGKILL)
    for thread in threads:
        thread.join()
    return max(ends, default=killed) - killed, clients - len(ends)


def main(
    deaths: Annotated[int, typer.Option(min=1)] = 20,
    clients: Annotated[int, typer.Option(min=1)] = 32,
) -> None:
    served = Served("-s", "4", before="from pymtp.server.process import supervisor; supervisor.HEALTHY_SECONDS = 0.0").ready()
    text = served.ask(temperature=0, max_tokens=50).json()["choices"][0]["text"]
    wrong = 0
    before: tuple[int, float] | None = None
    for n in range(1, deaths + 1):
        last, silent = die(served, n, clients)
        died = time.perf_counter()
        served.worker(n + 1)
        same = served.ask(temperature=0, max_tokens=50).json()["choices"][0]["text"] == text
        back = time.perf_counter() - died
        before = before or (open_files(served.process.pid), resident(served.process.pid))
        wrong += last > MOST or silent > 0 or not same
        print(f"{n}: last error after {last:.2f} s, {silent} without one, back after {back:.2f} s, same text: {same}")
    assert before is not None
    files, size = open_files(served.process.pid), resident(served.process.pid)
    print(f"supervisor: open files {before[0]} → {files}, resident {before[1]:.1f} → {size:.1f} MiB")
    worker = served.worker(deaths + 1)
    code = served.end(signal.SIGTERM)
    wrong += files > before[0] or size > before[1] + GROWTH or code != 0 or not gone(worker)
    served.close()
    raise typer.Exit(min(wrong, 1))


if __name__ == "__main__":
    typer.run(main)
