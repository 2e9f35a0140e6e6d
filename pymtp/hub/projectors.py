"""Find the projector for a model, in the way of llama.cpp's -hf: see heads.py, whose order of files is the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.filenames import is_projector_name, quantization
from pymtp.hub.files import HubModel
from pymtp.hub.gguf_contents import PROJECTOR, Inspect
from pymtp.hub.gguf_header import read_header
from pymtp.hub.heads import rank
from pymtp.hub.snapshot import file_reader

PREFERRED = ("F16", "BF16")  # of files with the same number of bits


def find_projector(candidates: Sequence[HubModel], model: HubModel, inspect: Inspect) -> HubModel | None:
    """Find the projector for a model: the best one of those whose rows are as wide as the model's.

    Only files whose names mention a projector are inspected. A damaged one is skipped.
    """

    def order(file: HubModel) -> tuple[object, ...]:
        *nearest, name = rank(model, file)
        tag, _ = quantization(file.name)
        return (*nearest, PREFERRED.index(tag) if tag in PREFERRED else len(PREFERRED), name)

    width = inspect(model).width
    for file in sorted(filter(lambda file: is_projector_name(file.name), candidates), key=order):
        with suppress(ModelLoadError):
            contents = inspect(file)
            if contents.kind == PROJECTOR and contents.width in (0, width):
                return file
    return None


def projectors_beside(model: Path) -> list[Path]:
    """Return the projectors in the folder of a model's file whose rows are as wide as the model's.

    Files whose headers cannot be read are left out.
    """
    named = sorted(path for path in model.parent.glob("*.gguf") if is_projector_name(path.name) and path != model)
    with suppress(ModelLoadError, OSError):
        width = read_header(model.name, file_reader(model)).width if named else 0
        return [path for path in named if _projector_width(path) in (0, width)]
    return []


def _projector_width(path: Path) -> int | None:
    """Return the width of a projector's rows, 0 if it is not known; None for another file."""
    with suppress(ModelLoadError, OSError):
        if path.is_file() and (header := read_header(path.name, file_reader(path))).architecture == "clip":
            return header.width
    return None
