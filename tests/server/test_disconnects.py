"""Claims about the place of a client that leaves: nothing more is launched for it than what was running already."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.servers import LONG, Server
from http_wire import Answer, Connection

from pymtp import LLM

MakeServer = Callable[..., Server]
UBATCH = 64
PATH = "/v1/completions"


class Launches:
    """Those of a context, by their tokens. One of them lasts until the server knows that its client has left."""

    def __init__(self, llm: LLM, name: str, nth: int) -> None:
        """name: of the method of Context whose nth call lasts."""
        self.seen: list[tuple[str, int]] = []
        self.lasts = threading.Event()
        self._cancelled = threading.Event()
        self._llm, self._at = llm, (name, nth)
        self._calls = {each: getattr(llm.context, each) for each in ("prefill_batch", "verify_chains")}
        self._cancel = llm.engine.cancel

    def launch(self, name: str, given: dict[int, list[int]], *more: Any) -> Any:
        self.seen.append((name, sum(map(len, given.values()))))
        if (name, [each for each, _ in self.seen].count(name)) == self._at:
            self.lasts.set()
            assert self._cancelled.wait(LONG)
        return self._calls[name](given, *more)

    def cancel(self, request: Any) -> None:
        self._cancel(request)
        if self.lasts.is_set():
            self._cancelled.set()

    @property
    def after(self) -> list[tuple[str, int]]:
        """What was launched after the one that lasted."""
        name, nth = self._at
        places = [i for i, (each, _) in enumerate(self.seen) if each == name]
        return self.seen[places[nth - 1] + 1 :]


@contextmanager
def watched(llm: LLM, name: str, nth: int) -> Iterator[Launches]:
    launches = Launches(llm, name, nth)
    context: Any = llm.context
    engine: Any = llm.engine
    for each in launches._calls:
        setattr(context, each, lambda given, *more, each=each: launches.launch(each, given, *more))
    engine.cancel = launches.cancel
    try:
        yield launches
    finally:
        for each in launches._calls:
            delattr(context, each)
        del engine.cancel


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("name", "nth"), [("prefill_batch", 2), ("verify_chains", 3)], ids=["prompt", "text"])
@pytest.mark.parametrize("rudely", [False, True], ids=["closed", "reset"])
def test_the_place_of_a_client_that_leaves_is_free_within_a_ubatch(
    new_server: MakeServer, name: str, nth: int, stream: bool, rudely: bool
) -> None:
    llm = {"n_seq_max": 1, "n_batch": UBATCH, "n_ubatch": UBATCH, "cache_prompt": False, "draft_tokens": 2}
    server = new_server(llm=llm).ready()
    long = {"model": "m", "prompt": [1] * (20 * UBATCH), "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    short = {"model": "m", "prompt": [2] * 7, "max_tokens": 1}

    async def play(launches: Launches) -> Answer:
        leaving, other = await asyncio.gather(*(Connection("127.0.0.1", server.port).open() for _ in range(2)))
        await leaving.send("POST", PATH, json.dumps(long).encode())
        await asyncio.to_thread(launches.lasts.wait, LONG)
        waiting = asyncio.create_task(other.ask("POST", PATH, json.dumps(short).encode()))
        while server.n_open < 2:
            await asyncio.sleep(0.001)
        leaving.leave(rudely=rudely)
        answer = await asyncio.wait_for(waiting, LONG)
        other.leave()
        return answer

    with watched(server.llm, name, nth) as launches:
        answer = asyncio.run(play(launches))
    assert answer.status == 200
    assert launches.after == [("prefill_batch", 7)]  # the other one's prompt, at once
    assert server.free()
