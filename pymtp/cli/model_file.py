"""The file that -m names: a path, or a model on the Hugging Face hub, with its head."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.from_pretrained import bring, bring_headers
from pymtp.hub.names import read_name, would_be
from pymtp.validation import is_hub_name


def model_file(
    name: str | None, keywords: Mapping[str, Any], *, with_head: bool = True
) -> tuple[Path | None, dict[str, Any]]:
    """Find the file of a model, None for the shipped one. "hf:…" is brought from the hub, with its head unless keywords
    name another or want no drafts. Return the file, and the keywords with the head's.

    keywords: of LLM, or some of them. with_head: False where nothing drafts.

    Raises as `local_file` and `llm_hub.bring`.
    """
    if name is not None and is_hub_name(name):
        return bring(read_name(name), keywords, with_head=with_head, say=tell)
    return local_file(name), dict(keywords)


def local_file(name: str | None) -> Path | None:
    """Find a file on this machine. Raises ModelLoadError for a name of the hub without the "hf:", and
    InvalidRequestError for an empty one."""
    if name is None:
        return None
    if not name:
        raise InvalidRequestError("the name of the model is empty")
    if (meant := would_be(name)) and not os.path.exists(name):
        raise ModelLoadError(f"no such file: {name}{meant}")
    return Path(name)


@contextmanager
def model_headers(name: str | None, keywords: Mapping[str, Any]) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """As `model_file`, for a look at headers: of a model of the hub nothing else comes, and that goes at the end."""
    if name is None or not is_hub_name(name):
        yield local_file(name), dict(keywords)
        return
    with bring_headers(read_name(name), keywords, say=tell) as found:
        yield found


def tell(note: str) -> None:
    """A line on stderr."""
    screen.print(f"[bold yellow]note:[/] {escape(note)}", soft_wrap=True)
