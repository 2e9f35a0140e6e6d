"""The number of tokens that the prompt of a chat has, for the APIs that tell it without generating."""

from __future__ import annotations

from typing import Literal

from starlette.types import Receive
from typing_extensions import TypedDict

from pymtp.chat.prompt import ChatPrompt
from pymtp.openai.generate_request import GenerateRequest, prepare_request
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.service import Service


class InputTokens(TypedDict):
    """The answer of OpenAI's API."""

    object: Literal["response.input_tokens"]
    input_tokens: int


async def count_prompt_tokens(receive: Receive, service: Service, request: GenerateRequest) -> int:
    """Return the number of prompt tokens of a chat, those of its images included.

    receive: tells whether the client disconnects, which ends the call.

    Raises the errors of `prepare_request`, of `Service.read_images` and of `run_until_disconnect`.
    """

    async def count() -> int:
        async with service.read_images(service.apply_thinking_budget(request)) as whole:
            prompt = (await service.prepare(lambda: prepare_request(service.llm.llm, whole))).prompt
        assert isinstance(prompt, ChatPrompt)
        return len(prompt.tokens)

    return await run_until_disconnect(receive, count())
