"""Download a model of the hub, its head and its projector, or only their headers."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pymtp.errors import ModelLoadError
from pymtp.hub.cache import RepoCache
from pymtp.hub.file_download import download_file
from pymtp.hub.files import HubFile, HubModel
from pymtp.hub.gguf_header import read_header
from pymtp.hub.names import HubName
from pymtp.hub.remote_repo import RemoteRepo
from pymtp.hub.selection import select_files
from pymtp.hub.snapshot import Notify, Snapshot, call_with_snapshot


class LocalFiles(NamedTuple):
    """The paths of a model, and of its separate head and its projector, if it has them.

    Of a split file, the path of the first part.
    """

    model: Path
    head: Path | None = None
    projector: Path | None = None


def warn(note: str) -> None:
    """Issue a Python warning that points to the line of the caller."""
    warnings.warn(note, stacklevel=2)


def download_model(
    name: HubName,
    *,
    with_head: bool = True,
    with_projector: bool = True,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    notify: Notify = warn,
) -> LocalFiles:
    """Return the cached files of a model, its separate head and its projector; download those that are not cached.

    with_head: False if a head would not be used. Then no head is downloaded, and a missing head is not noted.
    with_projector: False if the model will see no images. Then no projector is downloaded.
    token: None for HF_TOKEN or the token of `hf auth login`, False for no token.
    cache_dir: None for the cache of huggingface_hub.
    notify: called with notes for the user, such as that the model has no head.

    Raises InvalidRequestError if huggingface_hub is missing or cannot read its environment variables, for an invalid
    token, and for a name that matches several models or is invalid;
    ModelLoadError for a repository, revision or file that does not exist or is not accessible, for a failed download,
    and for a file that pymtp cannot run.
    """

    def download(snapshot: Snapshot) -> LocalFiles:
        selection = select_files(snapshot, with_head, with_projector, notify)
        for model in selection:
            if model is None:
                continue
            if snapshot.remote is not None and not snapshot.is_cached(model):
                _download_parts(snapshot.remote, model.parts, snapshot.cache, token)
        if snapshot.remote is not None:
            snapshot.cache.save_ref(name.revision or "main", snapshot.commit)
        return LocalFiles(snapshot.path(selection.model), *(file and snapshot.path(file) for file in selection[1:]))

    return call_with_snapshot(name, token, cache_dir, notify, download)


def _download_parts(remote: RemoteRepo, parts: Sequence[HubFile], cache: RepoCache, token: str | bool | None) -> None:
    """Download with huggingface_hub's progress bar on stderr, which HF_HUB_DISABLE_PROGRESS_BARS hides."""
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
            download_file(remote, part, cache, bar.update, token)


@contextmanager
def download_headers(
    name: HubName, *, with_head: bool = True, with_projector: bool = True, notify: Notify
) -> Iterator[LocalFiles]:
    """Download only the headers of a model's files, to describe the model or to plan its memory.

    The files have their full sizes, with holes in place of the weights, and are deleted at the end. Cached files are
    returned as they are. Raises the errors of `download_model`.
    """
    with TemporaryDirectory(prefix="pymtp-") as folder:

        def download(snapshot: Snapshot) -> LocalFiles:
            model, head, projector = select_files(snapshot, with_head, with_projector, notify)
            path = _header_file(snapshot, model, Path(folder) / "model")
            return LocalFiles(
                path,
                head and _header_file(snapshot, head, Path(folder) / "head"),
                projector and _header_file(snapshot, projector, Path(folder) / "projector"),
            )

        yield call_with_snapshot(name, None, None, notify, download)


def _header_file(snapshot: Snapshot, model: HubModel, folder: Path) -> Path:
    if snapshot.is_cached(model):
        return snapshot.path(model)
    folder.mkdir()
    paths = [folder / part.path.rsplit("/", 1)[-1] for part in model.parts]
    for path, part in zip(paths, model.parts, strict=True):
        read = snapshot.reader(part)
        header = read_header(f"{part.path} of {snapshot.name.repo}", read)
        with open(path, "wb") as file:
            file.write(read(0, header.size))
            try:
                file.truncate(part.size)  # with a hole in place of the weights
            except OverflowError as error:
                raise ModelLoadError(
                    f"{part.path}: the hub says that it has {part.size:,} bytes, more than a file has"
                ) from error
    return paths[0]
