"""The cache of one repository, in the layout that huggingface_hub documents and that programs share.

Files: blobs/ETAG, snapshots/COMMIT/PATH, refs/REVISION.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from pymtp.hub.files import HubFile


class RepoCache:
    """The cached files of a repository, and the paths where further files belong."""

    def __init__(self, repo: str, folder: str | os.PathLike[str] | None = None) -> None:
        """Open the cache of a repository.

        folder: the cache of all repositories; None for the cache of huggingface_hub: HF_HUB_CACHE, or a
            folder in HF_HOME.
        """
        from huggingface_hub import constants

        self.folder = Path(constants.HF_HUB_CACHE if folder is None else folder)
        self._name = "models--" + repo.replace("/", "--")
        self._root = self.folder / self._name

    def commit(self, revision: str) -> str | None:
        """Return the last known commit of a revision; None if it is not known."""
        try:
            return (self._root / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return revision if (self._root / "snapshots" / revision).is_dir() else None

    def save_ref(self, revision: str, commit: str) -> None:
        """Save the commit of a revision for later calls of `commit`."""
        if revision != commit and self.commit(revision) != commit:
            path = self._root / "refs" / revision
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit, encoding="utf-8")

    def files(self, commit: str) -> list[HubFile]:
        """List the cached files of a commit."""
        snapshot = self._root / "snapshots" / commit
        return [
            HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size)
            for path in snapshot.rglob("*")
            if path.is_file()
        ]

    def path(self, commit: str, file: HubFile) -> Path:
        """Return the path of a file in the cache; it may not exist yet."""
        return self._root / "snapshots" / commit / file.path

    def has_file(self, commit: str, file: HubFile) -> bool:
        """Tell whether a file is cached with all of its bytes."""
        path = self.path(commit, file)
        return path.is_file() and path.stat().st_size == file.size

    def blob(self, file: HubFile) -> Path:
        """Return the path of a file's content, which all commits share."""
        return self._root / "blobs" / file.etag

    def lock(self, file: HubFile) -> AbstractContextManager[object]:
        """Return a lock that keeps other processes, also those of huggingface_hub, from downloading the same file."""
        from huggingface_hub.utils import WeakFileLock

        path = self.folder / ".locks" / self._name / f"{file.etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.blob(file).parent.mkdir(parents=True, exist_ok=True)
        lock: AbstractContextManager[object] = WeakFileLock(path)
        return lock
