"""Chats in files: JSON with messages in OpenAI's form."""

from __future__ import annotations

import json
from pathlib import Path

from pymtp.chat import Message, template_messages
from pymtp.chat.images import ChatImages
from pymtp.cli.chat.whole_file import write_whole
from pymtp.errors import InvalidRequestError
from pymtp.images import Image, ImageLimits
from pymtp.validation import replace_all_surrogates, shown

MAX_BYTES = 64 * 1024**2
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class _AnyImages:
    """Takes all images that are not damaged: whether a model sees them shows when the chat is continued."""

    limits = ImageLimits()

    def is_checked(self, image: Image) -> bool:
        return False

    def place(self, image: Image, *, decode: bool = True) -> tuple[int, int]:
        image.pixels()
        return -1, 1


def save_chat(path: Path, messages: list[Message]) -> None:
    """Write the messages to a file.

    Raises InvalidRequestError if the file exists and holds no chat, or if it cannot be written. Its old content is
    unchanged then.
    """
    text = json.dumps(replace_all_surrogates(messages), ensure_ascii=False, indent=2)
    if len(text) > MAX_BYTES:
        raise InvalidRequestError(f"the chat is not saved: its file would have more than {MAX_BYTES} bytes")
    try:
        if path.is_file() and path.stat().st_size:
            _check_is_chat(path)
        write_whole(path, f"{text}\n")
    except OSError as error:
        raise InvalidRequestError(f"the chat is not saved: {error}") from error


def load_chat(path: Path) -> list[Message]:
    """Read messages from a file: a JSON list of messages, or an object that has it as "messages".

    Raises InvalidRequestError for a file that cannot be read or holds no chat.
    """
    try:
        if path.exists() and not path.is_file():
            raise InvalidRequestError(f"{path} is not a regular file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(f"the chat cannot be read: {error}") from error
    if len(data) > MAX_BYTES:
        raise InvalidRequestError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        content = replace_all_surrogates(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not JSON: {error}") from error
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError(f"{path} has no list of messages")
    try:
        template_messages(messages, ChatImages(_AnyImages()))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path} has no chat: {error}") from error
    for i, message in enumerate(messages):
        if message["role"] not in ROLES:
            raise InvalidRequestError(f"{path} has no chat: messages[{i}] has the role {shown(message['role'])}")
    return messages


def _check_is_chat(path: Path) -> None:
    try:
        load_chat(path)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path} is not overwritten, since it holds no chat: {error}") from error
