"""OpenAI's completions as dicts, in this process: `LLM.create_chat_completion` and `LLM.create_completion`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pymtp.chat import ContentDelta, OutputParser
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.stream import Stream
from pymtp.errors import InvalidRequestError
from pymtp.openai.chunks import ChatChunks, TextChunks
from pymtp.openai.generate_request import output_finish_reason, parse_outputs, prepare_request
from pymtp.openai.loaded import Generator
from pymtp.openai.request_body import CHAT, excludes_reasoning, known_fields, read_generate_request, unknown_fields
from pymtp.openai.response_body import build_response
from pymtp.validation import refuse_unknown, shown

_KINDS = {
    "model": (str, "a string"),
    "echo": (bool, "a boolean"),
    "stream_options": (Mapping, "a mapping"),
    "pymtp": (Mapping, "a mapping"),
}
# `read_generate_request` leaves these fields to its callers, and the server alone answers them
_OF_THE_SERVER = ("timeout", "timings_per_token", "return_progress")


def create(llm: Generator, caller: str, url: str, fields: Mapping[str, Any]) -> Any:
    """Answer a body of OpenAI's API: a dict, or with `stream` an iterator over the dicts of the chunks.

    caller: the called method, for messages.
    fields: those of the body, and logits_processor.

    Raises TypeError for an unknown field, InvalidRequestError for fields that are refused, and the errors of
    `LLM.generate`.
    """
    body = {name: value for name, value in fields.items() if value is not None}
    processor = body.pop("logits_processor", None)
    refuse_unknown(f"{caller}()", body, known_fields(url), also=("logits_processor",))
    if unknown := unknown_fields(url, body):  # tools that cannot be called
        raise InvalidRequestError(f"{', '.join(unknown)}: not supported")
    _check(body)
    request = read_generate_request(url, body, llm.sampling_defaults)
    prompt, params, output_format = prepare_request(llm, request)
    if processor is not None:
        params = replace(params, logits_processor=processor)
    name = llm.model.path.name
    if not request.stream:
        completion = llm.generate(prompt, params)
        return build_response(url, body, [parse_outputs(output_format, completion)], llm.model, name)
    stream = llm.stream(prompt, params)  # now: an error is raised before the first chunk is asked for
    if url != CHAT:
        return _text_chunks(stream, TextChunks(llm.model, name, body))
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    chunks = ChatChunks(
        llm.model,
        body.get("model") or name,
        1,
        include_usage=usage,
        origins=bool((body.get("pymtp") or {}).get("origins")),
        exclude_reasoning=excludes_reasoning(body),
    )
    assert output_format is not None  # as of every chat
    return _chat_chunks(stream, chunks, output_format.parser())


def _check(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for a field of a wrong type, and for one that only the server has."""
    for name, (kind, wanted) in _KINDS.items():
        if name in body and not isinstance(body[name], kind):
            raise InvalidRequestError(f"{name}={shown(body[name])} must be {wanted}", name)
    for name in _OF_THE_SERVER:
        if body.get(name):
            raise InvalidRequestError(f"{name}: only `pymtp serve` supports it", name)


def _chat_chunks(stream: Stream, chunks: ChatChunks, parser: OutputParser) -> Iterator[dict[str, Any]]:
    with stream:
        for piece in stream:
            yield from _objects(chunks.chunk(CompletionDelta(0, [piece], None, parser.push(piece.text))))
        done = stream.completion
        events = parser.finish()
        delta = CompletionDelta(0, [], output_finish_reason(done.finish_reason, parser.output), events)
        yield from _objects(chunks.chunk(delta) + chunks.end(delta, [done]) + chunks.usage([[done]]))


def _text_chunks(stream: Stream, chunks: TextChunks) -> Iterator[dict[str, Any]]:
    length = 0
    with stream:
        for piece in stream:
            events = [ContentDelta(piece.text, length, length + len(piece.text))] if piece.text else []
            length += len(piece.text)
            delta = CompletionDelta(0, [piece], None, events)
            yield from _objects(chunks.chunk(0, delta, None, prompt_logprobs=stream.echo_logprobs))
        done = stream.completion
        yield from _objects(
            chunks.chunk(0, CompletionDelta(0, [], done.finish_reason), [done], prompt_logprobs=stream.echo_logprobs)
            + chunks.usage([[done]])
        )


def _objects(events: bytes) -> Iterable[dict[str, Any]]:
    """Return the objects of server-sent events."""
    return [json.loads(event.removeprefix(b"data: ")) for event in events.split(b"\n\n") if event]
