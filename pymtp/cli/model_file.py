"""Finding the file of the model that the option -m names: a path, or a model of the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from pymtp.cli.screen import printable, screen
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.from_pretrained import fetch_headers, fetch_model
from pymtp.hub.names import hub_name_hint, read_name
from pymtp.hub.projectors import projectors_beside
from pymtp.options import LLMOptions
from pymtp.validation import is_hub_name


def model_name(name: str | None) -> str | None:
    """Return the path of a model file on this machine, or a name of the hub, unchanged; None for the shipped model.

    Raises InvalidRequestError for an empty name and for an invalid name of the hub; ModelLoadError if the file does not
    exist but looks like a name of the hub without "hf:".
    """
    if name is None:
        return None
    if not name:
        raise InvalidRequestError("the name of the model is empty")
    if is_hub_name(name):
        read_name(name)
    elif (meant := hub_name_hint(name)) and not os.path.exists(name):
        raise ModelLoadError(f"no such file: {name}{meant}")
    return name


def model_file(
    name: str | None, placing: Mapping[str, Any], *, with_head: bool = True
) -> tuple[Path | None, dict[str, Any]]:
    """Find the file of a model. Return its path (None for the shipped model), and the keywords of Model.

    A model "hf:…" is downloaded from the hub. If the head is in a separate file, that is downloaded too and added to
    the returned keywords, unless the keywords name a head.

    placing: keywords of Model.
    with_head: False if no drafts will be made, so that no head is downloaded.

    Raises the errors of `model_name` and of `pymtp.hub.from_pretrained.fetch_model`.
    """
    name = model_name(name)
    if name is None or not is_hub_name(name):
        return None if name is None else Path(name), dict(placing)
    options = fetch_model(
        read_name(name), LLMOptions(**placing), with_head=with_head, with_projector=False, notify=show_note
    )
    return Path(str(options.model)), {**placing, **({} if options.head is None else {"head": options.head})}


@contextmanager
def model_headers(options: LLMOptions) -> Iterator[LLMOptions]:
    """Yield options whose model and head are files on this machine.

    Of a model of the hub, only the headers of its files are downloaded, and deleted after the block. Raises the errors
    of `pymtp.hub.from_pretrained.fetch_model`.
    """
    if not isinstance(options.model, str) or not is_hub_name(options.model):
        yield options
        return
    with fetch_headers(read_name(options.model), options, notify=show_note) as headers:
        yield headers


def with_projector_beside(options: LLMOptions) -> LLMOptions:
    """Return options with the projector in the folder of the model's file, if the options name none.

    Only a projector for models of this width is used. If there are several, none is used, and a note says so.
    """
    model = options.model
    if options.mmproj is not None or not isinstance(model, str) or is_hub_name(model):
        return options
    found = projectors_beside(Path(model))
    if len(found) > 1:
        show_note(f"there are {len(found)} projectors beside {model}: give one of them with --mmproj, or --no-mmproj")
    return replace(options, mmproj=found[0]) if len(found) == 1 else options


def show_note(note: str) -> None:
    """Print a note on stderr."""
    screen.print(f"[bold yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
