"""Texts from arguments, files and standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from pymtp.errors import InvalidRequestError


def read_text(description: str, file: Path) -> str:
    """Read a text file. Raises InvalidRequestError if it cannot be read or is not UTF-8.

    description: names the content of the file in the error message, such as "prompt".
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read the {description} from {file}: {error}") from error


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Read a prompt from an argument, a file, or standard input.

    Raises InvalidRequestError if none or two of them are given, or if the prompt cannot be read.

    prompt: the argument; "-" stands for standard input.
    """
    if (prompt is None) == (file is None):
        raise InvalidRequestError('give one prompt: as an argument, "-" for standard input, or --file')
    if file is not None:
        return read_text("prompt", file)
    return read_input() if prompt == "-" else str(prompt)


def read_input(*, line: bool = False) -> str:
    """Read all of standard input, or only its next line (with the newline) if `line` is True.

    Raises InvalidRequestError if standard input is closed, or holds bytes that cannot be decoded.
    """
    if sys.stdin is None:
        raise InvalidRequestError("standard input is closed")
    try:
        return sys.stdin.readline() if line else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot read standard input: {error}") from error
