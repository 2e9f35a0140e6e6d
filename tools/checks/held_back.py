"""Checks that no API key learns what another sent, and that no client holds others back.

    pip install .[serve] typer
    python tools/checks/held_back.py

`pymtp serve` runs the shipped model for several keys:

- guesses: key A sends a secret prompt; then key B guesses it, half of the times rightly. B looks at cached_tokens, at
  the time until the answer and at the answer, errors included. The times of right and wrong guesses are compared by
  the test of Mann and Whitney: without a leak, p is uniform. The same by A itself, as a proof that the cache works.
- held up: while key A sends five chats of 15 MB, holds 100 bodies of 4 MB open, or sends 1,000 prompts with n = 8, key
  B sends chats of one token. At the end, the resident memory of the worker is compared with that before.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import NormalDist, median
from typing import Annotated, Any

import httpx
import typer
from common import SCREEN, Output, Seed, run_command, show_table, write_json
from helpers.served import Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
A, B = ("key-of-a", "key-of-b")
SECONDS = 1.0  # longest time of a chat of one token
GROWTH = 1.05  # largest memory afterwards relative to that before
BACK_SECONDS = 15  # time until memory must be back: longer than a body waits for room
WORDS = ("import", "return", "def", "class", "self", "value", "key", "with", "open", "list", "dict", "for", "in", "not")


def post(url: str, key: str, path: str, body: dict[str, Any], **keywords: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(url + path, json=body, headers=headers, timeout=600, **keywords)


def words(random_: random.Random, n: int) -> str:
    return " ".join(random_.choices(WORDS, k=n))


def guess(url: str, who: str, n: int, seed: int) -> dict[str, Any]:
    """Let `who` guess secrets of A, and return what the guesses tell.

    A guess takes two requests: the first makes a cache keep the state where its prompt leaves the secret.
    """
    drawn = random.Random(seed)
    cached: dict[bool, Counter[tuple[int, ...]]] = {True: Counter(), False: Counter()}
    times: dict[bool, list[list[float]]] = {True: [[], []], False: [[], []]}
    errors: dict[bool, set[str]] = {True: set(), False: set()}
    with httpx.Client(base_url=url, timeout=600) as client:
        headers = {key: {"Authorization": f"Bearer {key}"} for key in (A, who)}
        for i in range(n):
            secret, other = f"{i} {words(drawn, 80)}", f"{i} {words(drawn, 80)}"
            client.post(TEXT, json={"prompt": secret, "max_tokens": 1}, headers=headers[A]).raise_for_status()
            right = i % 2 == 0
            found = []
            for k, tail in enumerate((" x y z", " 1 2 3")):
                body = {"prompt": (secret if right else other) + tail, "max_tokens": 1}
                begun = time.perf_counter()
                answer = client.post(TEXT, json=body, headers=headers[who])
                times[right][k].append(time.perf_counter() - begun)
                found.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            cached[right][tuple(n - n % 8 for n in found)] += 1  # prompts have different numbers of tokens
            wrong_field = {"prompt": secret if right else other, "thinking_budget": 10**6, "max_tokens": 1}
            errors[right].add(client.post(TEXT, json=wrong_field, headers=headers[who]).text)
    p = [same_distribution(times[True][k], times[False][k]) for k in (0, 1)]
    return {
        "guesses": n,
        "cached tokens, right": dict(cached[True].most_common(2)),
        "wrong": dict(cached[False].most_common(2)),
        "ms, right": " ".join(f"{1000 * median(one):.2f}" for one in times[True]),
        "ms, wrong": " ".join(f"{1000 * median(one):.2f}" for one in times[False]),
        "p": " ".join(f"{one:.3f}" for one in p),
        "told": cached[True].keys() != cached[False].keys() or errors[True] != errors[False] or min(p) < 0.005,
    }


def same_distribution(one: list[float], other: list[float]) -> float:
    """Return the probability of such a difference in ranks, or a larger one, if both have the same distribution."""
    n, m = len(one), len(other)
    ranks = {value: i for i, value in enumerate(sorted([*one, *other]), 1)}  # times are never equal
    u = sum(ranks[value] for value in one) - n * (n + 1) / 2
    z = (u - n * m / 2) / (n * m * (n + m + 1) / 12) ** 0.5
    return 2 * NormalDist().cdf(-abs(z))


def long_chats(url: str, stop: threading.Event) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "import os " * 1_500_000}], "max_tokens": 1}
    with ThreadPoolExecutor(5) as clients:
        for answer in [clients.submit(post, url, A, CHAT, body) for _ in range(5)]:
            with suppress(httpx.HTTPError):
                answer.result()


def open_bodies(url: str, stop: threading.Event) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {A}\r\nContent-Type: application/json\r\n"
    data = (head + f"Content-Length: {4_000_001}\r\n\r\n").encode() + b" " * 4_000_000
    clients = [socket.create_connection((host, int(port))) for _ in range(100)]

    def send(client: socket.socket) -> None:
        with suppress(OSError):
            client.sendall(data)

    for client in clients:
        threading.Thread(target=send, args=(client,), daemon=True).start()
    stop.wait(15)
    for client in clients:
        client.close()


def many_prompts(url: str, stop: threading.Event) -> None:
    body = {"prompt": [f"import os{i}" for i in range(1000)], "n": 8, "max_tokens": 16, "temperature": 1}
    with suppress(httpx.HTTPError):  # given up at the end
        post(url, A, TEXT, body | {"timeout": 20})


def held_up(served: Served, attack: Callable[[str, threading.Event], None]) -> dict[str, Any]:
    """Send chats of one token by B during an attack of A, and return their times."""
    url, stop = served.url, threading.Event()
    chat = {"model": "m", "messages": [{"role": "user", "content": "import"}], "max_tokens": 1}
    post(url, B, CHAT, chat).raise_for_status()
    before, seconds, refused, most = resident_of(served), [], 0, 0
    thread = threading.Thread(target=attack, args=(url, stop))
    thread.start()
    end = time.monotonic() + 15
    while thread.is_alive() and time.monotonic() < end:
        begun = time.perf_counter()
        answer = post(url, B, CHAT, chat)
        seconds.append(time.perf_counter() - begun)
        refused += not answer.is_success
        most = max(most, resident_of(served))
        time.sleep(0.05)
    stop.set()
    thread.join()
    end = time.monotonic() + BACK_SECONDS
    while (after := resident_of(served)) > GROWTH * before and time.monotonic() < end:
        time.sleep(0.5)
    return {
        "chats": len(seconds),
        "refused": refused,
        "median s": f"{median(seconds):.3f}",
        "longest s": round(max(seconds), 3),
        "MB before": before // 10**6,
        "most": most // 10**6,
        "after": after // 10**6,
        "ratio": round(after / before, 3),
    }


def resident_of(served: Served) -> int:
    """Return the resident memory of the worker, without that of the prefix cache, which has a limit of its own."""
    status = Path(f"/proc/{served.worker()}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0]) - cached_bytes(served)


def cached_bytes(served: Served) -> int:
    metrics = served.get("/metrics", headers={"Authorization": f"Bearer {B}"}).text
    (line,) = (line for line in metrics.splitlines() if line.startswith("pymtp:prefix_cache_bytes{"))
    return int(float(line.split()[-1]))


def warm_up(served: Served) -> None:
    """Let all sequences and threads take the memory that they keep."""
    post(served.url, A, TEXT, {"prompt": [f"import os{i}" for i in range(50)], "n": 8, "max_tokens": 16})
    for _ in range(3):
        long_chats(served.url, threading.Event())
    time.sleep(2)  # until freed memory is given back


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    keys = [word for key in (A, B) for word in ("--api-key", key)]
    served = Served(*keys, *options).ready()
    try:
        yield served
    finally:
        served.close()


def main(
    guesses: Annotated[int, typer.Option(help="Guesses of key B; a tenth of them by key A itself.")] = 1000,
    seed: Seed = 0,
    output: Output = None,
) -> None:
    """Run both checks. Exits with 1 if a guess told something, a chat took too long, or memory stayed."""
    with serving("-s", "4") as served:
        told = {
            "by another key": guess(served.url, B, guesses, seed),
            "by itself": guess(served.url, A, guesses // 10, 1),
        }
    show_table(told, "guesses")
    held = {}
    for name, attack in {"5 chats of 15 MB": long_chats, "100 bodies": open_bodies, "1,000 x 8": many_prompts}.items():
        with serving("-s", "4") as served:
            warm_up(served)
            held[name] = held_up(served, attack)
    show_table(held, "held up")
    write_json(output, "held_back", guesses=told, held_up=held)
    one = told["by another key"]
    failed = [one["told"]]
    failed += [row["longest s"] > SECONDS or row["refused"] > 0 or row["ratio"] > GROWTH for row in held.values()]
    SCREEN.print(json.dumps({"failed": sum(failed)}))
    raise typer.Exit(any(failed))


if __name__ == "__main__":
    run_command(main)
