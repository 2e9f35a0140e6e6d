"""Messages as OpenAI's API has them, in the form that chat templates want."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.chat.literals import NoValueError, json_value
from pymtp.errors import InvalidRequestError
from pymtp.validation import shown

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # parts, and their text


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Content as one string, "" for none; arguments of calls as objects; what was thought as `reasoning_content`;
    instructions of the developer, and several of the system at the beginning, as one message of the system. All else
    as it is.

    Raises InvalidRequestError for what is no message, content that is no text, and calls that are none.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidRequestError(f"a chat is a sequence of messages, not {shown(messages)}")
    found: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        one = _message(message, f"messages[{i}]")
        if len(found) == 1 and one["role"] == found[0]["role"] == "system":
            found[0] = {**found[0], "content": f"{found[0]['content']}\n\n{one['content']}"}
        else:
            found.append(one)
    return found


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(f'{where}: a message needs "role" and "content": {shown(message)}')
    one = dict(message)
    calls = one.get("tool_calls")
    if "content" not in one and not calls:
        raise InvalidRequestError(f'{where}: a message needs "role" and "content": {shown(message)}')
    one["content"] = _content(one.get("content"), where)
    if one["role"] == "developer":
        one["role"] = "system"
    thought = one.pop("reasoning", None)
    if one.get("reasoning_content") is None:
        one.pop("reasoning_content", None)
        if isinstance(thought, str):
            one["reasoning_content"] = thought
    if calls:
        one["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(_list(calls, where))]
    else:
        one.pop("tool_calls", None)
    return one


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in _list(content, f"{where}.content", "neither text nor a list"):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(_TEXTS[kind]) if isinstance(kind, str) and kind in _TEXTS else None
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}: content must be text: this model reads nothing else, no {kind!r:.40}")
        texts.append(text)
    return "".join(texts)


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f'{where} must have a "function" with "name" and "arguments", not {shown(call)}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json_value(arguments) if arguments.strip() else {}
        except NoValueError as error:
            raise InvalidRequestError(f"{where}: its arguments are not JSON: {error}") from error
    if not isinstance({} if arguments is None else arguments, Mapping):
        raise InvalidRequestError(f"{where}: its arguments are no object: {json.dumps(arguments):.80}")
    return {**call, "function": {**function, "arguments": arguments or {}}}


def _list(value: object, where: str, otherwise: str = "no list") -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidRequestError(f"{where}: {shown(value)} is {otherwise}")
    return value
