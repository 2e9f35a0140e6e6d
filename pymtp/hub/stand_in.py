"""Files that stand in for a model of the hub where its header is enough: to look at it, and to plan its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from pymtp.errors import ModelLoadError
from pymtp.hub.files import HubFile, HubModel
from pymtp.hub.gguf_header import read_header
from pymtp.hub.names import HubName
from pymtp.hub.pull import Pulled
from pymtp.hub.selection import select
from pymtp.hub.source import Say, Source, use_source


@contextmanager
def headers(name: HubName, *, with_head: bool = True, say: Say) -> Iterator[Pulled]:
    """Bring the headers of a model and of its head, and none of their weights: files of the right sizes, which have
    holes for these, and which go at the end. What the cache has is taken from there. Raises as `pull`."""
    with TemporaryDirectory(prefix="pymtp-") as folder:

        def stand_in(source: Source) -> Pulled:
            chosen = select(source, with_head, say)
            model = _file(source, chosen.model, Path(folder) / "model")
            return Pulled(model, chosen.head and _file(source, chosen.head, Path(folder) / "head"))

        yield use_source(name, None, None, say, stand_in)


def _file(source: Source, model: HubModel, folder: Path) -> Path:
    if source.holds(model):
        return source.path(model)
    folder.mkdir()
    paths = [folder / part.path.rsplit("/", 1)[-1] for part in model.parts]
    for path, part in zip(paths, model.parts, strict=True):
        read = source.reader(part)
        header = read_header(f"{part.path} of {source.name.repo}", read)
        with open(path, "wb") as file:
            file.write(read(0, header.size))
            _make_hole(file, part)
    return paths[0]


def _make_hole(file: BinaryIO, part: HubFile) -> None:
    """Bring a file to the part's size, writing nothing. Raises ModelLoadError where no file has that size."""
    try:
        file.truncate(part.size)
    except OverflowError as error:
        raise ModelLoadError(
            f"{part.path}: the hub says that it has {part.size:,} bytes, more than a file has"
        ) from error
