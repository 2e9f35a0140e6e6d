"""Tests of seeds: all APIs take the same ones, and no digit is lost on the way."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp.server.service import Service

CHAT = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/messages": {"messages": CHAT, "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 1},
    "/api/chat": {"messages": CHAT, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "a", "stream": False, "options": {"num_predict": 1}},
}
SEEDS = {
    "7": 7,
    "7.0": 7,
    "9007199254740993": 2**53 + 1,
    "18446744073709551615": 2**64 - 1,
    "18446744073709551617": 1,
    "-2": 2**64 - 2,
    "-1": None,
    "null": None,
}


@pytest.mark.parametrize("path", BODIES)
def test_seeds_are_taken_alike_and_exactly(server: Server, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int | None] = []
    run = Service.run_request

    def note(service: Service, request: Any, *more: Any) -> Any:
        taken.append(request.params.seed)
        return run(service, request, *more)

    monkeypatch.setattr(Service, "run_request", note)

    def ask(seed: str) -> httpx.Response:
        body = json.loads(json.dumps(BODIES[path]))
        body.get("options", body)["seed"] = "SEED"
        text = json.dumps(body).replace('"SEED"', seed)
        headers = {"content-type": "application/json"}
        return httpx.post(f"{server.url}{path}", content=text, headers=headers, timeout=LONG)

    for written, seed in SEEDS.items():
        assert ask(written).status_code == 200, written
        assert taken.pop() == seed, written
    for wrong in ("9007199254740994.0", "1e30", "1.5", "true", '"7"'):
        refused = ask(wrong)
        assert (refused.status_code, "seed" in refused.text) == (400, True), wrong
    assert taken == []


def test_random_seeds_are_told_so_that_javascript_reads_them(server: Server) -> None:
    asked = {"prompt": "a", "n_predict": 1, "temperature": 0.8}
    answers = [httpx.post(f"{server.url}/completion", json=asked, timeout=LONG).json() for _ in range(8)]
    assert all(answer["generation_settings"]["seed"] < 2**53 for answer in answers)
