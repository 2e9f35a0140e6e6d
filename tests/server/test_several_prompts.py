"""Claims about several prompts in one request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

from pymtp.asks import Ask
from pymtp.server import completions


def test_what_prompts_share_is_read_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def counted(*given: Any) -> Ask:
        reads.append(given)
        return read(*given)

    read = completions.read_ask
    monkeypatch.setattr(completions, "read_ask", counted)
    asked = {"prompt": ["import ", "def main", "class A"], "max_tokens": 4, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=LONG).json()
    alone = [
        httpx.post(f"{server.url}/v1/completions", json=asked | {"prompt": each}).json() for each in asked["prompt"]
    ]
    assert [choice["text"] for choice in answer["choices"]] == [each["choices"][0]["text"] for each in alone]
    assert len(reads) == 1 + len(alone)
