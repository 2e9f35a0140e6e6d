"""Claims about the Responses API, by OpenAI's own client against a server that listens."""

from __future__ import annotations

import pytest
from helpers.servers import Server
from openai import OpenAI

from pymtp import SamplingParams

QUESTION = "def fibonacci(n):"
GREEDY = {"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def expected(server: Server, *before: dict[str, str], **params: object) -> str:
    messages = [*before, {"role": "user", "content": QUESTION}]
    return server.llm.chat(messages, SamplingParams(**({"max_tokens": 24} | params))).text  # type: ignore[arg-type]


def test_a_response_has_the_text_of_the_llm(server: Server, client: OpenAI) -> None:
    response = client.responses.create(**GREEDY)
    assert response.output_text == expected(server)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_stream_ends_with_the_response(client: OpenAI) -> None:
    whole = client.responses.create(**GREEDY)
    events = list(client.responses.create(**GREEDY, stream=True))
    assert events[-1].response.output_text == whole.output_text
