"""Texts from arguments, files and standard input."""

from __future__ import annotations

from pathlib import Path

from pymtp.cli.screen import read_input
from pymtp.errors import InvalidRequestError


def read_text(what: str, file: Path) -> str:
    """Raises InvalidRequestError for a file that cannot be read, or is no text."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read the {what} from {file}: {error}") from error


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """From where it is. Raises InvalidRequestError unless it is in one place."""
    if (prompt is None) == (file is None):
        raise InvalidRequestError('give one prompt: as an argument, "-" for standard input, or --file')
    if file is not None:
        return read_text("prompt", file)
    return read_input() if prompt == "-" else str(prompt)
