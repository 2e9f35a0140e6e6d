"""Load an LLM for a command or a server: from a file or a hub name, with a saved prefix."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.hub.from_pretrained import fetch_model
from pymtp.hub.model_download import warn
from pymtp.hub.names import read_name
from pymtp.llm import LLM
from pymtp.options import check_files
from pymtp.prefix_cache.file import check_header
from pymtp.validation import is_hub_name


def load(
    model: str | Path | None,
    keywords: Mapping[str, Any],
    prefix: Path | None = None,
    say: Callable[[str], None] = warn,
    *,
    times_later: bool = False,
) -> LLM:
    """Load an LLM and a saved prefix for it; if its model is a hub name, download the model first.

    model: a file, or a name of the Hugging Face hub as "hf:OWNER/NAME"; None for the shipped model.
    keywords: the keywords of LLM.
    prefix: a file that `LLM.save_prefix` wrote; None for no prefix.
    say: called with each note for the user about a model of the hub.
    times_later: True for an LLM of an AsyncLLM, which times its first decodes while it is idle, not during the load.

    Raises the errors of `LLM`, `LLM.from_pretrained` and `load_prefix`, and InvalidRequestError for a prefix file that
    cannot be read.
    """
    # both checks before a download, which may take hours
    check_prefix(prefix)
    check_files(keywords)
    file, keywords = resolve_model(model, keywords, say)
    llm = LLM(file, **keywords, _warm_up_later=times_later)
    if prefix is None:
        return llm
    try:
        with _unreadable(prefix):
            llm.load_prefix(prefix)
    except BaseException:
        llm.close()
        raise
    return llm


def resolve_model(
    model: str | os.PathLike[str] | None, keywords: Mapping[str, Any], say: Callable[[str], None] = warn
) -> tuple[str | os.PathLike[str] | None, Mapping[str, Any]]:
    """Download a model of the hub with its head: return the model's path, and the keywords with the head's path.

    A model that is not a hub name is returned unchanged. Raises the errors of `download_model`.
    """
    return (
        fetch_model(read_name(model), keywords, notify=say)
        if isinstance(model, str) and is_hub_name(model)
        else (model, keywords)
    )


def missing_head_note(llm: LLM, model: str | Path | None, keywords: Mapping[str, Any]) -> str | None:
    """Return a note for the user that the model has no head, so that nothing is drafted.

    Return None for a model with a head, if draft_tokens is given, and if the download or the load of the model has
    warned already.

    model, keywords: the arguments of `load`.
    """
    already_told = (isinstance(model, str) and is_hub_name(model)) or llm.model.head_absent
    if llm.model.has_head or already_told or keywords.get("draft_tokens", "auto") != "auto":
        return None
    return (
        f"{llm.model.path.name} has no multi-token-prediction head: it is decoded without drafts. "
        "--head FILE gives it one"
    )


def check_prefix(prefix: Path | None) -> None:
    """Raise InvalidRequestError for a prefix file that cannot be read, or whose first bytes show another format."""
    if prefix is not None:
        with _unreadable(prefix):
            check_header(prefix)


@contextmanager
def _unreadable(prefix: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(f"cannot read the prefix from {prefix}: {error.strerror or error}") from error
