"""The routes of /apply-template, /slots and of the count of a chat's tokens, in the form of llama.cpp's server."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from typing_extensions import TypedDict

from pymtp.chat import Chat, template_messages
from pymtp.chat.images import VISION_END, VISION_START
from pymtp.engine.prepare import apply_thinking_budget
from pymtp.llm import LLM
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.prompt_texts import MEDIA_MARKER
from pymtp.openai.request_body import CHAT, read_generate_request
from pymtp.server.dependencies import ServiceDep
from pymtp.server.errors import NotEnabledError
from pymtp.server.http.json_response import AsciiJSONResponse
from pymtp.server.http.response_schema import error_responses, ignored_fields_header
from pymtp.server.http.sse import run_until_disconnect
from pymtp.server.openai.types import ChatRequest
from pymtp.server.token_count import InputTokens, count_prompt_tokens

router = APIRouter(tags=["llama.cpp"])


class TemplateRequest(ChatRequest):
    """A chat whose prompt is returned, in the form of /v1/chat/completions."""

    model: str | None = None
    add_generation_prompt: bool | None = Field(None, description="false: without the beginning of an answer.")


class TemplateResponse(TypedDict):
    prompt: str


class Slot(TypedDict):
    """A sequence of the context. Which request a sequence has is not told.

    id: the sequences that work come first.
    speculative: whether drafts are made, by a head or from the text.
    """

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


@router.post("/apply-template", response_model=None, responses={200: {"model": TemplateResponse}, **error_responses()})
async def apply_template(request: Request, body: TemplateRequest, service: ServiceDep) -> Response:
    """Return the prompt that the chat template makes of a chat, without generating."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    begins_answer = fields.pop("add_generation_prompt", None) is not False
    generate_request = service.apply_thinking_budget(read_generate_request(CHAT, fields, service.sampling))

    async def render() -> str:
        async with service.read_images(generate_request) as whole:
            return await service.prepare(lambda: rendered_prompt(service.llm.llm, whole, begins_answer=begins_answer))

    prompt = await run_until_disconnect(request.receive, render())
    return AsciiJSONResponse(TemplateResponse(prompt=prompt), headers=ignored_fields_header(CHAT, fields))


def rendered_prompt(llm: LLM, request: GenerateRequest, *, begins_answer: bool) -> str:
    """Render the chat of a request, with a MEDIA_MARKER in the place of each image, as `/completion` takes it.

    begins_answer: whether the prompt ends with the beginning of the answer.

    Raises InvalidRequestError for a chat that the template refuses.
    """
    assert isinstance(request.prompt, Chat)
    chat = apply_thinking_budget(request.prompt, request.params)
    images = llm.chat_prompts.collect_images()
    text = llm.chat_template.render(
        template_messages(chat.messages, images),
        tools=chat.tools,
        chat_template_kwargs=chat.chat_template_kwargs,
        add_generation_prompt=begins_answer,
    )
    for marker in () if images is None else images.by_marker:
        text = text.replace(f"{VISION_START}{marker}{VISION_END}", MEDIA_MARKER)
    return text


@router.post(f"{CHAT}/input_tokens", responses=error_responses())
async def count_tokens(request: Request, body: TemplateRequest, service: ServiceDep, response: Response) -> InputTokens:
    """Return the number of prompt tokens that a chat has, without generating."""
    service.check_model(body.model)
    fields = body.model_dump(exclude_unset=True, by_alias=True)
    n = await count_prompt_tokens(request.receive, service, read_generate_request(CHAT, fields, service.sampling))
    response.headers.update(ignored_fields_header(CHAT, fields))
    return InputTokens(object="response.input_tokens", input_tokens=n)


@router.get("/slots", responses=error_responses())
async def slots(service: ServiceDep) -> list[Slot]:
    """List the sequences: how many there are, and how many work. What they hold is not told to other clients."""
    if not service.settings.slots:
        raise NotEnabledError("the server was started with --no-slots")
    context, figures = service.llm.llm.context, service.llm.figures()
    return [
        Slot(
            id=i,
            n_ctx=context.n_ctx,
            speculative=context.max_drafts > 0,
            is_processing=i < figures.running,
        )
        for i in range(context.n_seq_max)
    ]
