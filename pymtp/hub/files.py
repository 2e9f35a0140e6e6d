"""The files of a repository, grouped into models: a model is one file, or all parts of a split one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pymtp.errors import ModelLoadError

_PART = re.compile(r"(?P<base>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
MAX_NAMES = 20  # names in a message


class HubFile(NamedTuple):
    """A file of a repository.

    path: the path within the repository, with "/".
    size: in bytes.
    etag: the hash by which the cache names the file's content, SHA-256 for large files. "" if the file was listed from
        the cache.
    """

    path: str
    size: int
    etag: str = ""


class HubModel(NamedTuple):
    """A GGUF model of a repository: one file, or the parts of a split one in their order."""

    name: str  # the path of the file, or of the first part of a split file
    parts: tuple[HubFile, ...]
    missing: int = 0  # number of missing parts

    def check_complete(self, where: str) -> None:
        """Raise ModelLoadError if parts of a split file are missing. where: the repository or its cache."""
        if self.missing:
            raise ModelLoadError(
                f"{where} has {len(self.parts)} of the {len(self.parts) + self.missing} parts of {self.name}"
            )


def group_models(files: Iterable[HubFile]) -> list[HubModel]:
    """Group the GGUF files into models, sorted by name."""
    grouped: list[HubModel] = []
    split: dict[tuple[str, int], list[HubFile]] = {}
    for file in sorted(files):
        if not file.path.lower().endswith(".gguf"):
            continue
        part = _PART.fullmatch(file.path)
        if part is None:
            grouped.append(HubModel(file.path, (file,)))
        else:
            split.setdefault((part["base"], int(part["parts"])), []).append(file)
    for (base, n_parts), group in split.items():
        numbered = {part["part"]: file for file in group if (part := _PART.fullmatch(file.path))}
        parts = tuple(file for number, file in sorted(numbered.items()) if 1 <= int(number) <= n_parts)
        if parts:
            grouped.append(HubModel(f"{base}-00001-of-{n_parts:05}.gguf", parts, missing=n_parts - len(parts)))
    return sorted(grouped)


def split_paths(path: Path) -> list[Path]:
    """Return the paths of all parts of a model, by the path of the first part; only `path` if it is not split."""
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    n_parts = int(part["parts"])
    return [path.with_name(f"{part['base']}-{number:05}-of-{n_parts:05}.gguf") for number in range(1, n_parts + 1)]


def is_safe_path(path: str) -> bool:
    """Tell whether a path of a hub's list stays in its folder on any system, and is safe to print on a terminal."""
    parts = path.split("/")
    return not re.search(r"[\\:\x00-\x1f\x7f-\x9f\ud800-\udfff]", path) and all(
        part not in ("", ".", "..") for part in parts
    )


def join_names(names: Sequence[str]) -> str:
    """Join names for a message: only the first MAX_NAMES of many; "none" for no names."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more if names else "none"
