"""OpenAI's completions as dicts, in this process: `LLM.create_chat_completion` and `LLM.create_completion`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pymtp.chat import ContentDelta, OutputParser
from pymtp.engine.deltas import CompletionDelta
from pymtp.engine.prepare import Prompt
from pymtp.engine.request import Completion, Piece
from pymtp.engine.stream import Stream
from pymtp.errors import InvalidRequestError
from pymtp.openai.chunks import ChatChunks, TextChunks
from pymtp.openai.generate_request import left_out_keywords, output_finish_reason, parse_outputs, prepare_request
from pymtp.openai.loaded import Generator, LoadedModel
from pymtp.openai.request_body import CHAT, excludes_reasoning, known_fields, read_generate_request, unknown_fields
from pymtp.openai.response_body import build_response
from pymtp.samplers import SAMPLING_NAMES_ELSEWHERE
from pymtp.sampling import TokenLogprobs
from pymtp.validation import refuse_unknown, shown

log = logging.getLogger(__name__)
PromptLogprobs = Callable[[], list[TokenLogprobs]]
_KINDS = {
    "model": (str, "a string"),
    "echo": (bool, "a boolean"),
    "stream": (bool, "a boolean"),
    "stream_options": (Mapping, "a mapping"),
    "pymtp": (Mapping, "a mapping"),
}
# `read_generate_request` leaves these fields to its callers, and the server alone answers them
_OF_THE_SERVER = ("timeout", "timings_per_token", "return_progress")
# keywords of llama-cpp-python alone: the value that switches each off, and what to use in its place
_OF_LLAMA_CPP_PYTHON: dict[str, tuple[object, str]] = {
    "tfs_z": (1, ": use min_p or top_n_sigma"),
    "mirostat_mode": (0, ": use temperature, min_p or top_n_sigma"),
    "stopping_criteria": ([], ": use stop, or stream and close the stream"),
}


def _read_value(name: str, value: Any) -> Any:
    """Return a field's value as JSON would have it: numbers and ids of NumPy as Python's, tuples as lists.

    Raises InvalidRequestError for other arrays, which cannot be compared with a value.
    """
    if isinstance(value, np.generic) or (name == "prompt" and isinstance(value, np.ndarray)):
        return value.tolist()
    if hasattr(value, "__array__"):  # those of torch and pandas, too
        raise InvalidRequestError(f"{name} must not be an array", name)
    return list(value) if isinstance(value, tuple) else value


class Answerer:
    """A call of create_completion or create_chat_completion: its prompt and params, and the objects of its answer.

    stream: whether the answer is an iterator over chunks.
    """

    def __init__(self, llm: LoadedModel, caller: str, url: str, fields: Mapping[str, Any]) -> None:
        """
        Read the body of a call, and prepare its prompt.

        caller: the called method, for messages.
        fields: those of the body, and logits_processor.

        Raises TypeError for an unknown field, InvalidRequestError for fields that are refused.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        processor = given.pop("logits_processor", None)
        if isinstance(processor, (list, tuple)) and not processor:  # llama-cpp-python's list without any
            processor = None
        body = {name: _read_value(name, value) for name, value in given.items()}
        for name, (neutral, instead) in _OF_LLAMA_CPP_PYTHON.items():
            if name in body and (value := body.pop(name)) != neutral:
                raise InvalidRequestError(f"{name}={shown(value)}: not supported{instead}", name)
        refuse_unknown(f"{caller}()", body, known_fields(url), SAMPLING_NAMES_ELSEWHERE, also=("logits_processor",))
        if unknown := unknown_fields(url, body):  # tools that cannot be called
            raise InvalidRequestError(f"{', '.join(unknown)}: not supported")
        _check(url, body)
        request = read_generate_request(url, body, llm.sampling_defaults)
        prompt, params, self._format = prepare_request(llm, request)
        if left_out := left_out_keywords(request, self._format):
            log.warning("%s() cannot hold the answer to %s, and ignores it", caller, ", ".join(left_out))
        self.prompt: Prompt = prompt
        self.params = params if processor is None else replace(params, logits_processor=processor)
        self.stream = request.stream
        if self.stream and self.params.n > 1:
            raise InvalidRequestError(f"n={self.params.n}: a stream has one completion: leave out n or stream", "n")
        self._url, self._body, self._model = url, body, llm.model

    def answer(self, completion: Completion) -> Any:
        """Return the dict of the whole answer."""
        outputs = [parse_outputs(self._format, completion)]
        return build_response(self._url, self._body, outputs, self._model, self._model.path.name)

    def writer(self) -> ChatWriter | TextWriter:
        """Return the writer of the chunks."""
        body, name = self._body, self._model.path.name
        if self._url != CHAT:
            return TextWriter(TextChunks(self._model, name, body))
        chunks = ChatChunks(
            self._model,
            body.get("model") or name,
            1,
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            origins=bool((body.get("pymtp") or {}).get("origins")),
            exclude_reasoning=excludes_reasoning(body),
        )
        assert self._format is not None  # as of every chat
        return ChatWriter(chunks, self._format.parser())


