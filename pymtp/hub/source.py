"""A repository to choose from: as the hub has it, or as the cache has it where the hub is not asked or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.cache import Cache
from pymtp.hub.errors import UnreachableError, check_connection, check_installed, explained
from pymtp.hub.files import HubFile, HubModel, is_safe
from pymtp.hub.gguf_header import Read
from pymtp.hub.names import HubName
from pymtp.hub.repository import Remote

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """
    where: what holds the files, for messages. remote: None where only the cache is looked into.
    """

    name: HubName
    cache: Cache
    commit: str
    files: list[HubFile]
    where: str
    remote: Remote | None = None

    def holds(self, model: HubModel) -> bool:
        """Tell whether all parts are in the cache."""
        return all(self.cache.holds(self.commit, part) for part in model.parts)

    def path(self, model: HubModel) -> Path:
        """Find a model in the cache, a split one by its first part."""
        return self.cache.path(self.commit, model.parts[0])

    def reader(self, file: HubFile) -> Read:
        """Read a file where it is: in the cache, else on the hub."""
        remote = self.remote
        if remote is None or self.cache.holds(self.commit, file):
            return _reader(self.cache.path(self.commit, file))
        return lambda offset, n: remote.bytes_of(file, offset, n)


def use_source(
    name: HubName,
    token: str | bool | None,
    cache_dir: str | os.PathLike[str] | None,
    say: Say,
    use: Callable[[Source], T],
) -> T:
    """Return what `use` makes of the repository. say: gets a note where the cache is taken for lack of the hub.

    token: None for HF_TOKEN or the one of `hf auth login`, False for none.
    cache_dir: None for huggingface_hub's own.

    Raises InvalidRequestError where huggingface_hub is missing or cannot read its variables, and for a token that is
    none; ModelLoadError for what is not there, may not be read or cannot be brought.
    """
    check_installed()
    from huggingface_hub import constants

    cache = Cache(name.repo, cache_dir)
    if name.revision is not None and not is_safe(name.revision):
        raise InvalidRequestError(f"{name.revision!r:.100} is no branch, tag or commit")
    if constants.HF_HUB_OFFLINE:
        with explained(name):
            return use(_cached(name, cache, "HF_HUB_OFFLINE is set, and the cache"))
    check_connection()
    try:
        with explained(name):
            remote = Remote(name, token)
    except UnreachableError as error:
        try:
            with explained(name):
                used = use(_cached(name, cache, "the cache"))
        except ModelLoadError as missing:
            raise ModelLoadError(f"{error}; {missing}") from error
        say(f"{error}; the model in the cache is taken")
        return used
    with explained(name):
        return use(Source(name, cache, remote.commit, remote.files, name.repo, remote))


def _cached(name: HubName, cache: Cache, where: str) -> Source:
    commit = cache.commit(name.revision or "main")
    files = cache.files(commit) if commit else []
    if commit is None or not files:
        raise ModelLoadError(f"{where} has nothing of {name.repo}" + (f" at {name.revision}" if name.revision else ""))
    return Source(name, cache, commit, files, f"{where} of {name.repo}")


def _reader(path: Path) -> Read:
    def read(offset: int, n: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(n)

    return read
