"""An LLM as a command or a server starts with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.hub.from_pretrained import bring
from pymtp.hub.names import read_name
from pymtp.hub.pull import warn
from pymtp.llm import LLM
from pymtp.options import find_files
from pymtp.prefix_cache.file import look_at
from pymtp.validation import is_hub_name


def load(
    model: str | Path | None,
    keywords: Mapping[str, Any],
    prefix: Path | None = None,
    say: Callable[[str], None] = warn,
    *,
    times_later: bool = False,
) -> LLM:
    """model: of LLM, or a name of the hub. keywords: of LLM. prefix: a file to go on from. say: gets what a user should
    know of a model of the hub. times_later: for an AsyncLLM, which times launches while nobody asks for anything.

    Raises what `LLM`, `LLM.from_pretrained` and `load_prefix` raise, and InvalidRequestError for a prefix that cannot
    be read.
    """
    check_prefix(prefix)  # both before a model is brought
    find_files(keywords)
    file, keywords = brought(model, keywords, say)
    llm = LLM(file, **keywords, _times_later=times_later)
    if prefix is None:
        return llm
    try:
        with _unreadable(prefix):
            llm.load_prefix(prefix)
    except BaseException:
        llm.close()
        raise
    return llm


def brought(
    model: str | os.PathLike[str] | None, keywords: Mapping[str, Any], say: Callable[[str], None] = warn
) -> tuple[str | os.PathLike[str] | None, Mapping[str, Any]]:
    """Bring a model of the hub with its head: return its path and the keywords with the head's. What is no name of the
    hub stays. Raises as `bring`."""
    return (
        bring(read_name(model), keywords, say=say)
        if isinstance(model, str) and is_hub_name(model)
        else (model, keywords)
    )


def note_of_no_head(llm: LLM, model: str | Path | None, keywords: Mapping[str, Any]) -> str | None:
    """Say that a model has no head, where drafts could be wanted. None where it has one, and where the hub or the model
    said it already. model, keywords: those of `load`."""
    told = (isinstance(model, str) and is_hub_name(model)) or llm.model.head_absent
    if llm.model.has_head or told or keywords.get("draft_tokens", "auto") != "auto":
        return None
    return (
        f"{llm.model.path.name} has no multi-token-prediction head: it is decoded without drafts. "
        "--head FILE gives it one"
    )


def check_prefix(prefix: Path | None) -> None:
    """Raises InvalidRequestError for a file that cannot be read, or that is no prefix by its first bytes."""
    if prefix is not None:
        with _unreadable(prefix):
            look_at(prefix)


@contextmanager
def _unreadable(prefix: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(f"cannot read the prefix from {prefix}: {error.strerror or error}") from error
