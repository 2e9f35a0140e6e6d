"""Find the projector for a model, in the way of llama.cpp's -hf: see heads.py, whose order of files is the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.filenames import is_projector_name, quantization
from pymtp.hub.files import HubModel
from pymtp.hub.gguf_contents import PROJECTOR, Inspect
from pymtp.hub.gguf_header import Header, read_header
from pymtp.hub.heads import rank
from pymtp.hub.snapshot import file_reader

PREFERRED = ("F16", "BF16")  # types, the first of which wins among files with the same number of bits
KIND = "qwen3vl_merger"  # the kind of the projectors of MODELS: the architectures that have positions of images
MODELS = ("qwen35", "qwen35moe")


def find_projector(candidates: Sequence[HubModel], model: HubModel, inspect: Inspect) -> HubModel | None:
    """Find the projector for a model: the best one of those of its kind whose rows are as wide as the model's.

    Only files whose names mention a projector are inspected. A damaged one is skipped.
    """

    def order(file: HubModel) -> tuple[object, ...]:
        *nearest, name = rank(model, file)
        tag, _ = quantization(file.name)
        return (*nearest, PREFERRED.index(tag) if tag in PREFERRED else len(PREFERRED), name)

    named = sorted(filter(lambda file: is_projector_name(file.name), candidates), key=order)
    if not named or (of_model := inspect(model)).architecture not in MODELS:
        return None
    for file in named:
        with suppress(ModelLoadError):
            contents = inspect(file)
            if contents.kind == PROJECTOR and contents.projector == KIND and contents.width == of_model.width:
                return file
    return None


def projectors_beside(model: Path) -> list[Path]:
    """Return the projectors in the folder of a model's file that are of its kind and width.

    Files whose headers cannot be read are left out.
    """
    named = sorted(path for path in model.parent.glob("*.gguf") if is_projector_name(path.name) and path != model)
    header = _header(model) if named else None
    if header is None or header.architecture not in MODELS:
        return []
    return [
        path for path in named if (found := _header(path)) and (found.projector, found.width) == (KIND, header.width)
    ]


def _header(path: Path) -> Header | None:
    """Return the header of a GGUF file, None if it cannot be read."""
    with suppress(ModelLoadError, OSError):
        return read_header(path.name, file_reader(path)) if path.is_file() else None
    return None
