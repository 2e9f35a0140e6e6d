"""The types of the weights in a model's files: the number of tensors and bytes of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pymtp.errors import ModelLoadError
from pymtp.hub.gguf_header import ReadAt, read_header
from pymtp.model.files import model_parts

# by ggml's numbers: the name, the elements of a block, and its bytes (ggml/include/ggml.h, ggml/src/ggml-common.h)
TYPES = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110),
    12: ("q4_K", 256, 144),
    13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
    42: ("q2_0", 64, 18),
}


class WeightType(NamedTuple):
    """A type of weights in a model. name: ggml's name of the type."""

    name: str
    tensors: int
    bytes: int


def weight_types(files: Sequence[str | PathLike[str]]) -> list[WeightType]:
    """Count the tensors and bytes of each type in models' files, with all parts of split ones; most bytes first.

    Only headers are read. Raises ModelLoadError for a file that is damaged or cannot be read.
    """
    tensors, n_bytes = Counter[str](), Counter[str]()
    for part in (os.fsdecode(part) for file in files for part, _ in model_parts(Path(file))):
        try:
            with open(part, "rb") as opened:
                header = read_header(part, _reader(opened))
        except OSError as error:
            raise ModelLoadError(f"{part}: {error.strerror}") from error
        for number, n in header.types:
            name, block, block_bytes = TYPES.get(number, (f"type {number}", 1, 0))
            tensors[name] += 1
            n_bytes[name] += n // block * block_bytes
    return [WeightType(name, tensors[name], n_bytes[name]) for name in sorted(tensors, key=lambda name: -n_bytes[name])]


def _reader(file: BinaryIO) -> ReadAt:
    def read(offset: int, n: int) -> bytes:
        file.seek(offset)
        return file.read(n)

    return read
