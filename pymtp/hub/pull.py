"""From a name on the hub to a file on this machine."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache as remembered
from pathlib import Path

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.cache import Cache
from pymtp.hub.choose import choose
from pymtp.hub.download import download
from pymtp.hub.files import HubFile, HubModel, is_safe, models
from pymtp.hub.header import Header, read_header
from pymtp.hub.names import HubName, is_hub_name, read_name
from pymtp.hub.needed import UnreachableError, check_connection, check_installed, explained
from pymtp.hub.remote import Remote

RUNS = ("qwen35", "qwen35moe", "qwen3next")  # architectures

Say = Callable[[str], None]


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=2)


def brought(model: str | os.PathLike[str] | None, say: Say = _warn) -> str | os.PathLike[str] | None:
    """The file of a model: of the hub's cache where `model` is a name of the hub, else `model`. Raises what `pull`
    raises."""
    return pull(read_name(model), say=say) if isinstance(model, str) and is_hub_name(model) else model


def pull(
    name: HubName,
    *,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    say: Say = _warn,
) -> Path:
    """The path of a model, brought into the hub's cache where it is not there; of a split one the first part's.

    token: None for HF_TOKEN or the one of `hf auth login`, False for none.
    cache_dir: None for huggingface_hub's own.
    say: gets what a user should know, such as that the model has no head.

    Raises InvalidRequestError where huggingface_hub is missing or cannot read its variables, for a token that is none,
    and for names that mean no model or several;
    ModelLoadError for what is not there, may not be read, cannot be brought, or is no model that pymtp runs.
    """
    check_installed()
    from huggingface_hub import constants

    cache = Cache(name.repo, cache_dir)
    if name.revision is not None and not is_safe(name.revision):
        raise InvalidRequestError(f"{name.revision!r:.100} is no branch, tag or commit")
    if constants.HF_HUB_OFFLINE:
        with explained(name):
            return _cached(name, cache, "HF_HUB_OFFLINE is set, and the cache", say)
    check_connection()
    try:
        with explained(name):
            remote = Remote(name, token)
    except UnreachableError as error:
        try:
            with explained(name):
                path = _cached(name, cache, "the cache", say)
        except ModelLoadError as missing:
            raise ModelLoadError(f"{error}; {missing}") from error
        say(f"{error}; the model in the cache is taken")
        return path
    with explained(name):
        return _brought(remote, cache, token, say)


def _cached(name: HubName, cache: Cache, where: str, say: Say) -> Path:
    """A model that is there already."""
    commit = cache.commit(name.revision or "main")
    files = cache.files(commit) if commit else []
    if commit is None or not files:
        raise ModelLoadError(f"{where} has nothing of {name.repo}" + (f" at {name.revision}" if name.revision else ""))
    model = _chosen(models(files), name, lambda file: _reader(cache.path(commit, file)), f"{where} of {name.repo}", say)
    return cache.path(commit, model.parts[0])


def _brought(remote: Remote, cache: Cache, token: str | bool | None, say: Say) -> Path:
    """A model from the hub, but for what is there of it."""
    commit = remote.commit

    def reader(file: HubFile) -> Callable[[int, int], bytes]:
        if cache.holds(commit, file):
            return _reader(cache.path(commit, file))
        return lambda offset, n: remote.bytes_of(file, offset, n)

    model = _chosen(models(remote.files), remote.name, reader, remote.name.repo, say)
    if not all(cache.holds(commit, part) for part in model.parts):
        _bring(remote, model.parts, cache, token)
    cache.remember(remote.name.revision or "main", commit)
    return cache.path(commit, model.parts[0])


def _bring(remote: Remote, parts: Sequence[HubFile], cache: Cache, token: str | bool | None) -> None:
    """With a bar on stderr, as huggingface_hub shows it: HF_HUB_DISABLE_PROGRESS_BARS hides it."""
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


def _chosen(
    found: Sequence[HubModel],
    name: HubName,
    reader: Callable[[HubFile], Callable[[int, int], bytes]],
    where: str,
    say: Say,
) -> HubModel:
    """The model that is meant, looked at before any of its weights come."""

    @remembered
    def header(model: HubModel) -> Header:
        model.check_whole(where)
        return read_header(f"{model.name} of {name.repo}", reader(model.parts[0]))

    def has_head(model: HubModel) -> bool:
        try:
            return header(model).has_head
        except ModelLoadError:  # of one among others; where it is the one that is meant, it is told below
            return False

    model = choose(found, name.wanted, has_head, where)
    about = header(model)
    if about.architecture not in RUNS:
        runs = f"pymtp runs {', '.join(RUNS[:-1])} and {RUNS[-1]}"
        raise ModelLoadError(f"{model.name} of {name.repo}: architecture is {about.architecture!r}, {runs}")
    if not about.has_head:
        say(f"{model.name} of {name.repo} has no multi-token-prediction head: it is decoded without drafts")
    return model


def _reader(path: Path) -> Callable[[int, int], bytes]:
    def read(offset: int, n: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(n)

    return read
