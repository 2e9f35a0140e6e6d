"""From a name on the hub to files on this machine."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pymtp.hub.cache import Cache
from pymtp.hub.download import download
from pymtp.hub.files import HubFile
from pymtp.hub.names import HubName
from pymtp.hub.repository import Remote
from pymtp.hub.selection import select
from pymtp.hub.source import Say, Source, use_source


class Pulled(NamedTuple):
    """Paths of a model and of its head, where that is a file of its own; of split ones the first part's."""

    model: Path
    head: Path | None = None


def warn(note: str) -> None:
    """Warn the caller's caller."""
    warnings.warn(note, stacklevel=2)


def pull(
    name: HubName,
    *,
    with_head: bool = True,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    say: Say = warn,
) -> Pulled:
    """Bring a model, and its head where that is a file of its own, into the hub's cache where they are not there.

    with_head: False where no head is of use: none comes, and none is missed.
    token: None for HF_TOKEN or the one of `hf auth login`, False for none.
    cache_dir: None for huggingface_hub's own.
    say: gets what a user should know, such as that the model has no head.

    Raises InvalidRequestError where huggingface_hub is missing or cannot read its variables, for a token that is none,
    and for names that mean no model or several;
    ModelLoadError for what is not there, may not be read, cannot be brought, or is no model that pymtp runs.
    """

    def bring(source: Source) -> Pulled:
        chosen = select(source, with_head, say)
        files = [each for each in chosen if each is not None]
        for each in files:
            if source.remote is not None and not source.holds(each):
                _bring(source.remote, each.parts, source.cache, token)
        if source.remote is not None:
            source.cache.remember(name.revision or "main", source.commit)
        return Pulled(*map(source.path, files))

    return use_source(name, token, cache_dir, say, bring)


def _bring(remote: Remote, parts: Sequence[HubFile], cache: Cache, token: str | bool | None) -> None:
    """Download with a bar on stderr, as huggingface_hub shows it: HF_HUB_DISABLE_PROGRESS_BARS hides it."""
    from huggingface_hub.utils import tqdm

    with tqdm(
        total=sum(part.size for part in parts),
        unit="B",
        unit_scale=True,
        desc=parts[0].path.rsplit("/", 1)[-1],
        disable=True if sys.stderr is None else None,
        name="pymtp.hub",
    ) as bar:
        for part in parts:
            download(remote, part, cache, bar.update, token)
