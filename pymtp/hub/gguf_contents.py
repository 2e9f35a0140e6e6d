"""The kind of a GGUF file, by its header: a model, a head without its model, or something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pymtp.hub.files import HubFile, HubModel
from pymtp.hub.gguf_header import Header, ReadAt, read_header

MODEL, HEAD = "a model", "a multi-token-prediction head without its model"
PROJECTOR = "an image projector"
_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.(nextn\.)?")

# architectures and general.type values that llama.cpp and its converters write
_OTHER_KINDS = {
    "clip": PROJECTOR,
    "mmproj": PROJECTOR,
    "imatrix": "an importance matrix",
    "adapter": "an adapter",
    "dflash": "a drafter of another kind",
    "dspark": "a drafter of another kind",
    "eagle": "a drafter of another kind",
    "controlvector": "a control vector",
}


class GgufContents(NamedTuple):
    """The contents of a GGUF file, or of all parts of a split one.

    kind: MODEL, HEAD, or the name of another kind of file.
    architecture, width, projector: from the header.
    has_head: whether the file has a head's tensors, under llama.cpp's names, and the key that announces a head.
    announced: whether the file has the key that announces a head.
    reduced: whether the head has its own output layer, for a part of the vocabulary.
    """

    kind: str
    architecture: str
    width: int
    has_head: bool
    announced: bool
    reduced: bool
    projector: str = ""


Inspect = Callable[[HubModel], GgufContents]  # raises ModelLoadError for a file that is damaged or incomplete


class _TensorKinds:
    """The kinds of tensors in a model, from the parts of its file that were read so far."""

    def __init__(self) -> None:
        self.any = self.trunk = self.head = self.foreign_head = self.reduced = False

    def add(self, header: Header, first: Header) -> None:
        blocks = [match for name in header.tensors if (match := _BLOCK.match(name))]
        head_blocks = {match[1] for match in blocks if match[2]}
        n_trunk = first.blocks - first.n_head_blocks if first.n_head_blocks and first.blocks else None
        self.any |= bool(header.tensors)
        self.head |= bool(head_blocks)
        self.foreign_head |= any(name.startswith("mtp.") for name in header.tensors)  # transformers' names
        self.reduced |= "d2t" in header.tensors
        self.trunk |= any(
            match[1] not in head_blocks and (n_trunk is None or int(match[1]) < n_trunk) for match in blocks
        )


def inspect_model(model: HubModel, reader: Callable[[HubFile], ReadAt], repo: str, where: str) -> GgufContents:
    """Find the kind of a model's files by the header of the first part, and of further parts if that is not enough.

    where: the repository or its cache, for messages.

    Raises ModelLoadError for missing parts, and for a file that is not GGUF.
    """
    model.check_complete(where)
    first, *others = (partial(_header, part, reader, repo) for part in model.parts)
    header, tensors = first(), _TensorKinds()
    tensors.add(header, header)
    for read_part in reversed(others):  # from the last part on: the head is the last block
        if tensors.trunk and (tensors.head or not header.n_head_blocks):
            break
        tensors.add(read_part(), header)
    announced = header.n_head_blocks > 0
    return GgufContents(
        kind=_kind(header, tensors),
        architecture=header.architecture,
        width=header.width,
        has_head=announced and (tensors.head or not tensors.any),  # without any tensors, the key decides
        announced=announced,
        reduced=tensors.reduced,
        projector=header.projector,
    )


def _header(part: HubFile, reader: Callable[[HubFile], ReadAt], repo: str) -> Header:
    return read_header(f"{part.path} of {repo}", reader(part))


def _kind(header: Header, tensors: _TensorKinds) -> str:
    for word in (header.kind.lower(), header.architecture.lower().rstrip("0123456789")):
        if word in _OTHER_KINDS:
            return _OTHER_KINDS[word]
    return HEAD if (tensors.head or tensors.foreign_head) and not tensors.trunk else MODEL
