"""Download a file into the hub's cache, and resume interrupted downloads, which huggingface_hub does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from hashlib import sha1, sha256
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.cache import RepoCache
from pymtp.hub.files import HubFile
from pymtp.hub.remote_repo import RemoteRepo

_HASH_BYTES = 16 * 1024**2  # bytes that are read at once to compute a hash

OnProgress = Callable[[int], None]  # called with the number of bytes that were added since the last call


def download_file(
    remote: RemoteRepo, file: HubFile, cache: RepoCache, on_progress: OnProgress, token: str | bool | None = None
) -> Path:
    """Return the path of a file in the cache, and download it first if it is not there.

    Resumes the download of an interrupted earlier call.

    Raises ModelLoadError if the content does not have the hub's hash, and if the disk is full; also the
    errors of RemoteRepo.read.
    """
    from huggingface_hub import hf_hub_download

    path = cache.path(remote.commit, file)
    if cache.has_file(remote.commit, file):
        on_progress(file.size)
        return path
    if not file.etag:
        raise ModelLoadError(f"{file.path}: the hub names no hash of its content, which the cache needs")
    with cache.lock(file):
        blob = cache.blob(file)
        if blob.is_file() and blob.stat().st_size == file.size:
            on_progress(file.size)
        else:
            _download_blob(remote, file, blob, on_progress)
    if path.is_file() and path.stat().st_size != file.size:
        path.unlink()
    # hf_hub_download links `path` to the blob, or copies it if the system has no links
    hf_hub_download(remote.name.repo, file.path, revision=remote.commit, cache_dir=cache.folder, token=token)
    return path


def _download_blob(remote: RemoteRepo, file: HubFile, blob: Path, on_progress: OnProgress) -> None:
    partial = blob.with_name(f"{blob.name}.incomplete")
    with open(partial, "ab") as out:
        if out.tell() > file.size:
            out.seek(out.truncate(0))
        _check_disk_space(blob.parent, file, file.size - out.tell())
        on_progress(out.tell())
        for data in remote.read(file, out.tell(), file.size):
            out.write(data)
            on_progress(len(data))
    if _digest(partial, file) != file.etag:
        partial.unlink()
        raise ModelLoadError(f"{file.path} was damaged on its way: its hash is not the hub's. Try again")
    os.replace(partial, blob)


def _digest(path: Path, file: HubFile) -> str:
    """Return the hash of a file of the kind that is its etag: SHA-256 for large files, git's SHA-1 for others."""
    digest = sha256() if len(file.etag) == 64 else sha1(b"blob %d\0" % file.size)
    with open(path, "rb") as content:
        while data := content.read(_HASH_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _check_disk_space(folder: Path, file: HubFile, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise ModelLoadError(
            f"{file.path} needs {n_bytes / 2**30:,.1f} GiB more, {folder} has room for {free / 2**30:,.1f}: "
            "set HF_HUB_CACHE to another folder"
        )
