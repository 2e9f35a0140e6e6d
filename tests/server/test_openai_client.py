"""Claims about OpenAI's own client against a server that listens."""

from __future__ import annotations

import pytest
from helpers.servers import Server
from openai import OpenAI

from pymtp import SamplingParams

MESSAGES = [{"role": "user", "content": "def fibonacci(n):"}]
GREEDY = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def expected(server: Server, **params: object) -> str:
    return server.llm.chat(MESSAGES, SamplingParams(**({"max_tokens": 24} | params))).text  # type: ignore[arg-type]


def test_a_chat_has_the_text_of_the_llm(server: Server, client: OpenAI) -> None:
    done = client.chat.completions.create(**GREEDY)
    assert done.choices[0].message.content == expected(server)


def test_a_stream_joins_to_the_same_text(server: Server, client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(**GREEDY, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected(server)
