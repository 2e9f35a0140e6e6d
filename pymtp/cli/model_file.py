"""The file that -m names: a path, or a model on the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from rich.markup import escape

from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.names import is_hub_name, read_name, would_be
from pymtp.hub.pull import pull


def model_file(name: str | None) -> Path | None:
    """The file of a model; None for the shipped one. "hf:…" is brought from the hub: see `pull_model`.
    Raises ModelLoadError for a name of the hub without the "hf:", and InvalidRequestError for an empty one."""
    if name is None:
        return None
    if is_hub_name(name):
        return pull_model(name)
    if not name:
        raise InvalidRequestError("the name of the model is empty")
    if (meant := would_be(name)) and not os.path.exists(name):
        raise ModelLoadError(f"no such file: {name}{meant}")
    return Path(name)


def pull_model(name: str) -> Path:
    """A model of the hub, with a line on stderr for what a user should know. Raises as `hub.pull.pull`."""
    return pull(read_name(name), say=tell)


def tell(note: str) -> None:
    """A line on stderr."""
    screen.print(f"[bold yellow]note:[/] {escape(note)}", soft_wrap=True)
