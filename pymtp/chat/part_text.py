"""The text of content parts in any API's form, for parts of the past: tool results and the assistant's own output.

The past cannot be changed by the client's user, so no part is refused: a part that is not text becomes a placeholder.
For a model that sees images, a caller gives the function `image_text`. It returns the text that stands for the image of
a part, and None for a part without an image.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

ImageText: TypeAlias = "Callable[[Mapping[str, Any]], str | None]"
_MAX_DEPTH = 16  # levels of parts within parts; deeper parts are cut off
# Fields that mean nothing to a model: data of media, and texts that only another server can read.
_OPAQUE_FIELDS = frozenset(("type", "data", "encrypted_content", "encrypted_index", "cache_control", "citations"))
_MEDIA = ("image", "audio", "video")
_PART_NAMES = (*_MEDIA, "screenshot", "document", "tool_reference", "refusal")
_STRUCTURED = ("_result", "_error")  # the ends of types whose fields are shown as JSON
_MAX_TYPE = 40  # characters of an unknown type that a placeholder shows


def content_text(content: object, between: str = "\n\n", image_text: ImageText | None = None) -> str:
    """Return the text of a content of the past: a string, a list of parts, one part, or any other JSON value."""
    return _content_text(content, between, _MAX_DEPTH, image_text or _no_image_text)


def part_text(part: object) -> str:
    """Return the text of one part; a placeholder such as `[image]` if the part has no text."""
    return _part_text(part, _MAX_DEPTH, _no_image_text)


def _no_image_text(part: Mapping[str, Any]) -> None:
    return None


def _content_text(content: object, between: str, depth: int, image_text: ImageText) -> str:
    if content is None:
        return ""
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        return between.join(_part_text(part, depth - 1, image_text) for part in content)
    if isinstance(content, Mapping) and not _is_part(content):
        return _json(content)
    return _part_text(content, depth, image_text)


def _is_part(value: Mapping[str, Any]) -> bool:
    """Return whether an object that is the whole content is a part. Any other object is the result of a tool."""
    kind = value.get("type")
    return isinstance(kind, str) and (
        isinstance(value.get("text"), str) or kind.endswith(_STRUCTURED) or any(name in kind for name in _PART_NAMES)
    )


def _part_text(part: object, depth: int, image_text: ImageText) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return _json(part)
    if not depth:
        return "[…]"
    if (text := image_text(part)) is not None:
        return text
    match part:
        case {"type": "document"}:
            return _document_text(part, depth, image_text)
        case {"type": "search_result"}:
            content = _content_text(part.get("content"), "\n\n", depth - 1, image_text)
            about = (part.get("title"), part.get("source"), content)
            return "\n\n".join(text for text in about if isinstance(text, str) and text)
        case {"type": "refusal", "refusal": str(text)} | {"type": "thinking", "thinking": str(text)}:
            return text
        case {"type": "tool_reference", "tool_name": str(name)}:
            return f"[tool: {name}]"
        case {"type": "logs", "logs": str(text)}:
            return text
        case {"text": str(text)}:
            return text
        case {"type": str(kind)} if kind.endswith(_STRUCTURED):
            return _json(_readable(part, depth))
        case {"type": str(kind)}:
            return _placeholder(kind, part)
    return _json(part)


def _document_text(part: Mapping[str, Any], depth: int, image_text: ImageText) -> str:
    match part.get("source"):
        case {"type": "text", "data": str(text)}:
            about = (part.get("title"), part.get("context"), text)
        case {"type": "content", "content": content}:
            about = (part.get("title"), part.get("context"), _content_text(content, "\n\n", depth - 1, image_text))
        case _:
            return _placeholder("document", part)
    return "\n\n".join(text for text in about if isinstance(text, str) and text)


def _placeholder(kind: str, part: Mapping[str, Any]) -> str:
    what = next((name for name in _MEDIA if name in kind), None)
    if "screenshot" in kind:
        what = "image"
    if what is None:
        what = "file" if "file" in kind else kind[:_MAX_TYPE]
    name = next((part[key] for key in ("title", "filename", "name") if isinstance(part.get(key), str)), "")
    return f"[{what}: {name}]" if name else f"[{what}]"


def _readable(value: object, depth: int) -> object:
    """Return a JSON value without opaque fields, in which media are placeholders."""
    if not depth:
        return "[…]"
    if isinstance(value, Mapping):
        if value.get("type") == "document" or any(name in str(value.get("type")) for name in _MEDIA):
            return _part_text(value, depth, _no_image_text)
        return {name: _readable(item, depth - 1) for name, item in value.items() if name not in _OPAQUE_FIELDS}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_readable(item, depth - 1) for item in value]
    return value


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # nested too deep, or in itself
        return "[…]"
