"""Tests of client disconnects: the call that runs in the context is the last one for the request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.http_wire import Answer, Connection
from helpers.servers import LONG, Server

from pymtp import LLM

MakeServer = Callable[..., Server]
UBATCH = 64
PATH = "/v1/completions"


class DecodeRecorder:
    """A recorder of the decode calls of a context. One call blocks until the server has cancelled the request."""

    def __init__(self, llm: LLM, name: str, nth: int) -> None:
        """name, nth: the nth call of the method `name` of the context is the call that blocks."""
        self.calls: list[tuple[str, int]] = []
        self.blocks = threading.Event()
        self._cancelled = threading.Event()
        self._llm, self._blocking_call = llm, (name, nth)
        self._calls = {method: getattr(llm.context, method) for method in ("prefill_batch", "verify_chains")}
        self._cancel = llm._engine.cancel

    def decode(self, name: str, tokens: dict[int, list[int]], *more: Any) -> Any:
        self.calls.append((name, sum(map(len, tokens.values()))))
        if (name, [method for method, _ in self.calls].count(name)) == self._blocking_call:
            self.blocks.set()
            assert self._cancelled.wait(LONG)
        return self._calls[name](tokens, *more)

    def cancel(self, request: Any) -> None:
        self._cancel(request)
        if self.blocks.is_set():
            self._cancelled.set()

    @property
    def after(self) -> list[tuple[str, int]]:
        """Return the calls after the call that blocked."""
        name, nth = self._blocking_call
        indices = [i for i, (method, _) in enumerate(self.calls) if method == name]
        return self.calls[indices[nth - 1] + 1 :]


@contextmanager
def recorded_decodes(llm: LLM, name: str, nth: int) -> Iterator[DecodeRecorder]:
    decodes = DecodeRecorder(llm, name, nth)
    context: Any = llm.context
    engine: Any = llm._engine
    for method in decodes._calls:
        setattr(context, method, lambda tokens, *more, method=method: decodes.decode(method, tokens, *more))
    engine.cancel = decodes.cancel
    try:
        yield decodes
    finally:
        for method in decodes._calls:
            delattr(context, method)
        del engine.cancel


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("name", "nth"), [("prefill_batch", 2), ("verify_chains", 3)], ids=["prompt", "text"])
@pytest.mark.parametrize("rudely", [False, True], ids=["closed", "reset"])
def test_client_disconnect_frees_the_slot_within_a_ubatch(
    new_server: MakeServer, name: str, nth: int, stream: bool, rudely: bool
) -> None:
    llm = {"n_seq_max": 1, "n_batch": UBATCH, "n_ubatch": UBATCH, "cache_prompt": False, "draft_tokens": 2}
    server = new_server(llm=llm).ready()
    long = {"model": "m", "prompt": [1] * (20 * UBATCH), "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    short = {"model": "m", "prompt": [2] * 7, "max_tokens": 1}

    async def play(decodes: DecodeRecorder) -> Answer:
        leaving, other = await asyncio.gather(*(Connection("127.0.0.1", server.port).open() for _ in range(2)))
        await leaving.send("POST", PATH, json.dumps(long).encode())
        await asyncio.to_thread(decodes.blocks.wait, LONG)
        waiting = asyncio.create_task(other.ask("POST", PATH, json.dumps(short).encode()))
        while server.n_unfinished < 2:
            await asyncio.sleep(0.001)
        leaving.leave(rudely=rudely)
        answer = await asyncio.wait_for(waiting, LONG)
        other.leave()
        return answer

    with recorded_decodes(server.llm, name, nth) as decodes:
        answer = asyncio.run(play(decodes))
    assert answer.status == 200
    assert decodes.after == [("prefill_batch", 7)]  # the next call is already the prompt of the other request
    assert server.free()
