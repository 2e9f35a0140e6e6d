"""The hub's cache of one repository, in the layout that huggingface_hub documents and shares between programs:
blobs/ETAG, snapshots/COMMIT/PATH, refs/REVISION."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from pymtp.hub.files import HubFile


class Cache:
    """What is there of a repository, and where more of it goes."""

    def __init__(self, repo: str, folder: str | os.PathLike[str] | None = None) -> None:
        """folder: of all repositories; None for huggingface_hub's: HF_HUB_CACHE, or within HF_HOME."""
        from huggingface_hub import constants

        self.folder = Path(constants.HF_HUB_CACHE if folder is None else folder)
        self._name = "models--" + repo.replace("/", "--")
        self._root = self.folder / self._name

    def commit(self, revision: str) -> str | None:
        """The commit that a revision was when it was last asked for; None where that is not known."""
        try:
            return (self._root / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return revision if (self._root / "snapshots" / revision).is_dir() else None

    def remember(self, revision: str, commit: str) -> None:
        """Notes the commit of a revision."""
        if revision != commit and self.commit(revision) != commit:
            path = self._root / "refs" / revision
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit, encoding="utf-8")

    def files(self, commit: str) -> list[HubFile]:
        """The files of a commit that are there."""
        snapshot = self._root / "snapshots" / commit
        return [
            HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size)
            for path in snapshot.rglob("*")
            if path.is_file()
        ]

    def path(self, commit: str, file: HubFile) -> Path:
        """Where a file is, once it is there."""
        return self._root / "snapshots" / commit / file.path

    def holds(self, commit: str, file: HubFile) -> bool:
        """Whether a file is there with all of its bytes."""
        path = self.path(commit, file)
        return path.is_file() and path.stat().st_size == file.size

    def blob(self, file: HubFile) -> Path:
        """Where the content of a file is, whatever its commits."""
        return self._root / "blobs" / file.etag

    def lock(self, file: HubFile) -> AbstractContextManager[object]:
        """Keeps others, huggingface_hub too, from bringing the same file meanwhile."""
        from huggingface_hub.utils import WeakFileLock

        path = self.folder / ".locks" / self._name / f"{file.etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.blob(file).parent.mkdir(parents=True, exist_ok=True)
        lock: AbstractContextManager[object] = WeakFileLock(path)
        return lock
