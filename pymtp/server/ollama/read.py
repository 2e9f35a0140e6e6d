"""Reading of the bodies of Ollama's API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.openai.generate_request import GenerateRequest
from pymtp.openai.request_body import TEXT, chat_request, read_generate_request, template_variables
from pymtp.server.image_parts import image_part

# Ollama's defaults, for parameters that neither the request, the server nor the model's file sets
DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "max_tokens": None}
_SAME_NAMES: tuple[str, ...] = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop")
_SAME_NAMES += ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty")
_WITHOUT_EFFECT = ("context",)  # fields that Ollama has and that change nothing here
_OF_CHATS = ("system", "think")  # fields of /api/generate that change nothing where the model continues a text


def read_chat(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> GenerateRequest:
    """Read the body of /api/chat. defaults: the server's sampling parameters, by their names in SamplingParams.

    Raises InvalidRequestError for fields that are out of range or not supported.
    """
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(fields["messages"])]
    return _chat_request(fields, messages, fields.get("tools") or (), defaults)


def read_generate(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> GenerateRequest:
    """Read the body of /api/generate: a chat of one message, or a text with `raw` or `suffix`. See `read_chat`."""
    prompt = fields.get("prompt") or ""
    if _continues_text(fields):
        if fields.get("images"):
            raise InvalidRequestError("images: not supported with raw or suffix, only in chats", "images")
        body = _sampling(fields) | {"prompt": prompt, "stream": _streams(fields), "suffix": fields.get("suffix")}
        if (schema := _schema(fields)) is not None:
            body["json_schema"] = schema
        return read_generate_request(TEXT, body, {**DEFAULTS, **defaults})
    system = [{"role": "system", "content": fields["system"]}] if fields.get("system") else []
    content = _content(prompt, fields.get("images"), "images")
    return _chat_request(fields, [*system, {"role": "user", "content": content}], (), defaults)


def _continues_text(fields: Mapping[str, Any]) -> bool:
    return bool(fields.get("raw") or fields.get("suffix"))


def _chat_request(
    fields: Mapping[str, Any], messages: list[dict[str, Any]], tools: Any, defaults: Mapping[str, Any]
) -> GenerateRequest:
    body = _sampling(fields) | {"stream": _streams(fields)}
    think = fields.get("think")
    if isinstance(think, bool):
        body["enable_thinking"] = think
    elif think is not None:
        body["reasoning_effort"] = think
    request = chat_request(
        body,
        messages,
        {**DEFAULTS, **defaults},
        tools=tools,
        tool_choice=None,
        variables=template_variables(body),
    )
    schema = _schema(fields)
    return request if schema is None else replace(request, schema=schema)


def _streams(fields: Mapping[str, Any]) -> bool:
    return fields.get("stream") is not False


def _sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of a body by their names in OpenAI's API."""
    options = fields.get("options") or {}
    body = {name: options[name] for name in _SAME_NAMES if options.get(name) is not None}
    limit = options.get("num_predict")
    if limit is not None and limit >= 0:
        body["max_tokens"] = max(1, limit)
    return body


def _schema(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    given = fields.get("format")
    if given == "json":
        return {"type": "object"}
    return given or None


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a message in OpenAI's form. where: its place in the body."""
    content = _content(message.get("content") or "", message.get("images"), f"{where}.images")
    found: dict[str, Any] = {"role": message["role"], "content": content}
    if message.get("thinking"):
        found["reasoning_content"] = message["thinking"]
    if message.get("tool_call_id"):
        found["tool_call_id"] = message["tool_call_id"]
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [
            {
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": _arguments_text(call["function"].get("arguments")),
                },
            }
            for call in calls
        ]
    return found


def _content(text: str, images: Sequence[str] | None, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: the images are before its text, as Ollama's templates have them.

    where: the field of the images.
    """
    if not images:
        return text
    return [*(image_part(url, f"{where}[{i}]") for i, url in enumerate(images)), {"type": "text", "text": text}]


def _arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def ignored_names(fields: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """List the fields and options of a body that change nothing. known: the fields of the body's model."""
    names = [name for name in fields if name not in known or name in _WITHOUT_EFFECT]
    if "raw" in known and _continues_text(fields):
        names += [name for name in _OF_CHATS if fields.get(name)]
    options = fields.get("options") or {}
    known_options = {*_SAME_NAMES, "num_predict"}
    return sorted(names) + sorted(f"options.{name}" for name in options if name not in known_options)
