"""Claims about Anthropic's own client against a server that listens."""

from __future__ import annotations

import pytest
from anthropic import Anthropic
from anthropic.types import Message
from helpers.servers import Server

from pymtp import SamplingParams

MESSAGES = [{"role": "user", "content": "def fibonacci(n):"}]
GREEDY = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "extra_body": {"temperature": 0}}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a town.",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "enum": ["Bonn", "Kiel"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["town"],
    },
}


@pytest.fixture
def client(server: Server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key=server.key, max_retries=0)


def expected(server: Server, **params: object) -> str:
    return server.llm.chat(MESSAGES, SamplingParams(**({"max_tokens": 24} | params))).text  # type: ignore[arg-type]


def dumped(message: Message) -> list[dict[str, object]]:
    return [block.model_dump(exclude={"parsed_output"}) for block in message.content]


def test_a_message_has_the_text_of_the_llm(server: Server, client: Anthropic) -> None:
    message = client.messages.create(**GREEDY)
    assert [block.text for block in message.content] == [expected(server)]
    assert (message.role, message.model, message.stop_reason) == ("assistant", "demo", "max_tokens")


def test_a_stream_joins_to_the_message(client: Anthropic) -> None:
    whole = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        joined = stream.get_final_message()
    assert dumped(joined) == dumped(whole)
    assert (joined.stop_reason, joined.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
