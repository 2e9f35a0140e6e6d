"""Kills the worker of `pymtp serve` repeatedly while clients stream, and checks their errors and the restart.

    python tools/checks/serve_deaths.py --deaths 20 --clients 32

After each kill, it measures the seconds until the last client gets its error and until a request is answered again, and
compares the text with the first one. At the end, open files and memory of the supervisor must not have grown, and its
processes must be gone after SIGTERM. Exits with status 1 otherwise.
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

MAX_SECONDS = 2.0  # seconds until a client gets its error
GROWTH = 4.0  # MiB that the supervisor may grow


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def die(served: Served, n: int, clients: int) -> tuple[float, int]:
    """Kill the n-th worker; return the seconds until the last client got its error, and the clients without one."""
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
    always_healthy = "from pymtp.server.process import supervisor; supervisor.HEALTHY_SECONDS = 0.0"
    served = Served("-s", "4", before=always_healthy).ready()
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
        wrong += last > MAX_SECONDS or silent > 0 or not same
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
