"""GGUF files split into their parts and written again, with any damage in them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

ALIGNMENT = 32
SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "B",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
SIZES = {int(kind): struct.calcsize(code) for kind, code in SCALARS.items()}
STRING, ARRAY = int(GGUFValueType.STRING), int(GGUFValueType.ARRAY)
QUANTS = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
QUANTS[int(GGMLQuantizationType.Q8_1)] = (32, 36)  # ggml's value; that of the gguf package differs


@dataclass
class Key:
    """A metadata key and its value as bytes; an array has a list of them, each of type `kind`.

    counted: the number of items that the file states, if it is wrong.
    """

    name: bytes
    kind: int
    values: list[bytes]
    is_array: bool = False
    counted: int | None = None

    def encoded(self) -> bytes:
        values = b"".join(_text(value) if self.kind == STRING else value for value in self.values)
        if not self.is_array:
            return _text(self.name) + struct.pack("<I", self.kind) + values
        n = len(self.values) if self.counted is None else self.counted
        return _text(self.name) + struct.pack("<IIQ", ARRAY, self.kind, n) + values


@dataclass
class TensorInfo:
    """A tensor's entry in the file, and its data. offset: the stated position of the data, if it is wrong."""

    name: bytes
    shape: list[int]
    kind: int
    data: bytes
    n_dims: int | None = None
    offset: int | None = None


@dataclass
class GGUF:
    """A GGUF file in parts. n_tensors, n_keys: the stated numbers, if they are wrong."""

    keys: list[Key]
    tensors: list[TensorInfo]
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    header_size: int = field(default=0, compare=False)  # size of the last result of encoded()

    def copy(self) -> GGUF:
        keys = [replace(key, values=list(key.values)) for key in self.keys]
        return replace(self, keys=keys, tensors=[replace(t, shape=list(t.shape)) for t in self.tensors])

    def encoded(self, alignment: int = ALIGNMENT) -> bytes:
        """Return the file's bytes with its data aligned to `alignment`, whatever general.alignment says."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        head = [self.magic, struct.pack("<IQQ", self.version, n_tensors & 2**64 - 1, n_keys & 2**64 - 1)]
        head += [key.encoded() for key in self.keys]
        offset = 0
        for t in self.tensors:
            n_dims = len(t.shape) if t.n_dims is None else t.n_dims
            head += [_text(t.name), struct.pack("<I", n_dims), b"".join(struct.pack("<q", n) for n in t.shape)]
            head += [struct.pack("<IQ", t.kind & 2**32 - 1, offset if t.offset is None else t.offset)]
            offset += _padded(len(t.data), alignment)
        header = _pad(b"".join(head), alignment)
        self.header_size = len(header)
        return header + b"".join(_pad(t.data, alignment) for t in self.tensors)


def parse(data: bytes) -> GGUF:
    """Split a valid file into its parts."""
    at = 24
    _, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)

    def number(code: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return int(value)

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return data[at - n : at]

    def value(kind: int) -> bytes:
        return take(number("Q")) if kind == STRING else take(SIZES[kind])

    keys = []
    for _ in range(n_keys):
        name, kind = take(number("Q")), number("I")
        if kind == ARRAY:
            kind, n = number("I"), number("Q")
            keys.append(Key(name, kind, [value(kind) for _ in range(n)], is_array=True))
        else:
            keys.append(Key(name, kind, [value(kind)]))
    infos = []
    for _ in range(n_tensors):
        name = take(number("Q"))
        shape = [number("q") for _ in range(number("I"))]
        infos.append((name, shape, number("I"), number("Q")))
    start = _padded(at, ALIGNMENT)
    tensors = [
        TensorInfo(name, shape, kind, data[start + offset : start + offset + tensor_bytes(shape, kind)])
        for name, shape, kind, offset in infos
    ]
    return GGUF(keys, tensors)


def tensor_bytes(shape: list[int], kind: int) -> int:
    """Return the bytes of a tensor's data; 0 if the type has no size."""
    block, size = QUANTS.get(kind, (1, 0))
    return max(0, math.prod(shape)) // block * size


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _pad(data: bytes, alignment: int) -> bytes:
    return data + bytes(_padded(len(data), alignment) - len(data))
