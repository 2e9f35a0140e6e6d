"""Conversion of messages in OpenAI's form to the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pymtp.chat.images import NO_PROJECTOR, ChatImages, is_image_part, place_of
from pymtp.chat.lenient_json import NotJsonError, parse_json
from pymtp.chat.part_text import content_text
from pymtp.errors import InvalidRequestError
from pymtp.validation import shown

# the one parameter of a call in the past whose arguments are no JSON object
WHOLE_ARGUMENTS = "arguments"
_MAX_DEPTH = 64  # levels of arguments that templates can follow
# roles that have another name in templates
_ROLES = {"developer": "system", "function": "tool"}
_TOOL_ROLES = ("tool", "function")
_MODEL_ROLES = ("assistant", "tool", "function")  # messages that a model or a tool wrote
# for each type of content part, the field that holds its text
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def template_messages(messages: Sequence[Mapping[str, Any]], images: ChatImages | None = None) -> list[dict[str, Any]]:
    """Convert messages for a template.

    images: collects the images of the messages; None for a model that sees none.

    The content of each message becomes one string, "" if it is missing. The arguments of tool calls become objects. The
    reasoning moves to the field `reasoning_content`. Developer messages become system messages, and several system
    messages at the beginning become one. The deprecated role `function` becomes `tool`, and `function_call` becomes
    `tool_calls`. All other fields stay unchanged.

    An image, in a part {"type": "image", "image": …} (a source of `Image.read`, but no path as a string) or with a data
    URL in OpenAI's forms, becomes a marker: see `ChatImages`.

    What the model and its tools wrote is never refused, because no user can correct it: arguments that are no JSON
    object become the text of one argument, and parts that are neither text nor, in a tool's result, an image become
    placeholders such as `[image]`. So does a tool's image that is refused, with the reason, and so do the oldest images
    of tools in a chat with too many.

    Raises InvalidRequestError for malformed messages and calls, for images that are refused, for an image in a system
    message or where the model sees none, and for other content that is not text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidRequestError(f"a chat is a sequence of messages, not {shown(messages)}")
    if images is not None:
        n_of_tools = _n_images(messages, _TOOL_ROLES)
        images.expect(n_of_tools + _n_images(messages, ("user",)), n_of_tools)
    converted: list[dict[str, Any]] = []
    first_texts: list[str] = []  # the system messages at the beginning
    for i, message in enumerate(messages):
        result = _template_message(message, f"messages[{i}]", images)
        if result["role"] == "system" and i == len(first_texts):
            first_texts.append(result["content"])
            if i > 0:
                continue
        converted.append(result)
    if first_texts:
        converted[0] = {**converted[0], "content": "\n\n".join(first_texts)}
    return converted


def _template_message(message: Mapping[str, Any], where: str, images: ChatImages | None) -> dict[str, Any]:
    result = dict(message) if isinstance(message, Mapping) else {}
    if isinstance(called := result.pop("function_call", None), Mapping):
        result["tool_calls"] = result.get("tool_calls") or [{"type": "function", "function": called}]
    calls = result.get("tool_calls")
    role = result.get("role")
    if not isinstance(role, str) or not ("content" in result or calls or role in _MODEL_ROLES):
        raise InvalidRequestError(f'{where}: a message needs "role" and "content": {shown(message)}')
    result["role"] = role = _ROLES.get(role, role)
    reasoning = result.pop("reasoning", None)
    if result.get("reasoning_content") is None:
        result.pop("reasoning_content", None)
        if isinstance(reasoning, str):
            result["reasoning_content"] = reasoning
    if role == "assistant":
        result |= _assistant_texts(result)
    elif role == "tool":
        result["content"] = content_text(result.get("content"), "", None if images is None else _tool_image(images))
    else:
        result["content"] = user_text(result.get("content"), where, images, is_system=role == "system")
    if calls:
        result["tool_calls"] = [
            _template_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(_check_list(calls, where))
        ]
    else:
        result.pop("tool_calls", None)
    return result


