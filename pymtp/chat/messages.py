"""Conversion of messages in OpenAI's form to the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.chat.lenient_json import NotJsonError, parse_json
from pymtp.errors import InvalidRequestError
from pymtp.validation import shown

# for each type of content part, the field that holds its text
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages for a template.

    The content of each message becomes one string, "" if it is missing. The arguments of tool calls become objects. The
    reasoning moves to the field `reasoning_content`. Developer messages become system messages, and several system
    messages at the beginning become one. All other fields stay unchanged.

    Raises InvalidRequestError for malformed messages and calls, and for content that is not text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidRequestError(f"a chat is a sequence of messages, not {shown(messages)}")
    converted: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        result = _template_message(message, f"messages[{i}]")
        if len(converted) == 1 and result["role"] == converted[0]["role"] == "system":
            converted[0] = {**converted[0], "content": f"{converted[0]['content']}\n\n{result['content']}"}
        else:
            converted.append(result)
    return converted


def _template_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = dict(message) if isinstance(message, Mapping) else {}
    calls = result.get("tool_calls")
    if not isinstance(result.get("role"), str) or not ("content" in result or calls):
        raise InvalidRequestError(f'{where}: a message needs "role" and "content": {shown(message)}')
    result["content"] = _content_text(result.get("content"), where)
    if result["role"] == "developer":
        result["role"] = "system"
    reasoning = result.pop("reasoning", None)
    if result.get("reasoning_content") is None:
        result.pop("reasoning_content", None)
        if isinstance(reasoning, str):
            result["reasoning_content"] = reasoning
    if calls:
        result["tool_calls"] = [
            _template_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(_check_list(calls, where))
        ]
    else:
        result.pop("tool_calls", None)
    return result


def _content_text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in _check_list(content, f"{where}.content", "neither text nor a list"):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(_TEXT_FIELDS[kind]) if isinstance(kind, str) and kind in _TEXT_FIELDS else None
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}: content must be text, as this model reads only text, not {kind!r:.40}")
        texts.append(text)
    return "".join(texts)


def _template_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f'{where} must have a "function" with "name" and "arguments", not {shown(call)}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except NotJsonError as error:
            raise InvalidRequestError(f"{where}: the arguments are not JSON: {error}") from error
    if not isinstance({} if arguments is None else arguments, Mapping):
        raise InvalidRequestError(f"{where}: the arguments are not a JSON object: {json.dumps(arguments):.80}")
    return {**call, "function": {**function, "arguments": arguments or {}}}


def _check_list(value: object, where: str, otherwise: str = "not a list") -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidRequestError(f"{where}: {shown(value)} is {otherwise}")
    return value
