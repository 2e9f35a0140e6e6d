"""Brings a file into the hub's cache. huggingface_hub throws a download away that is interrupted; this one goes on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from hashlib import sha1, sha256
from pathlib import Path
from typing import BinaryIO

from pymtp.errors import ModelLoadError
from pymtp.hub import errors
from pymtp.hub.cache import Cache
from pymtp.hub.errors import is_passing, transport_errors
from pymtp.hub.files import HubFile
from pymtp.hub.repository import Remote

PIECE = 1024**3  # bytes of a request: links that the hub redirects to expire, and servers limit what one answer holds
_HASHED = 16 * 1024**2  # bytes read at once

Came = Callable[[int], None]  # so many bytes more are there


def download(remote: Remote, file: HubFile, cache: Cache, came: Came, token: str | bool | None = None) -> Path:
    """The path of a file in the cache, brought where it is not there. Goes on where an earlier call was interrupted.

    Raises ModelLoadError for content that is not what the hub says it is, and where the disk has no room; else as
    Remote.read.
    """
    from huggingface_hub import hf_hub_download

    path = cache.path(remote.commit, file)
    if cache.holds(remote.commit, file):
        came(file.size)
        return path
    if not file.etag:
        raise ModelLoadError(f"{file.path}: the hub names no hash of its content, under which it would be kept")
    with cache.lock(file):
        blob = cache.blob(file)
        if blob.is_file() and blob.stat().st_size == file.size:
            came(file.size)
        else:
            _bring(remote, file, blob, came)
    if path.is_file() and path.stat().st_size != file.size:
        path.unlink()
    # the link to it, or where the system has no links what stands for one
    hf_hub_download(remote.name.repo, file.path, revision=remote.commit, cache_dir=cache.folder, token=token)
    return path


def _bring(remote: Remote, file: HubFile, blob: Path, came: Came) -> None:
    partial = blob.with_name(f"{blob.name}.incomplete")
    with open(partial, "ab", buffering=0) as out:
        if out.tell() > file.size:
            out.truncate(0)
        _check_room(blob.parent, file, file.size - os.fstat(out.fileno()).st_size)
        came(os.fstat(out.fileno()).st_size)
        failed = 0
        while (have := os.fstat(out.fileno()).st_size) < file.size:
            try:
                _append(remote, file, out, have, came)
                problem = None
            except transport_errors() as error:
                if not is_passing(error):
                    raise
                problem = error
            if os.fstat(out.fileno()).st_size > have:
                failed = 0
                continue
            failed += 1
            if failed == errors.TRIES:
                raise problem or ModelLoadError(f"{file.path}: the hub sends nothing after {have:,} bytes")
            time.sleep(errors.pause(failed))
    if _digest(partial, file) != file.etag:
        partial.unlink()
        raise ModelLoadError(f"{file.path} was damaged on its way: its hash is not the hub's. Try again")
    os.replace(partial, blob)


def _append(remote: Remote, file: HubFile, out: BinaryIO, have: int, came: Came) -> None:
    """Adds what comes of the next piece."""
    for _, piece in remote.read(file, have, min(have + PIECE, file.size)):
        out.write(piece)
        came(len(piece))


def _digest(path: Path, file: HubFile) -> str:
    """As the etag: SHA-256, or of what is no large file git's SHA-1."""
    found = sha256() if len(file.etag) == 64 else sha1(b"blob %d\0" % file.size)
    with open(path, "rb") as content:
        while piece := content.read(_HASHED):
            found.update(piece)
    return found.hexdigest()


def _check_room(folder: Path, file: HubFile, n: int) -> None:
    free = shutil.disk_usage(folder).free
    if n > free:
        raise ModelLoadError(
            f"{file.path} needs {n / 2**30:,.1f} GiB more, {folder} has room for {free / 2**30:,.1f}: "
            "HF_HUB_CACHE names another folder"
        )
