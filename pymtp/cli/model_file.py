"""Finding the file of the model that the option -m names: a path, or a model of the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.from_pretrained import fetch_headers, fetch_model
from pymtp.hub.names import hub_name_hint, read_name
from pymtp.validation import is_hub_name


def model_file(
    name: str | None, keywords: Mapping[str, Any], *, with_head: bool = True
) -> tuple[Path | None, dict[str, Any]]:
    """Find the file of a model. Return its path (None for the shipped model), and the keywords.

    A model "hf:…" is downloaded from the hub. If the head is in a separate file, that is downloaded too and added to
    the returned keywords, unless the keywords name a head or ask for no drafts.

    keywords: some or all keywords of LLM.
    with_head: False if no drafts will be made, so that no head is downloaded.

    Raises the errors of `local_file` and of `pymtp.hub.from_pretrained.fetch_model`.
    """
    if name is not None and is_hub_name(name):
        return fetch_model(read_name(name), keywords, with_head=with_head, notify=show_note)
    return local_file(name), dict(keywords)


def local_file(name: str | None) -> Path | None:
    """Return the path of a model file on this machine; None stands for the shipped model.

    Raises ModelLoadError if the file does not exist but looks like a name of the hub without "hf:", and
    InvalidRequestError for an empty name.
    """
    if name is None:
        return None
    if not name:
        raise InvalidRequestError("the name of the model is empty")
    if (meant := hub_name_hint(name)) and not os.path.exists(name):
        raise ModelLoadError(f"no such file: {name}{meant}")
    return Path(name)


@contextmanager
def model_headers(name: str | None, keywords: Mapping[str, Any]) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Find a model as `model_file` does, but download only the headers of files. Delete them after the block."""
    if name is None or not is_hub_name(name):
        yield local_file(name), dict(keywords)
        return
    with fetch_headers(read_name(name), keywords, notify=show_note) as headers:
        yield headers


def show_note(note: str) -> None:
    """Print a note on stderr."""
    screen.print(f"[bold yellow]note:[/] {escape(note)}", soft_wrap=True)
