"""What is in the files of a repository by their headers: a model, a head without its model, or something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from pymtp.hub.files import HubFile, HubModel
from pymtp.hub.gguf_header import Header, Read, read_header

MODEL, HEAD = "a model", "a multi-token-prediction head without its model"
_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.(nextn\.)?")

# what llama.cpp and its converters write as architecture or general.type
_OTHERS = {
    "clip": "an image projector",
    "mmproj": "an image projector",
    "imatrix": "an importance matrix",
    "adapter": "an adapter",
    "dflash": "a drafter of another kind",
    "dspark": "a drafter of another kind",
    "eagle": "a drafter of another kind",
    "controlvector": "a control vector",
}


class Contents(NamedTuple):
    """
    kind: MODEL, HEAD, or in words what else it is.
    architecture, width: as the header says them.
    has_head: whether there are a head's tensors by llama.cpp's names, and the key that it knows a head by.
    announced: whether that key is there.
    reduced: whether the head has another output layer, of part of the vocabulary.
    """

    kind: str
    architecture: str
    width: int
    has_head: bool
    announced: bool
    reduced: bool


Look = Callable[[HubModel], Contents]  # raises ModelLoadError for files that are damaged or not all there


class _Seen:
    """Tensors of a model, by the parts of its file that were read."""

    def __init__(self) -> None:
        self.any = self.trunk = self.head = self.named_otherwise = self.reduced = False

    def add(self, header: Header, first: Header) -> None:
        numbered = [found for name in header.tensors if (found := _BLOCK.match(name))]
        of_head = {found[1] for found in numbered if found[2]}
        trunk = first.blocks - first.announced if first.announced and first.blocks else None
        self.any |= bool(header.tensors)
        self.head |= bool(of_head)
        self.named_otherwise |= any(name.startswith("mtp.") for name in header.tensors)
        self.reduced |= "d2t" in header.tensors
        self.trunk |= any(found[1] not in of_head and (trunk is None or int(found[1]) < trunk) for found in numbered)


def look_into(model: HubModel, reader: Callable[[HubFile], Read], repo: str, where: str) -> Contents:
    """Read headers until it is known what a model's files hold: that of the first part, and of a split file those of
    as many others as it takes. where: what of the repository holds the files, for messages.

    Raises ModelLoadError for parts that are missing, and for what is no GGUF.
    """
    model.check_whole(where)
    first, *others = (partial(_header, part, reader, repo) for part in model.parts)
    header, seen = first(), _Seen()
    seen.add(header, header)
    for other in reversed(others):  # the head's block is the last one
        if seen.trunk and (seen.head or not header.announced):
            break
        seen.add(other(), header)
    return Contents(
        kind=_kind(header, seen),
        architecture=header.architecture,
        width=header.width,
        has_head=header.announced > 0 and (seen.head or not seen.any),  # without tensors, what is said counts
        announced=header.announced > 0,
        reduced=seen.reduced,
    )


def _header(part: HubFile, reader: Callable[[HubFile], Read], repo: str) -> Header:
    return read_header(f"{part.path} of {repo}", reader(part))


def _kind(header: Header, seen: _Seen) -> str:
    for said in _words(header):
        if said in _OTHERS:
            return _OTHERS[said]
    return HEAD if (seen.head or seen.named_otherwise) and not seen.trunk else MODEL


def _words(header: Header) -> Iterator[str]:
    yield header.kind.lower()
    yield header.architecture.lower().rstrip("0123456789")
