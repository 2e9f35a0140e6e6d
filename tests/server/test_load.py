"""Tests of a server with more clients than slots: short runs of tools/checks/http_load.py."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import http_load
import httpx
import pytest
from conftest import make_llm
from helpers.servers import LONG, Server, wait_until
from http_load import Compared, Load, Report, compare, left_behind
from http_requests import PATHS, HttpRequestGenerator, Limits, find_problem

from pymtp import LLM
from pymtp.server.service import Service

MakeServer = Callable[..., Server]
LIMITS = Limits("a key", 512, 2**18)
ROOM = {"n_ctx": 512, "n_seq_max": 3, "cache_bytes": 2**22}


@pytest.fixture
def busy(new_server: MakeServer) -> Server:
    """Return a server with three slots and a queue of eight."""
    return new_server(llm=ROOM, max_queue=8, max_body_bytes=LIMITS.max_body, api_keys=(LIMITS.key,)).ready()


def played(server: Server, requests: int, clients: int, victims: int = 1, **more: int) -> Report:
    load = Load(server.url, LIMITS, requests=requests, **more)
    return asyncio.run(load.play(clients, victims))


def test_each_request_under_load_ends_and_leaves_nothing_behind(busy: Server) -> None:
    report = played(busy, 60, 24)
    assert report.wrong == []
    assert sum(report.ends.values()) == 60 + 8
    assert {"answered", "left", "reset at once", "told to come later"} <= set(report.ends)
    wait_until(busy.free)
    assert asyncio.run(left_behind(busy.url, LIMITS)) == ""


def test_load_check_detects_a_leaked_slot(busy: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_load, "FREE", 0.2)

    async def never_ends() -> str:
        async with await busy.app.state.service.llm._open("import ", max_unread=1):
            return await left_behind(busy.url, LIMITS)

    assert "still there" in asyncio.run(never_ends())


def test_load_check_detects_missing_limits(open_server: Server) -> None:
    generator = HttpRequestGenerator(random.Random(0), LIMITS, ["chat", "completions"], ["import os"])
    asked = {one.kind: one for one in (generator.refused() for _ in range(200))}
    with httpx.Client(base_url=open_server.url, timeout=LONG) as client:
        found = {kind for kind, one in asked.items() if find_problem(one, client.request(**one.sent))}
    assert len(asked) == 6
    assert found == {"body too large", "wrong key"}  # any server refuses the other kinds


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with make_llm(n_ctx=512, n_seq_max=1, draft_tokens=0, cache_prompt=False) as llm:
        yield llm


@pytest.fixture
def open_server(new_server: MakeServer) -> Server:
    return new_server(llm=ROOM).ready()


def same_text(server: Server, alone: LLM, n: int) -> tuple[list[str], dict[str, Compared]]:
    by_api = defaultdict[str, Compared](Compared)
    report = played(server, n, 12, victims=0, most=60)
    return compare(alone, report.answered, by_api), by_api


def test_texts_over_http_under_load_equal_those_of_the_llm(open_server: Server, alone: LLM) -> None:
    differences, by_api = same_text(open_server, alone, 40)
    assert differences == []
    assert set(by_api) == set(PATHS)
    assert sum(one.tokens for one in by_api.values()) > 400
    assert sum(one.left for one in by_api.values()) < sum(one.requests for one in by_api.values()) / 3


def test_same_text_check_detects_another_seed(open_server: Server, alone: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Any = Service.run_request

    def other(service: Service, ask: Any, *admission: Any) -> Any:
        params = replace(ask.params, seed=None if ask.params.seed is None else ask.params.seed ^ 1)
        return answer(service, replace(ask, params=params), *admission)

    monkeypatch.setattr(Service, "run_request", other)
    differences, by_api = same_text(open_server, alone, 20)
    assert sum(one.differ for one in by_api.values()) > 10
    assert "by the LLM" in differences[0]