def create(llm: Generator, caller: str, url: str, fields: Mapping[str, Any]) -> Any:
    """Answer a body of OpenAI's API: a dict, or with `stream` an iterator over the dicts of the chunks.

    Raises the errors of `Answerer` and of `LLM.generate`.
    """
    call = Answerer(llm, caller, url, fields)
    if not call.stream:
        return call.answer(llm.generate(call.prompt, call.params))
    # now: an error is raised before the first chunk is asked for
    return _chunks(llm.stream(call.prompt, call.params), call.writer())


def _chunks(stream: Stream, writer: ChatWriter | TextWriter) -> Iterator[dict[str, Any]]:
    with stream:
        for piece in stream:
            yield from writer.write([piece], stream.echo_logprobs)
        yield from writer.end(stream.completion, stream.echo_logprobs)


def _check(url: str, body: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for a field of a wrong type, and for one that only the server has."""
    kinds = _KINDS | ({"logprobs": (bool, "a boolean")} if url == CHAT else {})
    for name, (kind, wanted) in kinds.items():
        if name in body and not isinstance(body[name], kind):
            raise InvalidRequestError(f"{name}={shown(body[name])} must be {wanted}", name)
    for name in _OF_THE_SERVER:
        if body.get(name):
            raise InvalidRequestError(f"{name}: only `pymtp serve` supports it", name)


class ChatWriter:
    """The writer of the chunks of a chat."""

    def __init__(self, chunks: ChatChunks, parser: OutputParser) -> None:
        self._chunks, self._parser = chunks, parser

    def write(self, pieces: Sequence[Piece], _: PromptLogprobs) -> list[dict[str, Any]]:
        """Return the chunks of new pieces."""
        events = self._parser.push("".join(piece.text for piece in pieces))
        return _objects(self._chunks.chunk(CompletionDelta(0, pieces, None, events)))

    def end(self, done: Completion, _: PromptLogprobs) -> list[dict[str, Any]]:
        """Return the last chunks."""
        events = self._parser.finish()
        delta = CompletionDelta(0, [], output_finish_reason(done.finish_reason, self._parser.output), events)
        return _objects(self._chunks.chunk(delta) + self._chunks.end(delta, [done]) + self._chunks.usage([[done]]))


class TextWriter:
    """The writer of the chunks of a text."""

    def __init__(self, chunks: TextChunks) -> None:
        self._chunks, self._length = chunks, 0

    def write(self, pieces: Sequence[Piece], prompt_logprobs: PromptLogprobs) -> list[dict[str, Any]]:
        """Return the chunks of new pieces. prompt_logprobs: see `TextChunks.chunk`."""
        text, start = "".join(piece.text for piece in pieces), self._length
        self._length += len(text)
        events = [ContentDelta(text, start, self._length)] if text else []
        return _objects(self._chunks.chunk(0, CompletionDelta(0, pieces, None, events), None, None, prompt_logprobs))

    def end(self, done: Completion, prompt_logprobs: PromptLogprobs) -> list[dict[str, Any]]:
        """Return the last chunks."""
        last = self._chunks.chunk(0, CompletionDelta(0, [], done.finish_reason), [done], None, prompt_logprobs)
        return _objects(last + self._chunks.usage([[done]]))


def _objects(events: bytes) -> list[dict[str, Any]]:
    """Return the objects of server-sent events."""
    return [json.loads(event.removeprefix(b"data: ")) for event in events.split(b"\n\n") if event]
