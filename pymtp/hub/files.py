"""Files of a repository, and the models that they make: one file, or all parts of a split one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pymtp.errors import ModelLoadError

_PART = re.compile(r"(?P<whole>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.IGNORECASE)
LISTED = 20  # names in a message


class HubFile(NamedTuple):
    """A file of a repository.

    path: within the repository, with "/".
    size: in bytes.
    etag: the name of its content in the cache: its SHA-256 for large files. "" where only the cache was asked.
    """

    path: str
    size: int
    etag: str = ""


class HubModel(NamedTuple):
    """A model of a repository: the parts of a split file in their order, or one file."""

    name: str  # the path of a whole file; of a split one that of its first part
    parts: tuple[HubFile, ...]
    missing: int = 0  # parts that are not there

    def check_whole(self, where: str) -> None:
        """Raises ModelLoadError for a split file without all of its parts. where: what lacks them."""
        if self.missing:
            raise ModelLoadError(
                f"{where} has {len(self.parts)} of the {len(self.parts) + self.missing} parts of {self.name}"
            )


def models(files: Iterable[HubFile]) -> list[HubModel]:
    """The models among files, by name. Files that are no GGUF are left out."""
    whole: list[HubModel] = []
    split: dict[tuple[str, int], list[HubFile]] = {}
    for file in sorted(files):
        if not file.path.lower().endswith(".gguf"):
            continue
        part = _PART.fullmatch(file.path)
        if part is None:
            whole.append(HubModel(file.path, (file,)))
        else:
            split.setdefault((part["whole"], int(part["parts"])), []).append(file)
    for (name, n), found in split.items():
        numbered = {part["part"]: file for file in found if (part := _PART.fullmatch(file.path))}
        parts = tuple(file for number, file in sorted(numbered.items()) if 1 <= int(number) <= n)
        if parts:
            whole.append(HubModel(f"{name}-00001-of-{n:05}.gguf", parts, missing=n - len(parts)))
    return sorted(whole)


def parts_of(path: Path) -> list[Path]:
    """Name all files of a model by its first: those of a split one in their order."""
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    n = int(part["parts"])
    return [path.with_name(f"{part['whole']}-{number:05}-of-{n:05}.gguf") for number in range(1, n + 1)]


def is_safe(path: str) -> bool:
    """Whether a path that a hub lists stays within a folder, on any system, and can be shown on any terminal."""
    parts = path.split("/")
    return not re.search(r"[\\:\x00-\x1f\x7f-\x9f\ud800-\udfff]", path) and all(
        part not in ("", ".", "..") for part in parts
    )


def listed(names: Sequence[str]) -> str:
    """Names for a message, not all where there are many."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more if names else "none"
