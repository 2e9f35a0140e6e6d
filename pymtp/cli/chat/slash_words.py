"""The names of the commands that begin with a slash, with their arguments and summaries."""

from __future__ import annotations

import re

# by name: the arguments, and what the command does
COMMANDS = {
    "/help": ("", "list commands and keys"),
    "/clear": ("", "begin a new chat with the same system message"),
    "/regen": ("", "answer the last message again"),
    "/edit": ("[TEXT]", "change the last message, and answer it"),
    "/save": ("FILE", "write the chat to a file, as OpenAI's messages in JSON"),
    "/load": ("FILE", "continue the chat in such a file"),
    "/set": ("[NAME VALUE]", "show all settings, or change one; the value `default` takes it back"),
    "/system": ("[TEXT]", "show or set the system message; `-` removes it"),
    "/image": ("FILE", "show the model an image, with the next message; `-` for none, also with /edit"),
    "/exit": ("", "leave, as Ctrl-D does"),
}
OTHER_NAMES = {"/quit": "/exit", "/bye": "/exit"}  # what other programs call a command
FILE_COMMANDS = ("/save", "/load", "/image")
_COMMAND = re.compile(r"/[a-z]+(?=\s|$)")


def split_command(line: str) -> tuple[str, str] | None:
    """Split a line into the name of a command and its argument; return None for a message.

    A command is a slash with a word behind it: a path like /etc/hosts is none.
    """
    match = _COMMAND.match(line)
    return None if match is None else (match[0], line[match.end() :].strip())