def _assistant_texts(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the content of an assistant's message, and its thinking if only the content's parts have it."""
    content = message.get("content")
    if content is None and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    if not isinstance(content, list):
        return {"content": content_text(content, "")}
    thoughts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "thinking"]
    texts = {"content": content_text([part for part in content if part not in thoughts], "")}
    if thoughts and "reasoning_content" not in message:
        texts["reasoning_content"] = content_text(thoughts, "\n")
    return texts


def _tool_image(images: ChatImages) -> Callable[[Mapping[str, Any]], str | None]:
    """Return a function that returns the text of a part with an image, and None for other parts."""
    return lambda part: images.add_of_tool(part) if is_image_part(part) else None


def _n_images(messages: Sequence[Mapping[str, Any]], roles: Collection[str]) -> int:
    """Return the number of images in the messages of these roles, also of those within other parts."""
    found = 0

    def count(part: Mapping[str, Any]) -> str | None:
        nonlocal found
        found += is_image_part(part)
        return None

    for message in messages:
        if isinstance(message, Mapping) and message.get("role") in roles:
            content = message.get("content")
            if isinstance(content, (list, tuple)):
                content_text(content, "", count)
    return found


def user_text(content: object, where: str, images: ChatImages | None, *, is_system: bool = False) -> str:
    """Return the content of a message of a user, or of the system, as one text: see `template_messages`.

    where: the message, for messages of errors.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(_check_list(content, f"{where}.content", "neither text nor a list")):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(_TEXT_FIELDS[kind]) if isinstance(kind, str) and kind in _TEXT_FIELDS else None
        if is_image_part(part):
            place = place_of(part, f"{where}.content[{i}]")
            if is_system:  # the models' own templates refuse it, and so does OpenAI
                raise InvalidRequestError(f"{place}: a system message has no images: send them in one of a user", place)
            text = _image_text(part, place, images)
        if not isinstance(text, str):
            raise InvalidRequestError(f"{where}: content must be text or images, not {kind!r:.40}")
        texts.append(text)
    return "".join(texts)


def _image_text(part: Mapping[str, Any], where: str, images: ChatImages | None) -> str:
    """Return the text that stands for the image of a part. Raises InvalidRequestError for an image that is refused."""
    if images is None:
        raise InvalidRequestError(f"{where}: {NO_PROJECTOR}", where)
    try:
        return images.add(part)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}: {error}", where) from error


def _template_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if isinstance(call, Mapping) and isinstance(custom := call.get("custom"), Mapping):
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        call = {name: value for name, value in call.items() if name != "custom"} | {"type": "function"}
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f'{where} must have a "function" with "name" and "arguments", not {shown(call)}')
    return {**call, "function": {**function, "arguments": past_arguments(function.get("arguments"))}}


def past_arguments(arguments: object) -> dict[str, Any]:
    """Return the arguments of a call in the past as an object.

    If a name occurs twice, the last value counts, as in all parsers of JSON. No arguments, empty text and null become
    {}. All that is no JSON object, such as the arguments of a call that was cut off, becomes the text of one argument,
    and so does an object that is nested deeper than templates can follow.
    """
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        text = arguments
        try:
            arguments = parse_json(text)
        except NotJsonError:
            return {WHOLE_ARGUMENTS: text}
    else:
        text = ""
    if arguments is None:
        return {}
    if isinstance(arguments, Mapping) and not _is_deeper(arguments, _MAX_DEPTH):
        return {str(name): value for name, value in arguments.items()}
    return {WHOLE_ARGUMENTS: text or _json(arguments)}


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether a JSON value has more than `levels` levels of objects and lists."""
    if not isinstance(value, (Mapping, list)):
        return False
    parts = value.values() if isinstance(value, Mapping) else value
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return shown(value)


def _check_list(value: object, where: str, otherwise: str = "not a list") -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidRequestError(f"{where}: {shown(value)} is {otherwise}")
    return value
