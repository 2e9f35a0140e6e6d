"""Variants of a GGUF file: in F32 or F16, without the draft head, with other metadata or more tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, ReaderField
from numpy.typing import NDArray

from makers.gguf_read import open_gguf
from makers.gguf_types import dequantize

Metadata = Mapping[str, str | int | float | bool | list[str] | None]
_FILE_TYPES = {"f32": LlamaFileType.ALL_F32, "f16": LlamaFileType.MOSTLY_F16}


def rewrite(
    source: Path,
    target: Path,
    *,
    weights: Literal["f32", "f16"] | None = None,
    drop_head: bool = False,
    leave_out: tuple[str, ...] = (),
    metadata: Metadata | None = None,
    more: Mapping[str, NDArray[np.float32]] | None = None,
    add: Mapping[str, NDArray[np.float32]] | None = None,
) -> None:
    """Copy the GGUF file `source` to `target`: every metadata key with its type, every tensor, in their order.

    weights: the type to convert quantized tensors to, so that results can be compared without quantized arithmetic;
        "f32" converts all tensors, "f16" keeps those that are F32. Scales of matrices become a part of their values.
    drop_head: leave out the MTP blocks and their metadata.
    leave_out: beginnings of names of tensors to leave out.
    metadata: keys to set, with the type of an existing key; None removes the key.
    more: tensors to add, by name.
    add: arrays to add to F32 tensors, by name.
    """
    reader = open_gguf(source)
    arch = reader.fields["general.architecture"].contents()
    changes: dict[str, Any] = dict(metadata or {})
    if weights:
        changes["general.file_type"] = int(_FILE_TYPES[weights])
    dropped = leave_out
    if drop_head:
        blocks = reader.fields[f"{arch}.block_count"].contents()
        trunk = blocks - reader.fields[f"{arch}.nextn_predict_layers"].contents()
        dropped += tuple(f"blk.{block}." for block in range(trunk, blocks))
        recurrent = reader.fields[f"{arch}.attention.recurrent_layers"].contents()
        changes[f"{arch}.block_count"] = trunk
        changes[f"{arch}.attention.recurrent_layers"] = recurrent[:trunk]
        changes[f"{arch}.nextn_predict_layers"] = None
        changes[f"{arch}.nextn_tap"] = None

    writer = GGUFWriter(target, arch)
    write_metadata(writer, reader, changes)
    scales = {t.name: t.data for t in reader.tensors if weights and t.name.endswith((".scale", ".input_scale"))}
    for tensor in reader.tensors:
        if tensor.name.startswith(dropped) or tensor.name in scales:
            continue
        if add and tensor.name in add:
            writer.add_tensor(tensor.name, tensor.data + add[tensor.name])
        elif weights and (weights == "f32" or tensor.tensor_type != GGMLQuantizationType.F32):
            values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
            if (scale := scales.get(tensor.name.removesuffix(".weight") + ".scale")) is not None:
                values = values * scale.reshape(-1, *[1] * (values.ndim - 1))  # one, or one for each expert
            writer.add_tensor(tensor.name, values.astype(np.float16) if weights == "f16" else values)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer: GGUFWriter, reader: GGUFReader, changes: dict[str, Any]) -> None:
    """Write the reader's keys with `changes`; new keys come last, with the type of the Python value."""
    for key, field in reader.fields.items():
        # "GGUF.*" are the reader's names for the file header; the writer has set the architecture
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = changes.pop(key) if key in changes else field.contents()
        if value is not None:
            writer.add_key_value(key, value, field.types[0], item_type(field))
    for key, value in changes.items():
        if value is not None:
            writer.add_key_value(key, value, GGUFValueType.get_type(value))


def item_type(field: ReaderField) -> GGUFValueType | None:
    """Return the type of an array's items; None if the field is no array."""
    return field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
