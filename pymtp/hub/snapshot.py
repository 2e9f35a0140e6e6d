"""One revision of a repository: from the hub, or from the cache in offline mode and if the hub is unreachable."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.cache import RepoCache
from pymtp.hub.errors import UnreachableError, check_installed, check_settings, translate_errors
from pymtp.hub.files import HubFile, HubModel, is_safe_path
from pymtp.hub.gguf_header import ReadAt
from pymtp.hub.names import HubName
from pymtp.hub.remote_repo import RemoteRepo

Notify = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit of a repository.

    where: the repository or its cache, for messages.
    remote: the repository on the hub; None if only the cache is used.
    """

    name: HubName
    cache: RepoCache
    commit: str
    files: list[HubFile]
    where: str
    remote: RemoteRepo | None = None

    def is_cached(self, model: HubModel) -> bool:
        """Tell whether all parts of a model are in the cache."""
        return all(self.cache.has_file(self.commit, part) for part in model.parts)

    def path(self, model: HubModel) -> Path:
        """Return the path of a model in the cache, or of the first part of a split model."""
        return self.cache.path(self.commit, model.parts[0])

    def reader(self, file: HubFile) -> ReadAt:
        """Return a function that reads a file from the cache, or from the hub if it is not cached."""
        remote = self.remote
        if remote is None or self.cache.has_file(self.commit, file):
            return file_reader(self.cache.path(self.commit, file))
        return lambda offset, n: remote.read_range(file, offset, n)


def call_with_snapshot(
    name: HubName,
    token: str | bool | None,
    cache_dir: str | os.PathLike[str] | None,
    notify: Notify,
    use: Callable[[Snapshot], T],
) -> T:
    """Return the result of `use` for the snapshot on the hub, or for the cached one if the hub is not reachable.

    token: None for HF_TOKEN or the token of `hf auth login`, False for no token.
    cache_dir: None for the cache of huggingface_hub.
    notify: called with a note if the cache is used because the hub is not reachable.

    Raises InvalidRequestError if huggingface_hub is missing or cannot read its environment variables, and for an
    invalid token; ModelLoadError for a repository or revision that does not exist or is not accessible, and for a
    failed download.
    """
    check_installed()
    from huggingface_hub import constants

    cache = RepoCache(name.repo, cache_dir)
    if name.revision is not None and not is_safe_path(name.revision):
        raise InvalidRequestError(f"{name.revision!r:.100} is not a branch, tag or commit")
    if constants.HF_HUB_OFFLINE:
        with translate_errors(name):
            return use(_cached_snapshot(name, cache, "HF_HUB_OFFLINE is set, and the cache"))
    check_settings()
    try:
        with translate_errors(name):
            remote = RemoteRepo(name, token)
    except UnreachableError as error:
        try:
            with translate_errors(name):
                result = use(_cached_snapshot(name, cache, "the cache"))
        except ModelLoadError as missing:
            raise ModelLoadError(f"{error}; {missing}") from error
        notify(f"{error}; the cached model is used")
        return result
    with translate_errors(name):
        return use(Snapshot(name, cache, remote.commit, remote.files, name.repo, remote))


def _cached_snapshot(name: HubName, cache: RepoCache, where: str) -> Snapshot:
    commit = cache.commit(name.revision or "main")
    files = cache.files(commit) if commit else []
    if commit is None or not files:
        raise ModelLoadError(f"{where} has nothing of {name.repo}" + (f" at {name.revision}" if name.revision else ""))
    return Snapshot(name, cache, commit, files, f"{where} of {name.repo}")


def file_reader(path: Path) -> ReadAt:
    """Return a function that reads a file of this machine."""

    def read(offset: int, n: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(n)

    return read
