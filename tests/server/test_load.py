"""Claims about a server with more clients than places: tools/checks/http_load.py and http_same_text.py in short."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import http_load
import http_same_text
import pytest
from conftest import make_llm
from helpers.servers import Server, wait_until
from http_asks import PATHS, Asked, Asks, Limits, problem
from http_load import Load, Report, apis_of, left_behind
from http_same_text import Wish, ask_all, compare, make_wishes
from http_wire import Connection
from makers.demo_corpus import held_out_prompts

from pymtp import LLM
from pymtp.server.service import Service

MakeServer = Callable[..., Server]
LIMITS = Limits("a key", 512, 2**18)
ROOM = {"n_ctx": 512, "n_seq_max": 3, "cache_bytes": 2**22}


@pytest.fixture
def busy(new_server: MakeServer) -> Server:
    """Three places, and eight more texts that may wait."""
    return new_server(llm=ROOM, max_queue=8, max_body_bytes=LIMITS.max_body, api_keys=(LIMITS.key,)).ready()


def played(server: Server, requests: int, clients: int) -> Report:
    load = Load(("127.0.0.1", server.port), LIMITS, list(PATHS), requests=requests)
    return asyncio.run(load.play(clients, victims=1))


def test_every_request_ends_with_its_answer_or_its_error_and_nothing_stays_behind(busy: Server) -> None:
    report = played(busy, 200, 24)
    assert report.wrong == []
    assert sum(report.ends.values()) == 200 + 8
    assert {"answered", "left", "killed", "told to come later"} <= set(report.ends)
    wait_until(busy.free)
    assert asyncio.run(left_behind(("127.0.0.1", busy.port), LIMITS)) == ""


def test_the_check_knows_what_it_asks_of(busy: Server) -> None:
    assert asyncio.run(apis_of(("127.0.0.1", busy.port))) == list(PATHS)


def test_a_place_that_is_not_given_back_is_seen(busy: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_load, "FREE", 0.2)

    async def never_ends() -> str:
        async with await busy.app.state.service.llm.open("import ", ahead=1):
            return await left_behind(("127.0.0.1", busy.port), LIMITS)

    assert "still there" in asyncio.run(never_ends())


def test_answers_of_a_server_without_limits_are_seen(open_server: Server) -> None:
    asks = Asks(random.Random(0), LIMITS, ["chat", "completions"], ["import os"])
    asked = {one.kind: one for one in (asks.refused() for _ in range(200))}

    async def wrong(one: Asked) -> str:
        to = await Connection("127.0.0.1", open_server.port).open()
        try:
            return problem(one, await to.ask(one.method, one.path, one.body, one.headers))
        finally:
            to.leave()

    found = {kind for kind, one in asked.items() if asyncio.run(wrong(one))}
    assert len(asked) == 6
    assert found == {"body too large", "wrong key"}  # the rest is refused by any server


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with make_llm(n_ctx=512, n_seq_max=1, draft_tokens=0, cache_prompt=False) as llm:
        yield llm


@pytest.fixture
def open_server(new_server: MakeServer) -> Server:
    return new_server(llm=ROOM).ready()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_same_text, "LONGEST", 60)


def same_text(server: Server, alone: LLM, n: int) -> http_same_text.Found:
    wishes: list[Wish] = list(islice(make_wishes(0, held_out_prompts(6, 1000), list(PATHS)), n))
    gots = asyncio.run(ask_all(("127.0.0.1", server.port), wishes, 12))
    return compare(alone, wishes, gots)


def test_texts_over_http_are_those_of_the_llm_under_any_load(open_server: Server, alone: LLM) -> None:
    found = same_text(open_server, alone, 40)
    assert found.differences == []
    assert (found.requests, found.differing) == (40, 0)
    assert set(found.by_api) == set(PATHS)
    assert found.tokens > 1000
    assert found.left < 20


def test_a_text_of_another_seed_is_seen(open_server: Server, alone: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Any = Service.answer

    def other(service: Service, ask: Any) -> Any:
        seed = ask.params.seed
        return answer(service, replace(ask, params=replace(ask.params, seed=None if seed is None else seed ^ 1)))

    monkeypatch.setattr(Service, "answer", other)
    assert same_text(open_server, alone, 12).differing > 50
