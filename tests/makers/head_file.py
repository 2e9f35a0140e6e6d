"""A model's files as llama.cpp's converter writes them with --no-mtp and --mtp: the trunk and its head."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from makers.gguf_read import open_gguf
from makers.gguf_variants import Metadata, rewrite, write_metadata

SHARED = ("token_embd.weight", "output.weight", "output_norm.weight")  # in both files; a tied model has no output
_NUMPY = {
    np.dtype(np.float32): GGMLQuantizationType.F32,
    np.dtype(np.float16): GGMLQuantizationType.F16,
    np.dtype(np.int32): GGMLQuantizationType.I32,
    np.dtype(np.int64): GGMLQuantizationType.I64,
}


def write_pair(source: Path, folder: Path, **options: Any) -> tuple[Path, Path]:
    """Write the trunk and the head of the model `source` into `folder`, and return both paths.

    The model must have a head. For a split head, the path is that of its first file. options: those of write_head.
    """
    trunk = folder / f"{source.stem}-trunk.gguf"
    write_trunk(source, trunk)
    return trunk, write_head(source, folder / f"mtp-{source.stem}.gguf", **options)[0]


def write_trunk(source: Path, target: Path) -> None:
    """Write `source` without its head: `block_count` N, and no metadata of a head."""
    rewrite(source, target, drop_head=True)


def write_head(
    source: Path,
    target: Path,
    *,
    types: Mapping[str, str] | None = None,
    tensors: Mapping[str, NDArray[Any] | None] | None = None,
    rename: Mapping[str, str] | None = None,
    metadata: Metadata | None = None,
    split_max_tensors: int = 0,
) -> list[Path]:
    """Write the head of `source` to files of its own, and return their paths.

    They have all metadata and the vocabulary of the model, with `block_count` N + 1 and `nextn_predict_layers` 1, the
    tensors blk.N.* and SHARED.

    types: patterns of names ("*", "output.weight", "blk.*.attn_*") and the type ("q4_0", "f16", …) of their matrices;
        the last pattern that matches counts. The gguf package must be able to write the type.
    tensors: tensors of float32, float16, int32 or int64 that replace the model's or are added, by their names in
        llama.cpp; None leaves the tensor out. tied_output() makes an output layer for the head of a tied model.
    rename: names of tensors, and the names to write in their place.
    metadata: keys to set; None removes the key.
    split_max_tensors: the maximum number of tensors in a file, 0 for one file.
    """
    reader = open_gguf(source)
    arch = reader.fields["general.architecture"].contents()
    block = reader.fields[f"{arch}.block_count"].contents() - 1
    others, names = dict(tensors or {}), dict(rename or {})
    writer = GGUFWriter(target, arch, split_max_tensors=split_max_tensors)
    write_metadata(writer, reader, dict(metadata or {}))

    def write(name: str, values: NDArray[Any], own: GGMLQuantizationType) -> None:
        kind = _type_of(name, types or {}, own) if values.ndim > 1 else own
        if kind != own:
            values = quantize(dequantize(np.asarray(values), own), kind)
        writer.add_tensor(names.get(name, name), values, raw_dtype=kind)

    for tensor in reader.tensors:
        if not tensor.name.startswith(f"blk.{block}.") and tensor.name not in SHARED:
            continue
        if tensor.name not in others:
            write(tensor.name, tensor.data, tensor.tensor_type)
        elif (other := others.pop(tensor.name)) is not None:
            write(tensor.name, other, _NUMPY[other.dtype])
    for name, other in others.items():
        if other is not None:
            write(name, other, _NUMPY[other.dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [Path(file) for file in writer.format_shard_names(target)]


def read_tensor(source: Path, name: str) -> NDArray[np.float32]:
    """Read a tensor of a GGUF file as F32. Raises KeyError if the file has none of this name."""
    for tensor in open_gguf(source).tensors:
        if tensor.name == name:
            return np.asarray(dequantize(np.asarray(tensor.data), tensor.tensor_type), np.float32)
    raise KeyError(name)


def tied_output(source: Path) -> dict[str, NDArray[Any] | None]:
    """Return the output layer of a tied model, its embeddings, for write_head(tensors=…)."""
    return {"output.weight": read_tensor(source, "token_embd.weight")}


def _type_of(name: str, types: Mapping[str, str], own: GGMLQuantizationType) -> GGMLQuantizationType:
    found = own
    for pattern, kind in types.items():
        if fnmatchcase(name, pattern):
            found = GGMLQuantizationType[kind.upper()]
    return found
